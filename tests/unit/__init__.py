"""Kernel, domains and the small parts of the runtime: no input or output."""
