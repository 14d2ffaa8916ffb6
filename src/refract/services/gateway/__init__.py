"""The front door: the public route table, and the way from it to the service that answers."""
