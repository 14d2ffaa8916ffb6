"""Which headers pass the door, and how often somebody may come."""
