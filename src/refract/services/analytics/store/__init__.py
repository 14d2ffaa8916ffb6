"""Rows of analytics, in and out."""
