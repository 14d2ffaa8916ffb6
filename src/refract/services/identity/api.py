"""What others may know of identity: where the service answers."""

NAME = "identity"
WIRE_NAME = "user-service"
PORT = 8083
