"""Builds the rooms of links into one service."""

from refract.runtime.service import Foundation, Service, compose
from refract.services.links.api import WIRE_NAME


def build_links(foundation: Foundation) -> Service:
    """The service on the foundation it is given."""
    return compose(WIRE_NAME, foundation)
