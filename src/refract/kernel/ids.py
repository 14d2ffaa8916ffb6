"""Ids: snowflakes for rows, base62 for codes, UUIDs for events and correlation."""

import threading
from datetime import UTC, datetime

import uuid_utils

from refract.kernel.clock import Clock, SystemClock

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_VALUE_OF = {character: value for value, character in enumerate(ALPHABET)}

EPOCH_MILLISECONDS = 1_704_067_200_000  # 2024-01-01T00:00:00Z
WORKER_BITS = 10
SEQUENCE_BITS = 12
MAX_WORKER = (1 << WORKER_BITS) - 1
MAX_SEQUENCE = (1 << SEQUENCE_BITS) - 1
MAX_AGE_MILLISECONDS = (1 << 41) - 1


def encode_base62(number: int) -> str:
    """Write a number of at least 0 in base62, digits before lower case before upper case."""
    if number < 0:
        raise ValueError(f"base62 has no negative numbers: {number}")
    if number == 0:
        return ALPHABET[0]
    digits = []
    while number:
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def decode_base62(text: str) -> int:
    """Read a number back; empty text and characters outside the alphabet are a ValueError."""
    if not text:
        raise ValueError("base62 text is empty")
    number = 0
    for character in text:
        value = _VALUE_OF.get(character)
        if value is None:
            raise ValueError(f"{character!r} is not a base62 digit")
        number = number * 62 + value
    return number


class Snowflakes:
    """Makes 63-bit ids that grow with time: 41 bits of milliseconds, 10 of worker, 12 of sequence.

    Safe to call from several threads. When the clock steps back, ids go on from the last millisecond used rather than
    repeat one; when a millisecond is used up, they borrow the next, so that a caller never waits.
    """

    def __init__(self, worker: int, clock: Clock | None = None) -> None:
        if not 0 <= worker <= MAX_WORKER:
            raise ValueError(f"a snowflake worker is a number from 0 to {MAX_WORKER}, not {worker}")
        self._worker = worker
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._age = -1
        self._sequence = 0

    def next(self) -> int:
        """The next id, greater than every id this object has made."""
        with self._lock:
            age, sequence = self._clock.milliseconds() - EPOCH_MILLISECONDS, 0
            if age <= self._age:
                age, sequence = self._age, self._sequence + 1
            if sequence > MAX_SEQUENCE:
                age, sequence = age + 1, 0
            if not 0 <= age <= MAX_AGE_MILLISECONDS:
                raise ValueError("the clock is outside the 69 years that snowflakes cover, which began in 2024")
            self._age, self._sequence = age, sequence
            return (age << (WORKER_BITS + SEQUENCE_BITS)) | (self._worker << SEQUENCE_BITS) | sequence


def snowflake_moment(snowflake: int) -> datetime:
    """When a snowflake was made, to the millisecond."""
    milliseconds = (snowflake >> (WORKER_BITS + SEQUENCE_BITS)) + EPOCH_MILLISECONDS
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def snowflake_worker(snowflake: int) -> int:
    """Which worker made a snowflake."""
    return (snowflake >> SEQUENCE_BITS) & MAX_WORKER


_LAST_BITS = (1 << 48) - 1


def new_event_id() -> str:
    """A UUID for a link event. Version 7: ids made together lie together in the readers' indexes (ADR 0004)."""
    return str(uuid_utils.uuid7())


def new_event_ids(count: int) -> list[bytes]:
    """As many, which differ in their last 48 bits alone: one that is made by itself costs as much as ten of these.

    The first of those bits are random as well, so that two batches of the same millisecond do not meet.
    """
    first = uuid_utils.uuid7()
    prefix = str(first)[:24].encode()
    start = first.int & _LAST_BITS
    return [b"%b%012x" % (prefix, number & _LAST_BITS) for number in range(start, start + count)]


def new_platform_event_id() -> str:
    """The same with the prefix of the platform family's envelope."""
    return f"evt_{uuid_utils.uuid7()}"


def new_correlation_id() -> str:
    """A random UUID for a request that came without a correlation id."""
    return str(uuid_utils.uuid4())
