"""Reaches services that live in this process: a request is a call of their application, without a socket."""

from collections.abc import Mapping

from refract.runtime.edge import Application, Receive, Scope, Send
from refract.services.gateway.domain.headers import UnknownUpstream


class InProcess:
    """The services of embedded mode, by name."""

    def __init__(self, applications: Mapping[str, Application]) -> None:
        self._applications = applications

    async def forward(self, target: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the service's application; it reads the client's body and writes the client's answer itself."""
        application = self._applications.get(target)
        if application is None:
            raise UnknownUpstream
        scope["headers"] = [(b"host", target.encode()), *scope["headers"]]
        await application(scope, receive, send)

    @property
    def places(self) -> Mapping[str, str]:
        """They are here: a name is a place."""
        return {target: target for target in self._applications}

    async def healthy(self, target: str) -> bool:
        """A service in this process is as healthy as the process is."""
        return target in self._applications

    async def close(self) -> None:
        """Nothing is held: the applications belong to whoever built them."""
