"""The schema history of identity, oldest first; applied by runtime.migrations."""
