"""The HTTP face of notifications: parse, call, render."""
