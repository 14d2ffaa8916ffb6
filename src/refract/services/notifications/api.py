"""What others may know of notifications: where the service answers."""

NAME = "notifications"
WIRE_NAME = "notification-service"
PORT = 8084
