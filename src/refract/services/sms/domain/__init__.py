"""What sending is about: limits, decisions, attempts. Pure."""
