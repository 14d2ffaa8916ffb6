"""The schema history of projects, oldest first; applied by runtime.migrations."""
