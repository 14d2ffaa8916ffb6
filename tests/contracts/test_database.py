"""The promises of the Database port: transactions, statements, errors, reads, parallel use and its end."""

import asyncio
import traceback
from pathlib import Path

import pytest

from refract.kernel.errors import Invalid, Unavailable, UniqueViolation
from refract.runtime.messages import Message
from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.runtime.transactions import StatementFailed, TransactionOver
from tests.support.databases import Location, open_database

CREATE = (
    Statement("create_things", "Makes a table.", "CREATE TABLE things (name TEXT PRIMARY KEY, size INTEGER NOT NULL)"),
    Statement("create_index", "Makes an index.", "CREATE UNIQUE INDEX things_large ON things (size) WHERE size > 1000"),
    Statement(
        "create_keys",
        "Makes a table with keys of every kind.",
        """
        CREATE TABLE keys (
            id BIGINT PRIMARY KEY, plain TEXT UNIQUE, a TEXT, b TEXT, folded TEXT, CONSTRAINT keys_pair UNIQUE (a, b)
        )
        """,
        sqlite="""
        CREATE TABLE keys (
            id INTEGER PRIMARY KEY, plain TEXT UNIQUE, a TEXT, b TEXT, folded TEXT, CONSTRAINT keys_pair UNIQUE (a, b)
        )
        """,
    ),
    Statement("create_folded", "Makes an index.", "CREATE UNIQUE INDEX keys_folded ON keys (lower(folded))"),
)
ADD = Statement("add", "Adds a thing.", "INSERT INTO things (name, size) VALUES (:name, :size)")
ADD_UNLESS_THERE = Statement(
    "add_unless_there", "Adds a thing once.", "INSERT INTO things VALUES (:name, :size) ON CONFLICT DO NOTHING"
)
ADD_KEY = Statement(
    "add_key",
    "Adds a row with keys.",
    "INSERT INTO keys (id, plain, a, b, folded) VALUES (:id, :plain, :a, :b, :folded)",
)
GROW = Statement("grow", "Makes things larger.", "UPDATE things SET size = size + :by WHERE size >= :least")
COPY_ALL = Statement(
    "copy_all",
    "Adds a copy of everything.",
    "WITH found AS (SELECT name, size FROM things) INSERT INTO things SELECT name || '-copy', size FROM found",
)
REMOVE = Statement("remove", "Removes a thing.", "DELETE FROM things WHERE name = :name RETURNING size")
NAMES = Statement("names", "Lists the names.", "SELECT name FROM things ORDER BY name")
FIND = Statement("find", "Finds a thing.", "SELECT name, size FROM things WHERE name = :name")
FIND_ALL = Statement(
    "find_all",
    "Finds things by their names.",
    "SELECT name FROM things WHERE name = ANY(:names) ORDER BY name",
    sqlite="SELECT name FROM things WHERE name IN (SELECT value FROM json_each(:names)) ORDER BY name",
)
LARGEST = Statement("largest", "Finds the largest thing.", "SELECT max(size) AS size, count(*) AS number FROM things")
MARK = Statement("mark", "Marks an event.", "INSERT INTO inbox (reader, event_id) VALUES (:reader, :event_id)")
SLOW = Statement(
    "slow",
    "Takes for ever.",
    "SELECT pg_sleep(60)::text AS answer",
    sqlite="""
    WITH RECURSIVE counter (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counter) SELECT max(n) AS answer FROM counter
    """,
)


@pytest.fixture
async def things(database: Database) -> Database:
    """A database with two tables to play with."""
    async with database.transaction() as tx:
        for statement in CREATE:
            await tx.execute(statement)
    return database


async def names(database: Database) -> list[str]:
    return [row["name"] for row in await database.fetch(NAMES)]


async def add(database: Database, name: str, size: int = 1) -> None:
    async with database.transaction() as tx:
        await tx.execute(ADD, name=name, size=size)


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
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    async with asyncio.timeout(5):
        await add(things, "b")
    assert await names(things) == ["b"]


async def test_a_cancelled_read_does_not_spoil_the_next(things: Database) -> None:
    await add(things, "a")
    for _ in range(12):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await things.fetch(SLOW)
    async with asyncio.timeout(5):
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


# Statements


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (Statement("twice", "Same name twice.", "SELECT size FROM things WHERE size = :n OR size = :n + 1"), 4),
        (
            Statement(
                "cast",
                "With a cast.",
                "SELECT size FROM things WHERE size::text = :n::text",
                sqlite="SELECT size FROM things WHERE CAST(size AS TEXT) = CAST(:n AS TEXT)",
            ),
            4,
        ),
        (Statement("quoted", "A colon in text.", "SELECT size FROM things WHERE size = :n AND ':n it''s :n' <> ''"), 4),
        (Statement("comment", "A colon in a comment.", "SELECT size FROM things -- of :m, it's\nWHERE size = :n"), 4),
    ],
    ids=lambda value: value.name if isinstance(value, Statement) else str(value),
)
async def test_parameters_have_names(things: Database, statement: Statement, expected: int) -> None:
    await add(things, "four", 4)
    await add(things, "nine", 9)
    n: object = "4" if statement.name == "cast" and things.dialect == "postgresql" else 4
    assert [row["size"] for row in await things.fetch(statement, n=n)] == [expected]


async def test_a_missing_parameter_is_named_with_its_statement(things: Database) -> None:
    with pytest.raises(StatementFailed, match=r"find.*name|find.*binding"):
        await things.fetch(FIND)


async def test_lists_are_parameters(things: Database) -> None:
    for name in ("a", "b", "c"):
        await add(things, name)
    assert [row["name"] for row in await things.fetch(FIND_ALL, names=["a", "c", "x"])] == ["a", "c"]
    assert await things.fetch(FIND_ALL, names=[]) == []


async def test_execute_says_how_many_rows_it_touched(things: Database) -> None:
    async with things.transaction() as tx:
        assert await tx.execute(ADD, name="a", size=1) == 1
        assert await tx.execute(ADD_UNLESS_THERE, name="a", size=1) == 0
        assert await tx.execute(ADD_UNLESS_THERE, name="b", size=5) == 1
        assert await tx.execute(GROW, by=1, least=0) == 2
        assert await tx.execute(GROW, by=1, least=100) == 0
        assert await tx.execute(COPY_ALL) == 2
        assert await tx.execute(REMOVE, name="a") == 1
        assert await tx.execute(REMOVE, name="nobody") == 0


async def test_fetch_one_gives_the_first_row_or_none(things: Database) -> None:
    await add(things, "a", 7)
    assert await things.fetch_one(FIND, name="a") == {"name": "a", "size": 7}
    assert await things.fetch_one(FIND, name="b") is None
    async with things.transaction() as tx:
        assert await tx.fetch_one(REMOVE, name="a") == {"size": 7}
    assert await names(things) == []


async def test_reads_outside_a_transaction_cannot_write(things: Database) -> None:
    await add(things, "a")
    with pytest.raises(StatementFailed):
        await things.fetch(REMOVE, name="a")
    assert await names(things) == ["a"]


async def test_execute_many_runs_for_each_set(things: Database) -> None:
    async with things.transaction() as tx:
        await tx.execute_many(ADD, [{"name": str(number), "size": number} for number in range(100)])
        await tx.execute_many(ADD, [])
    assert await things.fetch_one(LARGEST) == {"size": 99, "number": 100}


async def test_insert_many_writes_ten_thousand_rows(things: Database) -> None:
    async with things.transaction() as tx:
        await tx.insert_many("things", ("name", "size"), ((f"thing {number}", 1) for number in range(10_000)))
    assert await things.fetch_one(LARGEST) == {"size": 1, "number": 10_000}


async def test_insert_many_belongs_to_its_transaction(things: Database) -> None:
    await add(things, "b")
    with pytest.raises(UniqueViolation) as caught:
        async with things.transaction() as tx:
            await tx.insert_many("things", ("name", "size"), [("a", 1), ("b", 2)])
    assert caught.value.constraint == "things_pkey"
    assert await names(things) == ["b"]


# Errors


PRIVATE = "someone@example.org"
KEY = {"id": 1, "plain": "p", "a": "a", "b": "b", "folded": "Word"}


@pytest.mark.parametrize(
    ("same", "constraint"),
    [
        ({"id": 1}, "keys_pkey"),
        ({"plain": "p"}, "keys_plain_key"),
        ({"a": "a", "b": "b"}, "keys_pair"),
        ({"folded": "wORD"}, "keys_folded"),
    ],
)
async def test_a_taken_key_is_told_by_its_name(things: Database, same: dict[str, object], constraint: str) -> None:
    async with things.transaction() as tx:
        await tx.execute(ADD_KEY, **KEY)
    other = {"id": 2, "plain": "q", "a": "a", "b": "c", "folded": "other"}
    with pytest.raises(UniqueViolation) as caught:
        async with things.transaction() as tx:
            await tx.execute(ADD_KEY, **(other | same))
    assert caught.value.constraint == constraint


async def test_a_partial_index_and_a_text_key_are_told_apart(things: Database) -> None:
    await add(things, "a", 2000)
    with pytest.raises(UniqueViolation) as caught:
        await add(things, "b", 2000)
    assert caught.value.constraint == "things_large"
    with pytest.raises(UniqueViolation) as caught:
        await add(things, "a", 1)
    assert caught.value.constraint == "things_pkey"
    with pytest.raises(UniqueViolation) as caught:
        async with things.transaction() as tx:
            await tx.execute_many(MARK, [{"reader": "r", "event_id": "e"}] * 2)
    assert caught.value.constraint == "inbox_pkey"


async def test_other_errors_name_the_statement_and_quote_no_value(things: Database) -> None:
    wrong = Statement("wrong", "Breaks a rule.", "INSERT INTO things (name, size) VALUES (:name, NULL)")
    with pytest.raises(StatementFailed, match="wrong") as caught:
        async with things.transaction() as tx:
            await tx.execute(wrong, name=PRIVATE)
    told = "".join(traceback.format_exception(caught.value))
    assert PRIVATE not in told
    assert "size" in str(caught.value)


async def test_a_taken_key_quotes_no_value(things: Database) -> None:
    await add(things, PRIVATE)
    with pytest.raises(UniqueViolation) as caught:
        await add(things, PRIVATE)
    told = "".join(traceback.format_exception(caught.value))
    assert PRIVATE not in told


async def test_nonsense_is_a_failed_statement(things: Database) -> None:
    with pytest.raises(StatementFailed, match="nonsense"):
        await things.fetch(Statement("nonsense", "Not SQL.", "SELEKT 1"))


async def test_an_endless_statement_is_ended(database_location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refract.runtime.embedded.sqlite_connections.COMMAND_TIMEOUT", 0.2)
    monkeypatch.setattr("refract.runtime.distributed.postgresql.COMMAND_TIMEOUT", 0.2)
    database = await open_database(database_location)
    with pytest.raises(Unavailable):
        await database.fetch(SLOW)
    with pytest.raises(Unavailable):
        async with database.transaction() as tx:
            await tx.fetch(SLOW)
    await database.ping()
    await database.close()


async def test_waiting_for_a_turn_is_bounded(database_location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refract.runtime.embedded.database.ACQUIRE_TIMEOUT", 0.1)
    monkeypatch.setattr("refract.runtime.distributed.pool.ACQUIRE_TIMEOUT", 0.1)
    database = await open_database(database_location)
    occupants = 1 if isinstance(database_location, Path) else 10
    entered, release = asyncio.Semaphore(0), asyncio.Event()

    async def occupy() -> None:
        async with database.transaction():
            entered.release()
            await release.wait()

    tasks = [asyncio.create_task(occupy()) for _ in range(occupants)]
    for _ in range(occupants):
        await entered.acquire()
    with pytest.raises(Unavailable):
        async with database.transaction():
            pass
    release.set()
    await asyncio.gather(*tasks)
    async with database.transaction():
        pass
    await database.close()


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


async def test_invalid_values_leave_the_database_usable(things: Database) -> None:
    with pytest.raises(Invalid):
        await things.fetch(FIND, name="a\0b")
    assert await things.fetch(FIND, name="ab") == []
