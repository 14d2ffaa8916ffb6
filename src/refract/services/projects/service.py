"""Builds the rooms of projects into one service."""

from refract.runtime.service import Foundation, Service, compose
from refract.services.projects.api import WIRE_NAME


def build_projects(foundation: Foundation) -> Service:
    """The service on the foundation it is given."""
    return compose(WIRE_NAME, foundation)
