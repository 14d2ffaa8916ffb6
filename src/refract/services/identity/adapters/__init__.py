"""What identity does that takes a processor for itself."""
