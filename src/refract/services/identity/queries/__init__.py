"""What can be asked of identity: straight to records."""
