"""Rows of notifications: what is kept, and what is on its way."""
