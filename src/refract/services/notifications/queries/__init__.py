"""What users may read: straight to records."""
