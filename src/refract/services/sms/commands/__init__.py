"""What sms does: one use case each."""
