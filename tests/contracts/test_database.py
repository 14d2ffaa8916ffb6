"""The promises of the Database port about transactions: all or nothing, side by side, and an orderly end."""

import asyncio

import pytest

from refract.kernel.errors import Unavailable, UniqueViolation
from refract.runtime.messages import Message
from refract.runtime.ports import Database, Transaction
from refract.runtime.transactions import TransactionOver
from tests.support.databases import Location, open_database
from tests.support.things import ADD, CREATE, GROW, LARGEST, NAMES, SLOW, add, names


class Oops(Exception):
    """What goes wrong in a use case."""


# Transactions


async def test_commits_at_the_end_of_the_block(things: Database) -> None:
    async with things.transaction() as tx:
        await tx.execute(ADD, name="a", size=1)
        await tx.execute(ADD, name="b", size=2)
    assert await names(things) == ["a", "b"]


async def test_is_committed_for_other_connections_and_after_reopening(
    things: Database, database_location: Location
) -> None:
    await add(things, "a")
    other = await open_database(database_location)
    assert await names(other) == ["a"]
    await other.close()


async def test_rolls_back_when_the_block_raises(things: Database) -> None:
    async def write() -> None:
        async with things.transaction() as tx:
            await tx.execute(ADD, name="a", size=1)
            raise Oops

    with pytest.raises(Oops):
        await write()
    assert await names(things) == []


async def test_rolls_back_when_the_block_is_cancelled(things: Database) -> None:
    written = asyncio.Event()

    async def write() -> None:
        async with things.transaction() as tx:
            await tx.execute(ADD, name="a", size=1)
            written.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await written.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await add(things, "b")
    assert await names(things) == ["b"]


async def test_a_statement_can_be_cancelled(things: Database) -> None:
    begun = asyncio.Event()

    async def write() -> None:
        async with things.transaction() as tx:
            await tx.execute(ADD, name="a", size=1)
            begun.set()
            await tx.fetch(SLOW)

    task = asyncio.create_task(write())
    await begun.wait()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()
    async with asyncio.timeout(60):
        await add(things, "b")
    assert await names(things) == ["b"]


async def test_a_cancelled_read_does_not_spoil_the_next(things: Database) -> None:
    await add(things, "a")
    for _ in range(12):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await things.fetch(SLOW)
    async with asyncio.timeout(60):
        assert await names(things) == ["a"]


async def test_nobody_else_sees_what_is_not_committed(things: Database) -> None:
    async with things.transaction() as tx:
        await tx.execute(ADD, name="a", size=1)
        assert [row["name"] for row in await tx.fetch(NAMES)] == ["a"]
        assert await names(things) == []
    assert await names(things) == ["a"]


async def test_a_failed_statement_dooms_the_transaction_even_if_somebody_swallows_it(things: Database) -> None:
    await add(things, "taken")

    async def write() -> None:
        async with things.transaction() as tx:
            await tx.execute(ADD, name="lost", size=1)
            with pytest.raises(UniqueViolation):
                await tx.execute(ADD, name="taken", size=1)

    with pytest.raises(TransactionOver):
        await write()
    assert await names(things) == ["taken"]


async def test_nothing_can_follow_a_failed_statement(things: Database) -> None:
    await add(things, "taken")

    async def write() -> None:
        async with things.transaction() as tx:
            with pytest.raises(UniqueViolation):
                await tx.execute(ADD, name="taken", size=1)
            with pytest.raises(TransactionOver):
                await tx.execute(ADD, name="free", size=1)
            with pytest.raises(TransactionOver):
                await tx.post(Message("exchange", "key", b"{}", "id"))

    with pytest.raises(TransactionOver):
        await write()
    assert await names(things) == ["taken"]


async def test_a_transaction_ends_with_its_block(things: Database) -> None:
    kept: list[Transaction] = []
    async with things.transaction() as tx:
        kept.append(tx)
    with pytest.raises(TransactionOver):
        await kept[0].execute(ADD, name="late", size=1)
    with pytest.raises(TransactionOver):
        await kept[0].fetch(NAMES)
    assert await names(things) == []


async def test_statements_of_one_transaction_may_be_started_together(things: Database) -> None:
    async with things.transaction() as tx:
        await asyncio.gather(*(tx.execute(ADD, name=str(number), size=number) for number in range(10)))
    assert len(await names(things)) == 10


async def test_fifty_transactions_at_once_all_count(things: Database) -> None:
    await add(things, "counter", 0)

    async def increase() -> None:
        async with things.transaction() as tx:
            assert await tx.execute(GROW, by=1, least=0) == 1

    await asyncio.gather(*(increase() for _ in range(50)))
    assert (await things.fetch(LARGEST))[0]["size"] == 50


async def test_a_transaction_that_does_nothing_is_no_trouble(things: Database) -> None:
    async with things.transaction():
        pass
    assert await names(things) == []


# The end


async def test_answers_a_ping(things: Database) -> None:
    await things.ping()


async def test_closing_lets_a_running_transaction_finish(database_location: Location) -> None:
    database = await open_database(database_location)
    async with database.transaction() as tx:
        for statement in CREATE:
            await tx.execute(statement)
    begun, release = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        async with database.transaction() as tx:
            await tx.execute(ADD, name="a", size=1)
            begun.set()
            await release.wait()
            await tx.execute(ADD, name="b", size=1)

    writing = asyncio.create_task(write())
    await begun.wait()
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(writing, closing)
    again = await open_database(database_location)
    assert await names(again) == ["a", "b"]
    await again.close()


async def test_after_closing_it_is_unavailable(database_location: Location) -> None:
    database = await open_database(database_location)
    await database.close()
    await database.close()
    with pytest.raises(Unavailable):
        await database.ping()
    with pytest.raises(Unavailable):
        await database.fetch(NAMES)
    with pytest.raises(Unavailable):
        async with database.transaction():
            pass
