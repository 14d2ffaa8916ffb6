"""The door of the hot path: how a request is answered inside the parser's callback, at once or when it may leave."""

from collections.abc import Callable
from typing import Protocol

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, in the order in which they came."""


class HeldAnswer:
    """An answer that leaves later, for example once its click is committed.

    The answers of a connection keep the order of its requests: one that is released early waits for those before it,
    and whatever stands behind an unreleased one waits too.
    """

    __slots__ = ("_deliver", "closes", "payload")

    def __init__(self) -> None:
        self.payload: bytes | None = None
        self.closes = False
        self._deliver: Callable[[HeldAnswer], None] | None = None

    def release(self, payload: bytes) -> None:
        """Let the answer go. If the client has gone meanwhile, nothing happens."""
        self.payload = payload
        if self._deliver is not None:
            self._deliver(self)

    def attach(self, deliver: Callable[["HeldAnswer"], None] | None) -> None:
        """For the connection: where a release is reported, or None when nobody waits for it any more."""
        self._deliver = deliver


class FastPath(Protocol):
    """Answers the requests it knows, and leaves all others to the application.

    It sees requests without a body, an upgrade or an expectation. It runs inside the parser: it must not block, and
    what it raises is logged and sends the request to the application. An answer is a whole response with its length and
    its date and without a `connection` field, which is added where the connection ends; to HEAD it has no body.
    """

    def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> bytes | HeldAnswer | None:
        """Bytes to answer now, a HeldAnswer to answer later, None to let the application answer.

        `peer` is the address at the other end of the connection, which may be a proxy's.
        """
