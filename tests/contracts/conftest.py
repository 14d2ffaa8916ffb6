"""Fixtures of the ports' twins."""

from tests.support.databases import database, database_location, empty_location

__all__ = ["database", "database_location", "empty_location"]
