"""Fixtures of the ports' twins."""

from tests.support.databases import database, database_location, empty_location
from tests.support.things import things
from tests.support.worlds import reader, world

__all__ = ["database", "database_location", "empty_location", "reader", "things", "world"]
