"""What the gateway needs from outside: a way to reach the services, in this process or over HTTP."""

from collections.abc import Mapping
from typing import Protocol

from refract.runtime.edge import Receive, Scope, Send
from refract.services.gateway.domain.headers import Header


class Asker(Protocol):
    """Whoever sends something out without waiting for it."""

    ended_with: int
    """Not 0 when nobody wants the answer any more."""

    def heard(self) -> None:
        """Called whenever something has happened to the errand. It runs inside a parser, and must not raise."""


class Errand(Protocol):
    """A request that was sent to a service, and what is known of its answer."""

    status: int
    headers: list[Header]
    error: Exception | None
    """What ended it before its time."""
    whole: bool
    """Whether all of the answer is here."""

    def take(self) -> bytes:
        """The body of an answer that is whole; the errand is over."""

    def give_up(self) -> None:
        """Nobody wants the answer."""


class Services(Protocol):
    """The services behind the door."""

    async def forward(self, target: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a service answer. Raises UnknownUpstream, UpstreamFailed or, where the service is not to blame,
        Overstretched: all of them only while nothing of an answer was sent.

        An answer that breaks off later is left unfinished, so that the server closes the client's connection: what
        was sent of it must not look whole.
        """

    def send_out(self, target: str, method: bytes, path: bytes, lines: bytes, asker: Asker) -> Errand | None:
        """For the hot path: send a request without a body, whose fields are these lines, if that can be done at once;
        None where only `forward` will do. The asker hears of it until it takes the answer, gives it up or finishes it.
        """

    async def finish(self, errand: Errand, scope: Scope, receive: Receive, send: Send) -> None:
        """Go on with what was sent out as `forward` would. Raises the same."""

    @property
    def places(self) -> Mapping[str, str]:
        """Where each service is that can be reached, fit for a log line."""

    async def healthy(self, target: str) -> bool:
        """Whether a service answers its health check now."""

    async def fetch(self, target: str, path: str, query: Mapping[str, str]) -> bytes:
        """The body of a service's answer to a question of our own. Raises UnknownUpstream, or UpstreamFailed for
        everything but a whole answer with status 200."""

    async def post(self, target: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Say something of our own to a service, in JSON, which it may hear twice: the status and the body of its
        answer. Raises UnknownUpstream, UpstreamFailed where no whole answer came, or Overstretched where the service
        is not to blame."""

    async def close(self) -> None:
        """Give everything back."""
