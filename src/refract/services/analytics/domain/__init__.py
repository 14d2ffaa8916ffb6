"""Clicks and what they add up to: pure, without an engine."""
