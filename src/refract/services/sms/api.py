"""What others may know of sms: where the service answers."""

NAME = "sms"
WIRE_NAME = "sms-gateway"
PORT = 8085
