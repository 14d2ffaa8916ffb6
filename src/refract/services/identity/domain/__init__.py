"""Users and their passwords: what they are and what they must be."""
