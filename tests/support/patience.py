"""Databases with patience, for tests of who comes first and not of how soon: a slow disk is no reason to be refused."""

import pytest

from refract.runtime.distributed import pool, postgresql
from refract.runtime.embedded import database, sqlite_connections

SECONDS = 60.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a connection, a turn or a lock of databases that are opened from now on waits for a minute.

    In a service it is five seconds, which is less than twenty commits in a row may take on a disk that is busy.
    """
    for module in (pool, postgresql, database):
        monkeypatch.setattr(module, "ACQUIRE_TIMEOUT", SECONDS)
    monkeypatch.setattr(sqlite_connections, "BUSY_MILLISECONDS", round(SECONDS * 1000))
