"""When a digest is due and what it says."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from refract.services.notifications.domain.preferences import Digest

HOUR = 8
"""Of the day, in UTC; a week's digest comes on Monday."""

MOST_LINES = 50

_PERIODS = {Digest.DAILY: "Your day", Digest.WEEKLY: "Your week", Digest.OFF: "Your links"}
_KINDS = {
    # What matters most comes first.
    "milestone.reached": ("milestone", "milestones"),
    "webhook.disabled": ("webhook switched off", "webhooks switched off"),
    "url.created": ("new link", "new links"),
    "url.deleted": ("deleted link", "deleted links"),
}
_OTHERS = ("other", "others")


@dataclass(frozen=True, slots=True)
class Line:
    """A notification in a digest."""

    event_type: str
    title: str


def next_digest(every: Digest, now: datetime) -> datetime:
    """The first moment after `now` at which one is due."""
    due = now.replace(hour=HOUR, minute=0, second=0, microsecond=0)
    if due <= now:
        due += timedelta(days=1)
    if every is Digest.WEEKLY:
        due += timedelta(days=-due.weekday() % 7)
    return due


def digest_subject(every: Digest, lines: Sequence[Line]) -> str:
    """What happened, in one line."""
    counts = Counter(line.event_type if line.event_type in _KINDS else "" for line in lines)
    parts = []
    for kind, (one, many) in (*_KINDS.items(), ("", _OTHERS)):
        if count := counts[kind]:
            parts.append(f"{count:,} {one if count == 1 else many}")
    return f"{_PERIODS[every]}: {', '.join(parts)}"


def digest_lines(lines: Sequence[Line]) -> list[str]:
    """The titles, what matters most first, and how many are left out."""
    order = {kind: place for place, kind in enumerate(_KINDS)}
    titles = [line.title for line in sorted(lines, key=lambda line: order.get(line.event_type, len(order)))]
    left_out = len(titles) - MOST_LINES
    return titles if left_out <= 0 else [*titles[:MOST_LINES], f"… and {left_out:,} more"]
