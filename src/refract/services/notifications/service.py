"""Builds the rooms of notifications into one service."""

from refract.runtime.service import Foundation, Service, compose
from refract.services.notifications.api import WIRE_NAME
from refract.services.notifications.reactions import QUEUES


def build_notifications(foundation: Foundation) -> Service:
    """The service on the foundation it is given."""
    return compose(WIRE_NAME, foundation, queues=QUEUES)
