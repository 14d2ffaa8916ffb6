"""The promises of the Database port about statements: parameters, what they return, and errors in our own words."""

import asyncio
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from refract.kernel.errors import Invalid, TimedOut, Unavailable, UniqueViolation
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.runtime.transactions import StatementFailed
from tests.support.databases import Location, open_database
from tests.support.things import (
    ADD,
    ADD_KEY,
    ADD_UNLESS_THERE,
    COPY_ALL,
    FIND,
    FIND_ALL,
    GROW,
    LARGEST,
    MARK,
    NAMES,
    REMOVE,
    SLOW,
    add,
    names,
)
from tests.support.waiting import eventually


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
        (Statement("steady", "With one plan.", "SELECT size FROM things WHERE size = :n", steady=True), 4),
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
    # On a busy machine what is short may take as long, too, and is then tried again.
    database = await eventually(lambda: open_database(database_location))

    async def ended() -> bool:
        with pytest.raises(TimedOut) as caught:
            await database.fetch(SLOW)
        return SLOW.name in str(caught.value)

    async def ended_in_a_transaction() -> bool:
        with pytest.raises(TimedOut) as caught:
            async with database.transaction() as tx:
                await tx.fetch(SLOW)
        return SLOW.name in str(caught.value)

    async def answers() -> bool:
        await database.ping()
        return True

    for condition in (ended, ended_in_a_transaction, answers):
        await eventually(condition)
    await database.close()


async def test_a_statement_may_have_less_time_than_others(database_location: Location) -> None:
    database = await eventually(lambda: open_database(database_location))
    for _ in range(12):  # more than there are connections
        with pytest.raises(TimedOut, match=SLOW.name):
            await database.fetch(replace(SLOW, longest=0.01))
        await database.ping()
    await database.close()


async def test_who_follows_a_link_does_not_wait_for_long_questions(things: Database) -> None:
    urgent = replace(NAMES, urgent=True)
    async with asyncio.TaskGroup() as group:
        long = [group.create_task(things.fetch(SLOW)) for _ in range(4)]
        for _ in range(3):
            assert await things.fetch(urgent) == []
        assert not any(task.done() for task in long)
        for task in long:
            task.cancel()


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


async def test_invalid_values_leave_the_database_usable(things: Database) -> None:
    with pytest.raises(Invalid):
        await things.fetch(FIND, name="a\0b")
    assert await things.fetch(FIND, name="ab") == []
