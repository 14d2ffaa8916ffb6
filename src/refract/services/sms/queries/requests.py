"""What a client asks of the audit, as it stands in the URL."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Self, get_args

import msgspec

from refract.kernel.errors import Invalid
from refract.runtime.paging import DEFAULT_LIMIT, NEWEST, MomentCursor, read_limit
from refract.services.sms.domain.attempt_events import EARLIEST, LATEST
from refract.services.sms.domain.attempts import Status
from refract.services.sms.domain.limits import LARGEST_NUMBER

STATUSES: tuple[Status, ...] = get_args(Status)

LONGEST_RANGE = timedelta(days=1)
LONGEST_OF_ONE = timedelta(days=366)
"""What a summary may go over: of all users together, and of one alone. Each user has a row a minute."""

_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})", re.ASCII)
_NUMBER = re.compile(r"\d{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which attempts a page shows."""

    user_id: int | None = None
    status: Status | None = None
    start: datetime = EARLIEST
    end: datetime = LATEST
    cursor: MomentCursor = NEWEST
    limit: int = DEFAULT_LIMIT

    @classmethod
    def read(
        cls,
        *,
        user_id: str = "",
        status: str = "",
        start: str = "",
        end: str = "",
        limit: str = "",
        after: str = "",
    ) -> Self:
        """The parameters; raises Invalid where one is wrong."""
        if status and status not in STATUSES:
            raise Invalid(f"status must be one of {', '.join(STATUSES)}")
        since = read_moment("from", start) if start else EARLIEST
        until = read_moment("to", end, next_day=True) if end else LATEST
        if since >= until:
            raise Invalid("from must be before to")
        return cls(
            user_id=read_user_id(user_id) if user_id else None,
            status=status or None,
            start=since,
            end=until,
            cursor=MomentCursor.read(after),
            limit=read_limit(limit),
        )


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """Whose attempts are summed up, and over which minutes: every one that the range touches."""

    user_id: int | None
    start: datetime
    end: datetime
    limit: int = DEFAULT_LIMIT

    @classmethod
    def read(cls, now: datetime, *, user_id: str = "", start: str = "", end: str = "", limit: str = "") -> Self:
        """The parameters, by default the last 24 hours; raises Invalid where one is wrong or they ask for too much."""
        until = read_moment("to", end, next_day=True) if end else now
        since = read_moment("from", start) if start else until - _DAY
        if since >= until:
            raise Invalid("from must be before to")
        whom = read_user_id(user_id) if user_id else None
        if until - since > (LONGEST_RANGE if whom is None else LONGEST_OF_ONE):
            raise Invalid("the range is too long")
        first = _EPOCH + (since - _EPOCH) // _MINUTE * _MINUTE
        last = _EPOCH - (_EPOCH - until) // _MINUTE * _MINUTE
        return cls(user_id=whom, start=first, end=last, limit=read_limit(limit))


def read_user_id(text: str) -> int:
    """A user's number: digits, and no more than 32 bits have."""
    if _NUMBER.fullmatch(text) is None or int(text) > LARGEST_NUMBER:
        raise Invalid(f"userId must be a number from 0 to {LARGEST_NUMBER}")
    return int(text)


def read_moment(name: str, text: str, *, next_day: bool = False) -> datetime:
    """A moment, or a date of UTC: then it is the beginning of the day, or with `next_day` its end."""
    try:
        if _DATE.fullmatch(text) is not None:
            day = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
            if EARLIEST <= day < LATEST:
                return day + _DAY if next_day else day
        elif _MOMENT.fullmatch(text.replace(" ", "+")) is not None:  # what `+` means in a URL
            moment = msgspec.convert(text.replace(" ", "+"), datetime).astimezone(UTC)
            if EARLIEST <= moment < LATEST:
                return moment
    except (ValueError, OverflowError):  # the 31st of February
        pass
    raise Invalid(f"{name} must be a date such as 2026-03-01, or a moment such as 2026-03-01T12:00:00Z")
