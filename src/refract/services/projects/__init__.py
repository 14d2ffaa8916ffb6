"""Projects: many links made as one job, with its progress."""
