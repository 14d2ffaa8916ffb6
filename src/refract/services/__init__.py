"""The bounded contexts. One enters another only through its api module."""
