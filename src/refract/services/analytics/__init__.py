"""Analytics: clicks in, rollups, statistics and milestones out."""
