"""The schema history of links, oldest first; applied by runtime.migrations."""
