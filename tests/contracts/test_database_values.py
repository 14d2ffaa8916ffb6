"""The promises of the Database port about values: what goes in comes out, the same on both engines."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from refract.kernel.errors import Invalid
from refract.runtime.ports import Database
from refract.runtime.statements import Statement

COLUMNS = ("id", "at", "flag", "number", "ratio", "words", "octets", "document")
CREATE = Statement(
    "create_values",
    "Makes a table with a column of each type.",
    """
    CREATE TABLE kept (
        id UUID, at TIMESTAMPTZ, flag BOOLEAN, number BIGINT, ratio DOUBLE PRECISION, words TEXT, octets BYTEA,
        document JSONB
    )
    """,
    sqlite="""
    CREATE TABLE kept (
        id TEXT, at TIMESTAMP, flag BOOLEAN, number BIGINT, ratio DOUBLE PRECISION, words TEXT, octets BLOB,
        document JSONTEXT
    )
    """,
)
KEEP = Statement(
    "keep",
    "Keeps a value of each type and gives it back.",
    """
    INSERT INTO kept (id, at, flag, number, ratio, words, octets, document)
    VALUES (:id, :at, :flag, :number, :ratio, :words, :octets, :document)
    RETURNING *
    """,
)
READ = Statement("read", "Reads everything.", "SELECT * FROM kept")
FORGET = Statement("forget", "Removes everything.", "DELETE FROM kept")
SAME = Statement(
    "same",
    "Finds a row by its values.",
    "SELECT count(*) AS found FROM kept WHERE at = :at AND flag = :flag AND number = :number AND words = :words",
)
LATEST = Statement(
    "latest",
    "Computes a moment.",
    "SELECT max(at) AS latest FROM kept",
    sqlite='SELECT max(at) AS "latest [TIMESTAMP]" FROM kept',
)

BIGGEST = 2**63 - 1
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
parts = st.recursive(
    st.none() | st.booleans() | st.integers(-BIGGEST, BIGGEST) | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=8,
)
documents = st.none() | st.lists(parts, max_size=3) | st.dictionaries(texts, parts, max_size=3)
rows = st.fixed_dictionaries(
    {
        "id": st.uuids().map(str) | st.none(),
        "at": moments | st.none(),
        "flag": st.booleans() | st.none(),
        "number": st.integers(-BIGGEST - 1, BIGGEST) | st.none(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False) | st.none(),
        "words": texts | st.none(),
        "octets": st.binary() | st.none(),
        "document": documents,
    }
)
examples = settings(
    max_examples=50,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking over a disk takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ORDINARY: dict[str, Any] = {
    "id": "0190163d-8694-739b-aea5-966c26f8ad91",
    "at": datetime(2026, 2, 3, 4, 5, 6, 789012, UTC),
    "flag": True,
    "number": 7,
    "ratio": 0.5,
    "words": "words",
    "octets": b"\0\xff",
    "document": {"a": [1, None, "b"]},
}


@pytest.fixture
async def kept(database: Database) -> Database:
    """A database with a table that has a column of each type."""
    async with database.transaction() as tx:
        await tx.execute(CREATE)
    return database


@examples
@given(row=rows)
async def test_what_goes_in_comes_out(kept: Database, row: dict[str, Any]) -> None:
    async with kept.transaction() as tx:
        await tx.execute(FORGET)
        returned = await tx.fetch_one(KEEP, **row)
    assert returned == row
    assert await kept.fetch(READ) == [row]


@examples
@given(many=st.lists(rows, max_size=5))
async def test_what_goes_in_in_bulk_comes_out(kept: Database, many: list[dict[str, Any]]) -> None:
    async with kept.transaction() as tx:
        await tx.execute(FORGET)
        await tx.insert_many("kept", COLUMNS, ([row[column] for column in COLUMNS] for row in many))
    assert await kept.fetch(READ) == many


async def test_values_keep_their_types(kept: Database) -> None:
    async with kept.transaction() as tx:
        await tx.execute(KEEP, **ORDINARY)
    row = await kept.fetch_one(READ)
    assert row is not None
    assert {name: type(value) for name, value in row.items()} == {name: type(value) for name, value in ORDINARY.items()}
    assert row["at"].utcoffset() == timedelta(0)


async def test_a_moment_of_another_zone_is_the_same_moment(kept: Database) -> None:
    elsewhere = datetime(2026, 2, 3, 4, 5, 6, 789012, timezone(timedelta(hours=5, minutes=30)))
    async with kept.transaction() as tx:
        await tx.execute(KEEP, **(ORDINARY | {"at": elsewhere}))
    assert await kept.fetch_one(SAME, **(ORDINARY | {"at": elsewhere.astimezone(UTC)})) == {"found": 1}
    assert await kept.fetch_one(LATEST) == {"latest": elsewhere}


@pytest.mark.parametrize(
    "wrong",
    [
        {"words": "a\0b"},
        {"words": "lone \ud800 surrogate"},
        {"at": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"number": 2**63},
        {"number": -(2**63) - 1},
        {"document": {"key": "a\0b"}},
    ],
    ids=["nul", "surrogate", "naive moment", "too large", "too small", "nul in a document"],
)
async def test_a_value_that_fits_no_column_is_invalid(kept: Database, wrong: dict[str, Any]) -> None:
    row = ORDINARY | wrong
    with pytest.raises(Invalid):
        async with kept.transaction() as tx:
            await tx.execute(KEEP, **row)
    with pytest.raises(Invalid):
        async with kept.transaction() as tx:
            await tx.insert_many("kept", COLUMNS, [tuple(row.values())])
    assert await kept.fetch(READ) == []
