"""The door of the hot path: how a request is answered inside the parser's callback, at once or when it may leave."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, in the order in which they came."""


class Admission(Protocol):
    """Counts somebody's requests, given by the hash of an address."""

    def __call__(self, who: str) -> tuple[bool, bytes]:
        """Whether one more is admitted, and the header fields, each with its line end, that say how many more are."""

    def all_of(self, who: str, count: int) -> int | None:
        """Count so many at once if all of them are admitted: how many more would be after them. None counts none."""

    def fields(self, remaining: int) -> bytes:
        """What is said to somebody who is admitted and has so many left."""


class HeldAnswer(Struct, eq=False, gc=False):
    """An answer that leaves later, for example once its click is committed.

    The answers of a connection keep the order of its requests: one that is released early waits for those before it,
    and whatever stands behind an unreleased one waits too. The garbage collector need not look at them: the circle
    through the connection is broken when the answer leaves or the client does.
    """

    payload: bytes | None = None
    closes: bool = False
    deliver: "Callable[[HeldAnswer], None] | None" = None
    """For the connection: where a release is reported, or None when nobody waits for it any more."""

    def release(self, payload: bytes) -> None:
        """Let the answer go. If the client has gone meanwhile, nothing happens."""
        self.payload = payload
        if self.deliver is not None:
            self.deliver(self)

    def abandon(self, status: int) -> None:  # noqa: ARG002  # those who override it may want to know
        """Nobody waits for it any more: the client has gone, or was given this status instead."""
        self.deliver = None


class PassedOn(HeldAnswer, kw_only=True, eq=False):
    """An answer that somebody else is asked for. One that does not come whole is for an application to finish."""

    method: bytes
    target: bytes
    headers: Headers
    ended_with: int = 0
    """The status with which it was abandoned, if it was."""
    application: Any = None

    def hand_over(self, application: Any) -> None:
        """Let this application give the answer, in the same place and with the time that is left."""
        self.application = application
        if self.deliver is not None:
            self.deliver(self)

    def abandon(self, status: int) -> None:
        """Nobody waits for it any more."""
        self.ended_with = status
        self.deliver = None


class FastPath(ABC):
    """Answers the requests it knows, and leaves all others to the application.

    It sees requests without a body, an upgrade or an expectation. It runs inside the parser: it must not block, and
    what it raises is logged and sends the request to the application. An answer is a whole response with its length and
    its date and without a `connection` field, which is added where the connection ends; to HEAD it has no body.
    """

    @abstractmethod
    def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> bytes | HeldAnswer | None:
        """Bytes to answer now, a HeldAnswer to answer later, None to let the application answer.

        `peer` is the address at the other end of the connection, which may be a proxy's.
        """

    def remember(self, headers: Headers, peer: str) -> object | None:  # noqa: ARG002  # for those who override it
        """What follows from the header fields alone, for requests of the same connection that repeat them to the byte;
        None where nothing does."""
        return None

    def answer_again(self, target: bytes, remembered: object) -> bytes | HeldAnswer | None:  # noqa: ARG002
        """Answer a GET with remembered fields. Nobody has looked at the target: what is not known for sure is None."""
        return None

    def pass_on(self, method: bytes, target: bytes, headers: Headers, peer: str) -> PassedOn | None:  # noqa: ARG002
        """Ask somebody else for an answer that `__call__` does not have; None where it has to be the application.

        Only for a request that has its connection to itself, and leaves it open: what was asked before is answered, and
        so the order in which requests reach others is the order in which they came.
        """
        return None

    def pass_on_again(self, target: bytes, remembered: object) -> PassedOn | None:  # noqa: ARG002
        """The same for a GET with remembered fields that `answer_again` has no answer to."""
        return None
