"""What can be done to links: one use case, one transaction, the event inside it."""
