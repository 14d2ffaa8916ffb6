"""What others may know of sms: where the service answers, and the topics it writes."""

from refract.runtime.records import Topic

NAME = "sms"
WIRE_NAME = "sms-gateway"
PORT = 8085

OUTBOUND = Topic("sms-outbound")
"""Messages to be sent, in order for each user."""
NOTIFICATION_EVENTS = Topic("notification-events")
"""What became of every attempt to send one."""
