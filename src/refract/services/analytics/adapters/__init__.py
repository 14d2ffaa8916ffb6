"""What analytics needs from outside, implemented: agents, geography, enrichment."""
