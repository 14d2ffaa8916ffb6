"""Requests that are sent out without a task to wait for them: most are answered whole before one would have begun."""

import asyncio

from refract.runtime.edge import Receive, Scope
from refract.services.gateway.adapters.connections import Connection
from refract.services.gateway.adapters.exchanges import ClientLeft, Exchange
from refract.services.gateway.ports import Asker


async def _nobody() -> None:
    """Stands in for a client that is not asked anything."""


class Errand(Exchange):
    """An exchange whose asker is told of everything that happens, until he ends it or lets somebody wait for it."""

    __slots__ = ("_asker", "_connection", "_under_way", "method", "request", "target")

    def __init__(
        self,
        asker: Asker,
        connection: Connection,
        target: str,
        method: bytes,
        request: bytes,
        under_way: set[Exchange],
    ) -> None:
        super().__init__({}, _nobody, to_head=method == b"HEAD", sent=True)
        self._asker: Asker | None = asker
        self._connection = connection
        self._under_way = under_way
        self.target = target
        self.method = method
        self.request = request

    def wake(self) -> None:
        """Something has happened."""
        if self._asker is None:
            super().wake()
        else:
            self._asker.heard()

    def check(self, now: float, loop: asyncio.AbstractEventLoop) -> None:
        """Called once in a while."""
        if self._asker is None:
            super().check(now, loop)
        elif self._asker.ended_with:
            self.fail(ClientLeft())
        elif now >= self.deadline:
            self.fail(TimeoutError())

    def take(self) -> bytes:
        """The body of an answer that is whole; the errand is over, and its connection free."""
        body = self._connection.collect(self)
        self.give_up()
        return body

    def give_up(self) -> None:
        """Nobody wants the answer, or more of it."""
        self._asker = None
        self._under_way.discard(self)
        self._connection.let_go(self)

    def go_on(self, scope: Scope, receive: Receive) -> Connection:
        """From now on it is waited for, like any other: the connection that was asked."""
        self._asker = None
        self._scope = scope
        self._receive = receive
        return self._connection
