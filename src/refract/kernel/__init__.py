"""Shared words of the whole house: ids, time, errors, events. No input or output."""
