"""The breaker of a target: closed, open, half-open, and which results count in which of them."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from refract.kernel.clock import Clock
from refract.kernel.errors import Kind, RefractError


class State(Enum):
    """What a breaker does with requests; the numbers are those of the metric."""

    CLOSED = 0
    OPEN = 1
    HALF_OPEN = 2


class CircuitOpen(RefractError):
    """The target failed too often: it is left alone, and asked again in `retry_after` seconds."""

    kind: ClassVar[Kind] = Kind.UNAVAILABLE
    message = "service unavailable"

    def __init__(self, retry_after: float) -> None:
        super().__init__()
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a breaker opens, and for how long; times in seconds, figures of M5."""

    failures: int = 5
    """So many in a row open it."""
    window: float = 10.0
    """A failure that comes later than this after the one before begins a new row."""
    pause: float = 30.0
    """How long it stays open before a request may probe the target."""
    probe: float = 30.0
    """How long a probe keeps the others out; one that hangs gives its place to the next request."""


Change = Callable[[State], None]


class Breaker:
    """The state machine, without input or output and for one thread.

    Whoever is let through gets a ticket and hands it in with the result. A ticket is good until the state changes or
    another probe takes its place: results that began before that say nothing about the target as it is now.
    """

    def __init__(self, policy: BreakerPolicy, clock: Clock, on_change: Change | None = None) -> None:
        """`on_change` is told each new state."""
        self._policy = policy
        self._clock = clock
        self._on_change = on_change
        self._state = State.CLOSED
        self._ticket = 1
        self._failures = 0
        self._failed_at = 0.0
        self._opened_at = 0.0
        self._probing_since: float | None = None

    @property
    def state(self) -> State:
        """The state as the last request or result left it: time alone changes nothing."""
        return self._state

    def allow(self) -> int | None:
        """A ticket for one request, or None where it must not reach the target."""
        if self._state is State.CLOSED:
            return self._ticket
        now = self._clock.monotonic()
        if self._wait(now) > 0:
            return None
        if self._state is State.OPEN:
            self._change(State.HALF_OPEN)
        else:
            self._ticket += 1  # the last probe hangs or came to nothing, and its result will be too late
        self._probing_since = now
        return self._ticket

    def succeeded(self, ticket: int) -> bool:
        """The target did its work. Says whether that counted."""
        if ticket != self._ticket:
            return False
        self._failures = 0
        if self._state is State.HALF_OPEN:
            self._change(State.CLOSED)
        return True

    def failed(self, ticket: int) -> bool:
        """The target answered with a 5xx, or not at all. Says whether that counted."""
        if ticket != self._ticket:
            return False
        now = self._clock.monotonic()
        in_a_row = self._failures > 0 and now - self._failed_at <= self._policy.window
        self._failures = self._failures + 1 if in_a_row else 1
        self._failed_at = now
        if self._state is State.HALF_OPEN or self._failures >= self._policy.failures:
            self._opened_at = now
            self._change(State.OPEN)
        return True

    def undecided(self, ticket: int) -> None:
        """Nobody knows, because the client left or keeps us waiting: if this was the probe, the next request is."""
        if ticket == self._ticket:
            self._probing_since = None

    def go_on(self, ticket: int) -> int | None:
        """A ticket for a probe that was undecided for a while; None where another one has taken its place."""
        if self._state is State.HALF_OPEN and ticket == self._ticket:
            self._probing_since = self._clock.monotonic()
            return ticket
        return self.allow()

    def retry_after(self) -> float:
        """Seconds until a request may be let through."""
        return 0.0 if self._state is State.CLOSED else max(0.0, self._wait(self._clock.monotonic()))

    def _wait(self, now: float) -> float:
        if self._state is State.OPEN:
            return self._opened_at + self._policy.pause - now
        if self._probing_since is None:
            return 0.0
        return self._probing_since + self._policy.probe - now

    def _change(self, state: State) -> None:
        self._state = state
        self._ticket += 1
        self._probing_since = None
        if self._on_change is not None:
            self._on_change(state)
