"""The two ways to reach a service: in this process, and over HTTP."""
