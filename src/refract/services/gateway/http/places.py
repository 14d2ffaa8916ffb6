"""How many requests are with each target at once: beyond that, another one is better refused than queued."""

import asyncio

from refract.runtime.edge import Message, Receive
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
        """Of so many the beginning is here, and perhaps with the target, and the rest is up to the client."""

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

    def arrive(self, route: Route) -> None:
        """A request that was let through a moment ago begins at once."""
        self._expected[route.target] -= 1
        self.take(route)

    def take(self, route: Route) -> None:
        """A request begins. Whoever takes a place gives it back."""
        if not route.streams:
            self._taken[route.target] = self._taken.get(route.target, 0) + 1

    def give_back(self, route: Route) -> None:
        """It has been answered, or is given up."""
        if not route.streams:
            self._taken[route.target] -= 1

    def begin_half(self, route: Route) -> None:
        """A part of a request is here. As many may be in the middle as there are places, beside these; raises Busy."""
        half_sent = self._half_sent.get(route.target, 0)
        if half_sent >= self._capacity:
            raise Busy
        self._half_sent[route.target] = half_sent + 1

    def end_half(self, route: Route) -> None:
        """The rest of it has come, or none will."""
        self._half_sent[route.target] -= 1


class Place:
    """The place of one request. A body comes when its client likes: only who has said everything takes a place."""

    __slots__ = ("_is_half_sent", "_is_over", "_is_taken", "_places", "_route")

    def __init__(self, places: Places, route: Route) -> None:
        self._places = places
        self._route = route
        self._is_taken = self._is_half_sent = self._is_over = False

    def look_for(self) -> None:
        """Raise Busy where there is none: who would be refused later may as well be refused now."""
        if self._places.is_full(self._route):
            raise Busy

    def take(self) -> None:
        """Begin; raises Busy."""
        self.look_for()
        self._places.take(self._route)
        self._is_taken = True

    def leave(self) -> None:
        """It is over. Whoever still reads the body of the request takes no place for it any more."""
        self._is_over = True
        self._end_half()
        if self._is_taken:
            self._is_taken = False
            self._places.give_back(self._route)

    async def begun(self, receive: Receive) -> Receive | None:
        """Wait for the first piece of a body; from then on it is received here. None: the client has gone.

        Nobody else waits with us. The place is taken with the last piece, and where there is none, that raises Busy.
        """
        first: Message = await receive()
        if first["type"] == "http.disconnect":
            return None
        whole, here = self._note(first), [first]

        async def receive_next() -> Message:
            nonlocal whole
            if here:
                return here.pop()
            message: Message = await receive()
            if not whole and not self._is_over and message["type"] == "http.request":
                whole = self._note(message)
            return message

        return receive_next

    def _note(self, piece: Message) -> bool:
        """One more piece of the body is here: whether it was the last."""
        if piece.get("more_body", False):
            if not self._is_half_sent:
                self._places.begin_half(self._route)
                self._is_half_sent = True
            return False
        self._end_half()
        self.take()
        return True

    def _end_half(self) -> None:
        if self._is_half_sent:
            self._is_half_sent = False
            self._places.end_half(self._route)
