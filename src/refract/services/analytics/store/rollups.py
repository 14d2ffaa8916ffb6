"""Rollups as the reader of clicks writes them: read and locked, added to in memory, and written back."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from refract.runtime.ports import Row, Transaction
from refract.runtime.statements import Statement
from refract.services.analytics.domain.rollups import COLUMNS, Period

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_MICROSECONDS = 1_000_000


_KEY = ", ".join(f"rollups.{name}" for name in Period._fields)
_SELECTED = ", ".join((_KEY, *(f"rollups.{name}" for name in COLUMNS)))

LOCK_ROLLUPS = Statement(
    "lock_rollups",
    "Reads the rollups of periods and locks them until the transaction ends.",
    f"""
    SELECT {_SELECTED} FROM json_to_recordset(:periods) AS document (short_code text, span smallint, second bigint)
    JOIN rollups ON rollups.short_code = document.short_code AND rollups.span = document.span
        AND rollups.starts_at = to_timestamp(document.second)
    ORDER BY {_KEY} FOR UPDATE OF rollups
    """,  # noqa: S608  # names, not values
    sqlite=f"""
    SELECT {_SELECTED} FROM json_each(:periods) AS document
    CROSS JOIN rollups ON rollups.short_code = document.value ->> 'short_code'
        AND rollups.span = document.value ->> 'span'
        AND rollups.starts_at = (document.value ->> 'second') * {_MICROSECONDS}
    """,  # noqa: S608
)

_NAMES = (*Period._fields, *COLUMNS)
# What is NULL was not changed: a large value that stays is not written again.
_CHANGES = ", ".join(f"{name} = coalesce(excluded.{name}, rollups.{name})" for name in COLUMNS)

SAVE_ROLLUP = Statement(
    "save_rollup",
    "Writes what changed of the rollup of a period, which the transaction has locked, or makes it.",
    f"""
    INSERT INTO rollups ({", ".join(_NAMES)}) VALUES ({", ".join(f":{name}" for name in _NAMES)})
    ON CONFLICT (short_code, span, starts_at) DO UPDATE SET {_CHANGES}
    """,  # noqa: S608  # names, not values
)


async def lock_rollups(tx: Transaction, periods: Iterable[Period]) -> dict[Period, Row]:
    """The rows of periods, as far as there are any, locked until the end of the transaction."""
    document = [
        {"short_code": code, "span": span, "second": (starts_at - _EPOCH) // _SECOND}
        for code, span, starts_at in sorted(periods)
    ]
    rows = await tx.fetch(LOCK_ROLLUPS, periods=document)
    return {Period(row["short_code"], row["span"], row["starts_at"]): row for row in rows}


async def save_rollups(tx: Transaction, changes: Mapping[Period, Mapping[str, Any]]) -> None:
    """Write rows of periods in the order of their locks."""
    rows = [
        {"short_code": period.short_code, "span": period.span, "starts_at": period.starts_at, **changes[period]}
        for period in sorted(changes)
    ]
    await tx.execute_many(SAVE_ROLLUP, rows)
