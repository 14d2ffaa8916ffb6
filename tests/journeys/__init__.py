"""Whole stories, in both modes."""
