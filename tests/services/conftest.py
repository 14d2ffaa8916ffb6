"""Fixtures that several files of tests of services use."""

from tests.support.databases import database, database_location, empty_location
from tests.support.deliveries import deliveries, notifications_dsn, notifications_file, notifications_location
from tests.support.fronts import front, in_process, proxied
from tests.support.links import links
from tests.support.notices import notices

__all__ = [
    "database",
    "database_location",
    "deliveries",
    "empty_location",
    "front",
    "in_process",
    "links",
    "notices",
    "notifications_dsn",
    "notifications_file",
    "notifications_location",
    "proxied",
]
