"""What users are told, how they want to be told, and where else it goes."""
