"""What users may do: each use case in one transaction."""
