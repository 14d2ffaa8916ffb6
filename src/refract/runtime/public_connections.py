"""Connections to the public internet and nowhere else: users name places, and we call there for them.

The address that is checked is the one that is connected to. Whatever a name resolves to, however an address is spelt
and wherever a redirect would lead, a socket is only ever made for an address that passed.
"""

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from refract.kernel.public_addresses import is_public

MAX_LOOKUPS = 32
"""Threads that may wait for name servers at a time; those are chosen by users as well, and may never answer."""


class NotPublic(OSError):
    """The address is not one of the public internet."""


def public_connector(*, allow_private: bool = False, limit: int = 100) -> aiohttp.TCPConnector:
    """Connections of a client to public addresses only, each used for one request."""

    def open_socket(place: tuple[Any, Any, int, str, tuple[Any, ...]]) -> socket.socket:
        family, kind, protocol, _, address = place
        if not allow_private and not is_public(address[0]):
            raise NotPublic("the address is private or local")
        return socket.socket(family, kind, protocol)

    # No pool: a connection that was good a minute ago says nothing of where the name leads now.
    return aiohttp.TCPConnector(
        resolver=_Lookups(), socket_factory=open_socket, use_dns_cache=False, force_close=True, limit=limit
    )


class _Lookups(AbstractResolver):
    """Looks names up in threads of its own: the event loop has few, and waits in them for our own servers' names."""

    def __init__(self) -> None:
        self._waiting = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name, public or not."""
        if self._waiting >= MAX_LOOKUPS:
            raise OSError(None, "too many name servers do not answer")
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[Any]] = loop.create_future()

        def ended(result: list[Any] | None, error: Exception | None) -> None:
            self._waiting -= 1
            if found.done():
                return  # nobody waited so long
            if error is not None:
                found.set_exception(error if isinstance(error, OSError) else OSError(None, "not a name"))
            else:
                found.set_result(result or [])

        def look_up() -> None:
            result, trouble = None, None
            try:
                result = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
            except (OSError, ValueError, OverflowError) as error:
                trouble = error
            with suppress(RuntimeError):  # the loop is over
                loop.call_soon_threadsafe(ended, result, trouble)

        # A daemon: the process must not wait at its end for a name server that never answers.
        thread = threading.Thread(target=look_up, name="lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            raise OSError(None, "the system has no thread for it") from None
        self._waiting += 1  # it counts from now, and no more than once: its end comes by the loop, after this
        return [
            ResolveResult(
                hostname=host,
                host=address[0],
                port=address[1],
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in await found
            if isinstance(address[0], str)
        ]

    async def close(self) -> None:
        """Nothing is held."""
