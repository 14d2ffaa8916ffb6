"""What others may know of projects: where the service answers."""

NAME = "projects"
WIRE_NAME = "project-service"
PORT = 8086
