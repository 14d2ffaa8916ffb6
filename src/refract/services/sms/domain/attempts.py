"""What became of a request to send: the record that the audit keeps of each."""

from datetime import datetime
from typing import Literal, Protocol

from msgspec import Struct

Status = Literal["sent", "limited", "failed", "invalid"]
Path = Literal["redis", "row-lock", "none"]
"""By which way it was counted; `none` if it never came to counting."""


class Attempt(Struct, frozen=True, gc=False):
    """One request to send and what became of it. Of an invalid one we know as much as could be read."""

    event_id: str
    user_id: int | None
    status: Status
    path: Path
    message: str
    reason: str
    """Why it was not sent, in the words of the answer; `repeated` if an earlier request had sent it, else empty."""
    correlation_id: str
    occurred_at: datetime
    message_id: str
    """That of the record in the log; empty where it never came to one."""


class Attempts(Protocol):
    """Who is told of every attempt."""

    def note(self, attempt: Attempt) -> None:
        """Keep it. Never waits and never raises: nobody's request hangs on the audit."""
