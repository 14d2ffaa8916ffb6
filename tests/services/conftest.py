"""Fixtures that several files of tests of services use."""

from tests.support.databases import database, database_location, empty_location
from tests.support.fronts import front, in_process, proxied
from tests.support.links import links

__all__ = ["database", "database_location", "empty_location", "front", "in_process", "links", "proxied"]
