"""Watermarks and stale marks: how those who write clicks and those who fold periods keep out of each other's way.

Whoever writes clicks holds the watermarks still until its commit, together with all others who do. Folding moves them
when it has them alone: then nobody is on the way who still goes by the old ones, and whoever comes later marks what it
changes. So a click that lands in a folded period is in its row, or the period is marked; there is no third case.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from refract.runtime.statements import Statement

_LOCK = 0x706572696F6473  # "periods" in ASCII; a lock belongs to one database

HOLD_PERIODS = Statement(
    "hold_periods",
    "Keeps the watermarks where they are until the end of this transaction; many may do so at once.",
    f"SELECT pg_advisory_xact_lock_shared({_LOCK})",
    # One transaction after the other writes to the file.
    sqlite="SELECT 1",
)

TAKE_PERIODS = Statement(
    "take_periods",
    "Waits until nobody holds the watermarks, and keeps everybody off them until the end of this transaction.",
    # A lock of the lock manager, which is fair: a lock of the row could be held by one writer after the other for ever.
    f"SELECT pg_advisory_xact_lock({_LOCK})",
    sqlite="SELECT 1",
)

BE_BRIEF = Statement(
    "be_brief",
    "Gives up soon where a lock of the schema or of the watermarks cannot be had: all others would wait behind us.",
    "SELECT set_config('lock_timeout', '1s', true)",
    sqlite="SELECT 1",
)

READ_WATERMARKS = Statement(
    "read_watermarks",
    "How far periods are closed, folded and expired; after HOLD_PERIODS, so that it sees what the lock keeps still.",
    "SELECT span, closed, until, expired FROM folding",
)

MARK_STALE = Statement(
    "mark_stale",
    "Says that a folded period has to be folded again.",
    "INSERT INTO stale (short_code, span, starts_at, mark) VALUES (:short_code, :span, :starts_at, :mark)",
)


def stale_marks(periods: Iterable[tuple[str, int, datetime]], mark: str) -> list[Mapping[str, Any]]:
    """The rows of MARK_STALE for periods that one transaction changes; `mark` is a new id for each transaction.

    Marks are only added, so that nobody waits for anybody; folding removes those it saw before it read what to fold.
    """
    return [
        {"short_code": short_code, "span": span, "starts_at": starts_at, "mark": mark}
        for short_code, span, starts_at in sorted(set(periods))
    ]
