"""The HTTP face of identity: parse, call, render."""
