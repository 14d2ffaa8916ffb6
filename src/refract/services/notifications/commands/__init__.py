"""What is done for users: each use case in one transaction."""
