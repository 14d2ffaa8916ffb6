"""Rows of sms to records and back."""
