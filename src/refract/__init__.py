"""Refract, a self-hosted link platform: shorten, redirect, measure, notify."""

__version__ = "0.1.0"
