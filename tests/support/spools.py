"""What tests of the spool stand on: its directory, a database, and a writer that does not take its time."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.ports import Database
from refract.services.links.redirect import clicks, shelter
from tests.support.databases import furnish


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done again and again is done more often; a slow disk is waited for, and nothing shed or made twice."""
    monkeypatch.setattr(clicks, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(clicks, "FLUSH_TIMEOUT", 60.0)
    monkeypatch.setattr(shelter, "SPOOL_TIMEOUT", 60.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, restless: None) -> None:
    """A commit that takes its time is given up soon; it may be made all the same, and then its clicks come twice."""
    assert restless is None
    monkeypatch.setattr(clicks, "FLUSH_TIMEOUT", 0.3)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the spool is; nobody has made it yet."""
    return tmp_path / "data" / "spool"


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Database]:
    """A database of this test alone."""
    await furnish("links", tmp_path / "test.db")
    database = await EmbeddedDatabase.open(tmp_path / "test.db")
    yield database
    await database.close()
