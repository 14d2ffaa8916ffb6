"""Notifications: what happened, told by mail, webhook and in the product."""
