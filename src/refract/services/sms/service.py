"""Builds the rooms of sms into one service."""

from refract.runtime.service import Foundation, Service, compose
from refract.services.sms.api import WIRE_NAME


def build_sms(foundation: Foundation) -> Service:
    """The service on the foundation it is given."""
    return compose(WIRE_NAME, foundation)
