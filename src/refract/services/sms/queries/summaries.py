"""Sums attempts up by user: how many of which kind, how often the limit was met, and when there were most."""

from datetime import datetime, timedelta
from functools import cache

from msgspec import Struct, field

from refract.kernel.clock import Clock
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.services.sms.queries.requests import STATUSES, SummaryRequest

_MINUTE = timedelta(minutes=1)
_ALL = " + ".join(STATUSES)
_SUMS = ", ".join(f"CAST(sum({status}) AS BIGINT) AS {status}" for status in STATUSES)


class UserSummary(Struct, frozen=True, kw_only=True):
    """What one user attempted. Shares and rates are rounded to six places."""

    user_id: int = field(name="userId")
    attempts: int
    sent: int
    limited: int
    failed: int
    invalid: int
    limited_share: float
    """Of all attempts those that met the limit (429)."""
    attempts_per_minute: float
    peak_minute: datetime
    """The first of the minutes with most attempts."""
    peak_attempts: int


class Summary(Struct, frozen=True, kw_only=True):
    """Users with most attempts first; the range is what was counted, in whole minutes."""

    start: datetime = field(name="from")
    end: datetime = field(name="to")
    users: list[UserSummary]


class SummaryQueries:
    """The counts of this database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def summary(self, request: SummaryRequest) -> Summary:
        """What the users attempted in a range, or the one user who is asked for."""
        rows = await self._database.fetch(
            summary_of_attempts(of_one=request.user_id is not None),
            user_id=request.user_id,
            start=request.start,
            end=request.end,
            limit=request.limit,
        )
        # Minutes that are still to come have no attempts, and would make every rate look low.
        passed = min(request.end, self._clock.now()) - request.start
        minutes = max(1.0, passed / _MINUTE)
        return Summary(start=request.start, end=request.end, users=[_view(row, minutes) for row in rows])


@cache
def summary_of_attempts(*, of_one: bool) -> Statement:
    """The statement for all users or for one."""
    whose = "user_id = :user_id AND " if of_one else ""

    def text(peak_minute: str) -> str:
        return f"""
        SELECT users.*, (
            SELECT minute FROM attempt_minutes
            WHERE attempt_minutes.user_id = users.user_id AND minute >= :start AND minute < :end
                AND {_ALL} = users.peak
            ORDER BY minute LIMIT 1
        ) AS {peak_minute}
        FROM (
            SELECT user_id, {_SUMS}, CAST(sum({_ALL}) AS BIGINT) AS attempts, max({_ALL}) AS peak FROM attempt_minutes
            WHERE {whose}minute >= :start AND minute < :end
            GROUP BY user_id ORDER BY attempts DESC, user_id LIMIT :limit
        ) AS users
        ORDER BY attempts DESC, user_id
        """  # noqa: S608  # names, not values

    return Statement(
        "summary_of_one" if of_one else "summary_of_attempts",
        "Sums up the minutes of users, those with most attempts first, and finds the fullest minute of each.",
        text("peak_minute"),
        sqlite=text('"peak_minute [TIMESTAMP]"'),
    )


def _view(row: Row, minutes: float) -> UserSummary:
    return UserSummary(
        user_id=row["user_id"],
        attempts=row["attempts"],
        sent=row["sent"],
        limited=row["limited"],
        failed=row["failed"],
        invalid=row["invalid"],
        limited_share=round(row["limited"] / row["attempts"], 6),
        attempts_per_minute=round(row["attempts"] / minutes, 6),
        peak_minute=row["peak_minute"],
        peak_attempts=row["peak"],
    )
