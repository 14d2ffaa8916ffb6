"""The schema history of notifications, oldest first; applied by runtime.migrations."""
