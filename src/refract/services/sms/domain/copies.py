"""The copy of a limit that Redis holds: it may refuse before PostgreSQL is asked, and never admits by itself."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from refract.runtime.transitions import Fields, Transition
from refract.services.sms.domain.limits import Limit, at_moment, forgets_at

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_MILLISECOND = timedelta(milliseconds=1)

UNKNOWN = 0
"""In the place of a moment: only the database can tell it."""
APART = 1_000
"""Milliseconds that processes may differ in what they know of the database's time."""


def key_of(user_id: int) -> str:
    """Where the copy of a user's limit is (document 003)."""
    return f"RateLimiterCache:{user_id}"


def in_milliseconds(moment: datetime) -> int:
    """Since 1970, rounded up: what is over then, is."""
    return -((_EPOCH - moment) // _MILLISECOND)


class Copy(Struct, frozen=True, gc=False):
    """What is written to Redis, and for how many seconds."""

    fields: dict[str, str | int]
    seconds: float


def copy_of(limit: Limit, now: datetime) -> Copy:
    """The copy of a limit as it stands now, with the document's time to live.

    `resetsAt` says when a full copy is out of date, which is known if what will be forgotten first is counted already:
    of a fixed window that has begun, and of a sliding one that is full. `madeAt` tells a copy from before the clock was
    set back, which would refuse until the clock is there again.
    """
    standing = at_moment(limit, now)
    resets_at = forgets_at(standing, now)
    if limit.algorithm == "sliding":
        known, seconds = not standing.room, (resets_at - now).total_seconds()
    else:
        known = standing.last_refresh_time == limit.last_refresh_time
        seconds = 60 * (limit.time_window - (now - standing.last_refresh_time) // _MINUTE)
    return Copy(
        {
            "rateLimit": standing.rate_limit,
            "currentCount": standing.current_count,
            "resetsAt": in_milliseconds(resets_at) if known else UNKNOWN,
            "madeAt": in_milliseconds(now),
        },
        max(0.001, seconds),
    )


def _take(fields: Fields, arguments: Sequence[str]) -> str:
    (now,) = arguments
    numbers = [fields.get(name, "") for name in ("rateLimit", "currentCount", "resetsAt", "madeAt")]
    if not all(number.isdecimal() for number in numbers):
        return "absent"
    rate_limit, count, resets_at, made_at = numbers
    if int(resets_at) != UNKNOWN and int(resets_at) <= int(now):
        return "absent"
    if int(made_at) > int(now) + APART:
        return "absent"
    if int(count) < int(rate_limit):
        fields["currentCount"] = str(int(count) + 1)
        return "taken"
    return "unsure" if int(resets_at) == UNKNOWN else f"refused {resets_at}"


TAKE = Transition(
    name="take a slot",
    lua=f"""
        local found = redis.call('HMGET', KEYS[1], 'rateLimit', 'currentCount', 'resetsAt', 'madeAt')
        for index = 1, 4 do
            if not found[index] or not string.find(found[index], '^%d+$') then return 'absent' end
        end
        local resets = tonumber(found[3])
        if resets ~= 0 and resets <= tonumber(ARGV[1]) then return 'absent' end
        if tonumber(found[4]) > tonumber(ARGV[1]) + {APART} then return 'absent' end
        if tonumber(found[2]) < tonumber(found[1]) then
            redis.call('HINCRBY', KEYS[1], 'currentCount', 1)
            return 'taken'
        end
        if resets == 0 then return 'unsure' end
        return 'refused ' .. found[3]
    """,
    python=_take,
)
"""Count a send in the copy, if it fits. Argument: the database's time in milliseconds.

Says `taken`; `refused` with the moment from which on it is worth asking again; `unsure` when the copy is full and does
not know that moment; `absent` when there is no copy, or one that is out of date or of a time to come.
"""
