"""How many requests are with each target at once: beyond that, another one is better refused than queued."""

import asyncio
from typing import Any

from refract.runtime.edge import Receive
from refract.services.gateway.api import Route
from refract.services.gateway.http.refusing import Busy

CAPACITY = 512
"""Many more than a target handles at once, and few enough that their turn comes within fractions of a second."""


class Places:
    """Requests in flight, by target: one that hangs takes no places from the others."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._taken: dict[str, int] = {}
        self._expected: dict[str, int] = {}
        """Let through by the parser in this turn of the event loop: they take their places in the next."""
        self._half_sent: dict[str, int] = {}
        """Of so many a target has the beginning, and waits as we do for a client to send the rest."""

    def is_full(self, route: Route) -> bool:
        """Whether there is no place for another request of this row."""
        return self._taken.get(route.target, 0) >= self._capacity and not route.streams

    def are_spoken_for(self, route: Route) -> bool:
        """The same for a request that is still in the parser, after others that were let through a moment ago."""
        expected = self._expected.get(route.target, 0)
        return self._taken.get(route.target, 0) + expected >= self._capacity and not route.streams

    def expect(self, route: Route) -> None:
        """A request was let through by the parser."""
        if route.streams:
            return
        if not self._expected:
            # Before any of those who are expected: their tasks begin behind this.
            asyncio.get_running_loop().call_soon(self._expected.clear)
        self._expected[route.target] = self._expected.get(route.target, 0) + 1

    def take(self, route: Route) -> None:
        """A request begins. Whoever takes a place gives it back."""
        if not route.streams:
            self._taken[route.target] = self._taken.get(route.target, 0) + 1

    def give_back(self, route: Route) -> None:
        """It has been answered, or is given up."""
        if not route.streams:
            self._taken[route.target] -= 1

    def begin_waiting(self, route: Route) -> None:
        """The rest of a request is waited for. As many may be as there are places, beside these; raises Busy."""
        waiting = self._half_sent.get(route.target, 0)
        if waiting >= self._capacity:
            raise Busy
        self._half_sent[route.target] = waiting + 1

    def stop_waiting(self, route: Route) -> None:
        """A part of it has come, or none will."""
        self._half_sent[route.target] -= 1


class Place:
    """The place of one request. It is lent while the client keeps us waiting: to withhold a body must cost nobody."""

    __slots__ = ("_is_over", "_is_taken", "_places", "_route")

    def __init__(self, places: Places, route: Route) -> None:
        self._places = places
        self._route = route
        self._is_taken = self._is_over = False

    def take(self) -> None:
        """Begin, or go on; raises Busy."""
        if self._places.is_full(self._route):
            raise Busy
        self._places.take(self._route)
        self._is_taken = True

    def leave(self) -> None:
        """It is over. Whoever still reads the body of the request takes no place for it any more."""
        self._is_over = True
        self._lend()

    def lent_to_wait(self, receive: Receive) -> Receive:
        """Receive a request with a body. When a part of it comes and there is no place any more, this raises Busy."""
        begun = whole = False

        async def receive_next() -> Any:
            nonlocal begun, whole
            if whole:
                return await receive()  # until the client goes away, while the target is at work
            self._lend()
            message = await (self._rest(receive) if begun else receive())
            begun, whole = True, not message.get("more_body", False)
            if message["type"] == "http.request" and not self._is_over:
                self.take()
            return message

        return receive_next

    async def _rest(self, receive: Receive) -> Any:
        self._places.begin_waiting(self._route)
        try:
            return await receive()
        finally:
            self._places.stop_waiting(self._route)

    def _lend(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._places.give_back(self._route)
