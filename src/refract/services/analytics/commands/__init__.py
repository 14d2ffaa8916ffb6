"""What analytics does to its own rows."""
