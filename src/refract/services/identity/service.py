"""Builds the rooms of identity into one service."""

from refract.runtime.service import Foundation, Service, compose
from refract.services.identity.api import WIRE_NAME


def build_identity(foundation: Foundation) -> Service:
    """The service on the foundation it is given."""
    return compose(WIRE_NAME, foundation)
