"""Limits: rows to records and back. The database's clock comes with every row."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from refract.runtime.ports import Reads, Row, Transaction
from refract.runtime.statements import Statement
from refract.services.sms.domain.limits import Algorithm, Limit, read_slices, write_slices

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_COLUMNS = "user_id, rate_limit, time_window, algorithm, current_count, last_refresh_time, slices, version"
_MOMENT = "timestamptz 'epoch' + {0} / 1000000 * interval '1 second' + {0} % 1000000 * interval '1 microsecond'".format

READ = Statement(
    "read_limit",
    "Reads a user's limit without a lock.",
    f"SELECT {_COLUMNS}, clock_timestamp() AS now FROM rate_limits WHERE user_id = :user_id",  # noqa: S608  # names, not values
    sqlite=f'SELECT {_COLUMNS}, :now AS "now [TIMESTAMP]" FROM rate_limits WHERE user_id = :user_id',  # noqa: S608
)
LOCK = Statement(
    "lock_limits",
    "Locks users' limits in an order that is the same everywhere, and reads each with the time when its lock was had.",
    f"""
    SELECT locked.*, clock_timestamp() AS now FROM (
        SELECT {_COLUMNS} FROM rate_limits WHERE user_id = ANY(:user_ids) ORDER BY user_id FOR UPDATE
    ) AS locked
    """,  # noqa: S608
    # A transaction is alone there.
    sqlite=f"""
    SELECT {_COLUMNS}, :now AS "now [TIMESTAMP]" FROM rate_limits
    WHERE user_id IN (SELECT value FROM json_each(:user_ids))
    """,  # noqa: S608
)
COUNT = Statement(
    "count_sends",
    "Writes the counts of limits that are locked.",
    f"""
    UPDATE rate_limits SET
        current_count = document.count, last_refresh_time = {_MOMENT("document.refreshed")}, slices = document.slices
    FROM json_to_recordset(:limits) AS document (user_id bigint, count integer, refreshed bigint, slices text)
    WHERE rate_limits.user_id = document.user_id
    """,  # noqa: S608
    sqlite="""
    UPDATE rate_limits SET
        current_count = value ->> 'count', last_refresh_time = value ->> 'refreshed', slices = value ->> 'slices'
    FROM json_each(:limits) WHERE user_id = value ->> 'user_id'
    """,
)
CONFIGURE = Statement(
    "configure_limit",
    "Sets a user's limit, with nothing counted from now on.",
    f"""
    INSERT INTO rate_limits ({_COLUMNS})
    VALUES (:user_id, :rate_limit, :time_window, :algorithm, 0, clock_timestamp(), '', 1)
    ON CONFLICT (user_id) DO UPDATE SET
        rate_limit = excluded.rate_limit, time_window = excluded.time_window, algorithm = excluded.algorithm,
        current_count = 0, last_refresh_time = clock_timestamp(), slices = '', version = rate_limits.version + 1
    RETURNING last_refresh_time
    """,  # noqa: S608
    sqlite=f"""
    INSERT INTO rate_limits ({_COLUMNS})
    VALUES (:user_id, :rate_limit, :time_window, :algorithm, 0, :now, '', 1)
    ON CONFLICT (user_id) DO UPDATE SET
        rate_limit = excluded.rate_limit, time_window = excluded.time_window, algorithm = excluded.algorithm,
        current_count = 0, last_refresh_time = :now, slices = '', version = rate_limits.version + 1
    RETURNING last_refresh_time
    """,  # noqa: S608
)


class Seen(Struct, frozen=True, gc=False):
    """A limit, and the database's time when it was read."""

    limit: Limit
    now: datetime


async def read_limit(source: Reads, user_id: int, now: datetime) -> Seen | None:
    """A user's limit. `now` is for a database that has no clock of its own, which is an embedded one."""
    row = await source.fetch_one(READ, user_id=user_id, now=now)
    return None if row is None else _seen(row)


async def lock_limits(tx: Transaction, user_ids: list[int], now: datetime) -> dict[int, Seen]:
    """The limits of users, nobody else's to change until the end of the transaction; those without one are absent."""
    rows = await tx.fetch(LOCK, user_ids=user_ids, now=now)
    return {row["user_id"]: _seen(row) for row in rows}


async def keep_counts(tx: Transaction, limits: Mapping[int, Limit]) -> None:
    """Write what was counted; the limits are locked."""
    document = [_document(user_id, limit) for user_id, limit in limits.items()]
    if document:
        await tx.execute(COUNT, limits=document)


async def configure(
    tx: Transaction, user_id: int, rate_limit: int, time_window: int, algorithm: Algorithm, now: datetime
) -> datetime:
    """Set a limit; returns the time of its first window."""
    row = await tx.fetch_one(
        CONFIGURE, user_id=user_id, rate_limit=rate_limit, time_window=time_window, algorithm=algorithm, now=now
    )
    assert row is not None, "it returns what it wrote"
    refreshed: datetime = row["last_refresh_time"]
    return refreshed


def _seen(row: Row) -> Seen:
    limit = Limit(
        row["rate_limit"],
        row["time_window"],
        row["algorithm"],
        row["current_count"],
        row["last_refresh_time"],
        read_slices(row["slices"]),
        row["version"],
    )
    return Seen(limit, row["now"])


def _document(user_id: int, limit: Limit) -> dict[str, Any]:
    return {
        "user_id": user_id,
        "count": limit.current_count,
        "refreshed": (limit.last_refresh_time - _EPOCH) // _MICROSECOND,
        "slices": write_slices(limit.slices),
    }
