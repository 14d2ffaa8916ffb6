"""What the gateway needs from outside: a way to reach the services, in this process or over HTTP."""

from collections.abc import Mapping
from typing import Protocol

from refract.runtime.edge import Receive, Scope, Send


class Services(Protocol):
    """The services behind the door."""

    async def forward(self, target: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a service answer. Raises UnknownUpstream, UpstreamFailed or, where the service is not to blame,
        Overstretched: all of them only while nothing of an answer was sent.

        An answer that breaks off later is left unfinished, so that the server closes the client's connection: what
        was sent of it must not look whole.
        """

    @property
    def places(self) -> Mapping[str, str]:
        """Where each service is that can be reached, fit for a log line."""

    async def healthy(self, target: str) -> bool:
        """Whether a service answers its health check now."""

    async def fetch(self, target: str, path: str, query: Mapping[str, str]) -> bytes:
        """The body of a service's answer to a question of our own. Raises UnknownUpstream, or UpstreamFailed for
        everything but a whole answer with status 200."""

    async def close(self) -> None:
        """Give everything back."""
