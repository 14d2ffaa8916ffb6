"""The walls of the house and its rules, each seen to fail."""
