"""New links are put into the index of the search by a task, on both modes; and rows of clicks are packed by lz4."""

import asyncio
import logging

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.links.commands.merging import MERGE, SearchMerging
from tests.services.test_redirect_lookup import add, database, database_location, empty_location, link
from tests.support.waiting import eventually

__all__ = ["database", "database_location", "empty_location"]

PACKED = Statement(
    "packed",
    "Reads how the outbox packs its bodies.",
    "SELECT attcompression::text AS method FROM pg_attribute "
    "WHERE attrelid = 'outbox'::regclass AND attname = 'payload'",
    sqlite="SELECT 'l' AS method",
)


async def test_what_waits_beside_the_index_is_merged(database: Database) -> None:
    for _ in range(3):
        await add(database, link())
    merging = SearchMerging(database)
    await merging.merge()
    if database.dialect == "postgresql":
        async with database.transaction() as tx:
            assert await tx.fetch(MERGE) == [{"gin_clean_pending_list": 0}], "nothing is left"


async def test_a_failure_is_told_once_and_merging_goes_on(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = 0

    async def fail() -> None:
        nonlocal attempts
        attempts += 1
        raise Unavailable("database", "it is away")

    async def at_once(_: float) -> None:
        await asyncio.sleep(0)

    merging = SearchMerging(database, pause=at_once)
    monkeypatch.setattr(merging, "merge", fail)
    with caplog.at_level(logging.WARNING):
        task = asyncio.create_task(merging.run())
        await eventually(lambda: attempts > 3)
        task.cancel()
        await asyncio.wait([task])
    ours = [one for one in caplog.records if one.name.startswith("refract")]
    assert [record.message for record in ours] == ["the index of the search was not merged"]


async def test_rows_of_clicks_are_packed_fast(database: Database) -> None:
    assert await database.fetch(PACKED) == [{"method": "l"}]
