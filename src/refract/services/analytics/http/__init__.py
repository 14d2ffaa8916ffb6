"""The HTTP face of analytics: parse, call, render."""
