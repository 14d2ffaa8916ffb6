"""Fixtures that several files of tests of services use."""

from collections.abc import Iterator

import pytest

from refract.runtime.distributed import pool, postgresql, rabbit_publisher
from refract.runtime.embedded import database as embedded_database
from refract.runtime.embedded import event_bus, record_log
from refract.runtime.statements import Statement
from refract.services.analytics.commands import expiring, folding
from refract.services.links.redirect import clicks, shelter
from refract.services.sms.commands import configuring, sending
from tests.support.databases import database, database_location, empty_database, empty_location
from tests.support.deliveries import deliveries, notifications_dsn, notifications_file, notifications_location
from tests.support.fronts import front, in_process, proxied
from tests.support.links import links
from tests.support.notices import notices

__all__ = [
    "database",
    "database_location",
    "deliveries",
    "empty_database",
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

LONG = 30.0
"""Seconds for a commit and for those before it: on a disk that is everybody's, one may take two."""

BE_PATIENT = Statement(
    "be_patient",
    "Waits for a lock for as long as a slow commit may take.",
    f"SELECT set_config('lock_timeout', '{LONG:.0f}s', true)",
    sqlite="SELECT 1",
)


@pytest.fixture(autouse=True)
def patient_engines() -> Iterator[None]:
    """A slow disk is no trouble here: no click goes to the spool for it, and nobody gives up his turn to write.

    Not by the test's own `monkeypatch`, which would then be undone after everything else.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "ACQUIRE_TIMEOUT", LONG)
        patch.setattr(embedded_database, "ACQUIRE_TIMEOUT", LONG)
        patch.setattr(clicks, "FLUSH_TIMEOUT", LONG)
        patch.setattr(clicks, "DRAIN_SECONDS", LONG)
        patch.setattr(shelter, "SPOOL_TIMEOUT", LONG)
        for log in (event_bus, record_log):
            patch.setattr(log, "PUBLISH_TIMEOUT", LONG)
        for command in (configuring, sending):
            patch.setattr(command, "PATIENCE", LONG)
        yield


@pytest.fixture
def patient_locks() -> Iterator[None]:
    """For tests in which many wait for the same rows of PostgreSQL: those before them have to commit first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgresql, "ACQUIRE_TIMEOUT", LONG)
        patch.setattr(postgresql, "COMMAND_TIMEOUT", LONG)
        patch.setattr(postgresql, "SILENCE_TIMEOUT", LONG + 1)
        yield


@pytest.fixture
def patient_bus() -> Iterator[None]:
    """For tests in which everything that is published arrives: a broker keeps it on a disk before it says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rabbit_publisher, "PUBLISH_TIMEOUT", LONG)
        yield


@pytest.fixture
def patient_folding() -> Iterator[None]:
    """For tests in which others write while periods are folded: a job that gives up would be tried again later."""
    with pytest.MonkeyPatch.context() as patch:
        for command in (folding, expiring):
            patch.setattr(command, "BE_BRIEF", BE_PATIENT)
        yield
