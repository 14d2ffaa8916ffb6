"""Links in use that will soon be too old: asked for together, and nearly always found to be what they were."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from refract.services.links.redirect.lookup import Found, Lookup
from refract.services.links.redirect.memory import Memory, Remembered

logger = logging.getLogger("refract.links")

GATHER_SECONDS = 0.02
"""Nobody waits for a renewal, and a question to L2 costs much the same for one code as for a hundred."""

CODES_AT_ONCE = 128
"""After so many, others have their turn."""


class Renewable(Remembered, Protocol):
    """A remembered link, with what L2 has to know it by."""

    @property
    def status(self) -> int:
        """Of its answer."""

    @property
    def order(self) -> int:
        """Its version."""


T = TypeVar("T", bound=Renewable)


class Renewals(Generic[T]):
    """Remembers links for longer that L2 says are unchanged; all others are looked up, and `look` has the outcome."""

    def __init__(self, lookup: Lookup, memory: Memory[T], look: Callable[[bytes, T, int, Found], None]) -> None:
        self._lookup = lookup
        self._memory = memory
        self._look = look
        self._asked: set[bytes] = set()
        self._waiting: list[tuple[bytes, T]] = []
        self._task: asyncio.Task[None] | None = None

    def soon(self, code: bytes, link: T) -> None:
        """Ask for a link again; until the answer comes it is used as it is."""
        if code in self._asked:
            return
        self._asked.add(code)
        self._waiting.append((code, link))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._renew(), name="renewals")

    async def _renew(self) -> None:
        try:
            await asyncio.sleep(GATHER_SECONDS)
            while self._waiting:
                some, self._waiting = self._waiting[:CODES_AT_ONCE], self._waiting[CODES_AT_ONCE:]
                await self._renew_together(some)
        finally:
            self._task = None

    async def _renew_together(self, links: list[tuple[bytes, T]]) -> None:
        ticket = self._memory.ticket
        same = [False] * len(links)
        try:
            same = await self._lookup.unchanged(
                [(code.decode("ascii"), link.status, link.order) for code, link in links]
            )
        except Exception:
            logger.exception("links could not be renewed together")
        for (code, link), is_same in zip(links, same, strict=True):
            if is_same:
                self._asked.discard(code)
                self._memory.keep(code, link.renewed(self._memory.lifetimes(None)), ticket)
            else:
                self._lookup.soon(code.decode("ascii"), partial(self._found, code, link, ticket))

    def _found(self, code: bytes, link: T, ticket: int, found: Found) -> None:
        self._asked.discard(code)
        self._look(code, link, ticket, found)
