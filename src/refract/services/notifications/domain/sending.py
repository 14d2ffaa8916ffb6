"""What becomes of a delivery: how often it is tried, how long the pauses are, and the ways in which it can fail."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

MAX_ATTEMPTS = 10
FIRST_PAUSE = timedelta(minutes=1)
LONGEST_PAUSE = timedelta(hours=6)
JITTER = 0.2
"""Pauses differ by up to this part, so that what failed together does not come back together."""

_GROWTH = (1, 3, 9, 27, 81, 243, 729)

LONGEST_REASON = 500


class NotDelivered(Exception):
    """A delivery failed. The text is the reason, which its owner may read."""


class Refused(NotDelivered):
    """It was refused for good: the same again would be refused again."""


class Gone(Refused):
    """Whoever it is for wants nothing from us any more."""


class Postponed(NotDelivered):
    """It may work later; `at_least` is the pause that the other side asks for."""

    def __init__(self, reason: str, at_least: timedelta = timedelta()) -> None:
        super().__init__(reason)
        self.at_least = at_least


class Away(Postponed):
    """The server as a whole does not serve us: no other delivery fares better now."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Something on its way to somebody, as it is when its turn has come. `attempts` counts the one that begins."""

    id: str
    channel: str
    kind: str
    user_id: str | None
    recipient: str
    subject: str
    text: str
    html: str | None
    payload: Mapping[str, Any]
    correlation_id: str
    notification_id: str | None
    attempts: int
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Room:
    """Which deliveries find a place: so many, and of one user, or to one recipient, no more than their part."""

    places: int
    part: int
    """Of one user."""
    one_each: bool
    """To one recipient one at a time."""

    def left(self, under_way: Collection[Delivery]) -> int:
        """How many more find one."""
        return self.places - len(under_way)

    def takes(self, delivery: Delivery, under_way: Collection[Delivery]) -> bool:
        """Whether it may join these."""
        return delivery.recipient not in self.busy(under_way) and delivery.user_id not in self.served(under_way)

    def busy(self, under_way: Collection[Delivery]) -> set[str]:
        """The recipients to whom no other may go."""
        return {delivery.recipient for delivery in under_way} if self.one_each else set()

    def served(self, under_way: Collection[Delivery]) -> set[str]:
        """The users of whom no other may go."""
        users = Counter(delivery.user_id for delivery in under_way if delivery.user_id is not None)
        return {user for user, count in users.items() if count >= self.part}


def pause_after(attempts: int, chance: float, at_least: timedelta = timedelta()) -> timedelta:
    """How long to wait after so many failed attempts: 1, 3, 9 minutes … up to 6 hours, a day in all.

    `chance` is a number from 0 to 1. Who asks for a longer pause is given it, within the longest.
    """
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * _GROWTH[min(max(attempts, 1), len(_GROWTH)) - 1])
    return max(pause * (1 + JITTER * (2 * chance - 1)), min(at_least, LONGEST_PAUSE))


def reason_of(error: object) -> str:
    """A reason fit for a column and a log line: printable, on one line, and not too long."""
    text = "".join(character if character.isprintable() else " " for character in str(error))
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"
