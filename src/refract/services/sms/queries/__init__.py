"""What can be read of the attempts to send a message: one by one, and summed up by user."""
