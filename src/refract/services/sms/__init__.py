"""SMS: text messages through the providers, within each user's rate."""
