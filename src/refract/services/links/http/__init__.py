"""The HTTP face of links: parse, call, render."""
