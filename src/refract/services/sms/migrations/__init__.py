"""The schema history of sms, oldest first; applied by runtime.migrations."""
