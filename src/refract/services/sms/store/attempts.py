"""Attempts to send a message: kept once each, counted by the minute, and forgotten after their time."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from refract.runtime.ports import Transaction
from refract.runtime.statements import Statement
from refract.services.sms.domain.attempts import Attempt

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MINUTE = timedelta(minutes=1)

# Moments as microseconds since 1970, which JSON can carry; in two steps, because the product of a year far ahead would
# not be exact.
_MOMENT = "timestamptz 'epoch' + {0} / 1000000 * interval '1 second' + {0} % 1000000 * interval '1 microsecond'".format
_TEXTS = ("status", "path", "message", "reason", "correlation_id", "message_id")

ADD_ATTEMPTS = Statement(
    "add_attempts",
    "Keeps attempts, in the order of the document; returns those that were not there.",
    f"""
    INSERT INTO attempts (event_id, user_id, {", ".join(_TEXTS)}, occurred_at)
    SELECT event_id, user_id, {", ".join(_TEXTS)}, {_MOMENT("moment")}
    FROM json_to_recordset(:attempts) AS document
        (event_id uuid, user_id bigint, {", ".join(f"{name} text" for name in _TEXTS)}, moment bigint)
    ON CONFLICT (event_id) DO NOTHING RETURNING event_id
    """,  # noqa: S608  # names, not values
    sqlite=f"""
    INSERT INTO attempts (event_id, user_id, {", ".join(_TEXTS)}, occurred_at)
    SELECT value ->> 'event_id', value ->> 'user_id', {", ".join(f"value ->> '{name}'" for name in _TEXTS)},
        value ->> 'moment'
    FROM json_each(:attempts) WHERE true
    ON CONFLICT (event_id) DO NOTHING RETURNING event_id
    """,  # noqa: S608
)

_COUNTS = ("sent", "limited", "failed", "invalid")
_ADDED = ", ".join(f"{name} = attempt_minutes.{name} + excluded.{name}" for name in _COUNTS)

ADD_MINUTES = Statement(
    "add_minutes",
    "Adds attempts to the counts of users by the minute, in the order of the document.",
    f"""
    INSERT INTO attempt_minutes (user_id, minute, {", ".join(_COUNTS)})
    SELECT user_id, to_timestamp(second), {", ".join(_COUNTS)}
    FROM json_to_recordset(:minutes) AS document
        (user_id bigint, second bigint, {", ".join(f"{name} bigint" for name in _COUNTS)})
    ON CONFLICT (user_id, minute) DO UPDATE SET {_ADDED}
    """,  # noqa: S608  # names, not values
    sqlite=f"""
    INSERT INTO attempt_minutes (user_id, minute, {", ".join(_COUNTS)})
    SELECT value ->> 'user_id', (value ->> 'second') * 1000000, {", ".join(f"value ->> '{name}'" for name in _COUNTS)}
    FROM json_each(:minutes) WHERE true
    ON CONFLICT (user_id, minute) DO UPDATE SET {_ADDED}
    """,  # noqa: S608
)

_OLD_ATTEMPTS = "SELECT event_id FROM attempts WHERE status = :status AND occurred_at < :before LIMIT :batch"
FORGET_ATTEMPTS = Statement(
    "forget_attempts",
    "Removes a batch of attempts over their time; those that another process has in hand are left to it.",
    f"DELETE FROM attempts WHERE event_id = ANY(ARRAY({_OLD_ATTEMPTS} FOR UPDATE SKIP LOCKED))",  # noqa: S608
    sqlite=f"DELETE FROM attempts WHERE event_id IN ({_OLD_ATTEMPTS})",  # noqa: S608
)

_OLD_MINUTES = "FROM attempt_minutes WHERE minute < :before LIMIT :batch"
FORGET_MINUTES = Statement(
    "forget_minutes",
    "Removes a batch of counts over their time.",
    f"DELETE FROM attempt_minutes WHERE ctid = ANY(ARRAY(SELECT ctid {_OLD_MINUTES} FOR UPDATE SKIP LOCKED))",  # noqa: S608
    sqlite=f"DELETE FROM attempt_minutes WHERE (user_id, minute) IN (SELECT user_id, minute {_OLD_MINUTES})",  # noqa: S608
)


async def add_attempts(tx: Transaction, attempts: Iterable[Attempt]) -> int:
    """Keep attempts and count them, each once however often it comes; returns how many were new."""
    by_id = {attempt.event_id: attempt for attempt in attempts}
    # In one order everywhere, so that two who have the same ones wait for each other instead of deadlocking.
    rows = await tx.fetch(ADD_ATTEMPTS, attempts=[_document(by_id[event_id]) for event_id in sorted(by_id)])
    new = [by_id[row["event_id"]] for row in rows]
    minutes = _minutes(new)
    if minutes:
        await tx.execute(ADD_MINUTES, minutes=minutes)
    return len(new)


def _document(attempt: Attempt) -> dict[str, Any]:
    texts = {name: getattr(attempt, name) for name in _TEXTS}
    moment = (attempt.occurred_at - _EPOCH) // _MICROSECOND
    return {"event_id": attempt.event_id, "user_id": attempt.user_id, **texts, "moment": moment}


def _minutes(attempts: Iterable[Attempt]) -> list[dict[str, int]]:
    """What attempts add to the counts of their users; those of nobody are in no count."""
    counts: dict[tuple[int, int], Counter[str]] = {}
    for attempt in attempts:
        if attempt.user_id is not None:
            minute = (attempt.occurred_at - _EPOCH) // _MINUTE
            counts.setdefault((attempt.user_id, minute), Counter())[attempt.status] += 1
    return [
        {"user_id": user_id, "second": minute * 60, **{name: counted[name] for name in _COUNTS}}
        for (user_id, minute), counted in sorted(counts.items())
    ]
