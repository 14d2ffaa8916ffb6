"""Links: shorten, redirect and manage them, and never lose a click."""
