"""Builds the rooms of analytics into one service."""

from refract.runtime.service import Foundation, Service, compose
from refract.services.analytics.api import WIRE_NAME
from refract.services.analytics.reactions import QUEUES


def build_analytics(foundation: Foundation) -> Service:
    """The service on the foundation it is given."""
    return compose(WIRE_NAME, foundation, queues=QUEUES)
