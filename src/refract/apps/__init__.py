"""Composition roots: the only rooms that know which mode is running."""
