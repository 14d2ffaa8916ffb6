"""Kills, cuts, floods and bad input, on servers of their own."""
