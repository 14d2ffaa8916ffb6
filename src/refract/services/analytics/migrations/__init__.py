"""The schema history of analytics, oldest first; applied by runtime.migrations."""
