"""How many requests are with each target at once: beyond that, another one is better refused than queued."""

import asyncio

from refract.services.gateway.api import Route

CAPACITY = 512
"""Many more than a target handles at once, and few enough that their turn comes within fractions of a second."""


class Places:
    """Requests in flight, by target: one that hangs takes no places from the others."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._taken: dict[str, int] = {}
        self._expected: dict[str, int] = {}
        """Let through by the parser in this turn of the event loop: they take their places in the next."""

    def is_full(self, route: Route) -> bool:
        """Whether there is no place for another request of this row."""
        return self._taken.get(route.target, 0) >= self._capacity and not route.streams

    def are_spoken_for(self, route: Route) -> bool:
        """The same for a request that is still in the parser, after others that were let through a moment ago."""
        expected = self._expected.get(route.target, 0)
        return self._taken.get(route.target, 0) + expected >= self._capacity and not route.streams

    def expect(self, route: Route) -> None:
        """A request was let through by the parser."""
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
