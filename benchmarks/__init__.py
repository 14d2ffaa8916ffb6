"""Measurements over the real thing: `make bench` prints the figures that the targets are checked against."""
