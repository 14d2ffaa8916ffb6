"""Where clicks go that the database does not take: into the spool, and if that is impossible, nowhere, but counted."""

import asyncio
import logging
from collections.abc import Sequence

from prometheus_client import Counter

from refract.kernel.clock import Clock
from refract.runtime.metrics import Metrics
from refract.services.links.redirect.spool import Spool

logger = logging.getLogger("refract.clicks")

SPOOL_TIMEOUT = 2.0
"""Seconds that the disk of the spool has: a redirect does not wait for a disk that hangs."""

QUIET_SECONDS = 10.0
"""When so long no click was shed, the episode is over."""


class Shelter:
    """Keeps clicks in the spool, or sheds them: a redirect outranks its click then, and never silently."""

    def __init__(self, spool: Spool, clock: Clock, metrics: Metrics) -> None:
        self._spool = spool
        self._clock = clock
        self._spooled = Counter("clicks_spooled", "Clicks kept in the spool", registry=metrics.registry)
        self._shed_ever = Counter("clicks_shed", "Clicks that found no place at all", registry=metrics.registry)
        self._shed = 0
        self._shed_at = 0.0
        self._hung: asyncio.Future[int] | None = None
        self._begun: dict[int, tuple[Sequence[bytes], asyncio.Future[int]]] = {}
        """By their list, clicks whose keeper was stopped: the disk may have them, and nobody is to write them twice."""

    @property
    def hangs(self) -> bool:
        """Whether the disk still owes an answer that nobody waits for any more."""
        return self._hung is not None and not self._hung.done()

    def has_begun(self, clicks: Sequence[bytes]) -> bool:
        """Whether the disk may have this list already, because its keeper was stopped."""
        return id(clicks) in self._begun

    async def keep(self, clicks: Sequence[bytes]) -> None:
        """Put clicks into the spool; those that find no place there are shed.

        Whoever is stopped meanwhile may be asked again, with the same list: it goes on where it was.
        """
        _, begun = self._begun.pop(id(clicks), (clicks, None))
        good = [click for click in clicks if _is_text(click)]
        if begun is None and len(good) < len(clicks):
            self.shed(len(clicks) - len(good), "they are no texts, which no database takes")
        try:
            kept = await self._append(good, begun, clicks)
            reason = "the spool is full"
        except OSError as error:
            kept, reason = 0, f"the spool failed: {error}"
        self._spooled.inc(kept)
        if kept < len(good):
            self.shed(len(good) - kept, reason)

    def shed(self, number: int, reason: str) -> None:
        """Give up so many clicks."""
        if not self._shed:
            logger.error("clicks are being shed", extra={"reason": reason})
        self._shed += number
        self._shed_at = self._clock.monotonic()
        self._shed_ever.inc(number)

    def look(self) -> None:
        """End an episode of shedding if it has been quiet for a while."""
        if self._shed and self._clock.monotonic() - self._shed_at >= QUIET_SECONDS:
            self.end()

    def end(self) -> None:
        """Say how many were lost in this episode."""
        if self._shed:
            logger.error("clicks were shed", extra={"clicks": self._shed})
        self._shed = 0

    async def _append(self, good: list[bytes], begun: "asyncio.Future[int] | None", clicks: Sequence[bytes]) -> int:
        if not self.hangs:
            appending = begun or asyncio.ensure_future(asyncio.to_thread(self._spool.append, good))
            try:
                await asyncio.wait([appending], timeout=SPOOL_TIMEOUT)
            except asyncio.CancelledError:
                self._begun[id(clicks)] = clicks, appending
                appending.add_done_callback(_forget)
                raise
            if appending.done():
                return appending.result()
            self._hung = appending
            appending.add_done_callback(_forget)
        raise TimeoutError("its disk hangs")


def _is_text(click: bytes) -> bool:
    try:
        click.decode()
    except UnicodeDecodeError:
        return False
    return True


def _forget(appending: "asyncio.Future[int]") -> None:
    """What came of it is of no use any more, and nothing to complain about."""
    if not appending.cancelled():
        appending.exception()
