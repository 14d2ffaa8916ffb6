"""The click writer: many clicks, one commit, and no answer that leaves before its click is safe."""

import asyncio
import logging

from prometheus_client import Counter, Gauge, Histogram

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.kernel.events import LINK_EXCHANGE
from refract.kernel.ids import new_event_id
from refract.runtime.fast_path import HeldAnswer
from refract.runtime.handover import Handover
from refract.runtime.messages import Message
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database
from refract.services.links.api import UrlClicked
from refract.services.links.redirect.bundles import Answers, Batch, Source, parts, row, rows
from refract.services.links.redirect.shelter import Shelter
from refract.services.links.redirect.spool import Segment, Spool

logger = logging.getLogger("refract.clicks")

FLUSH_TIMEOUT = 2.0
"""Seconds after which a flush is given up for the spool; if it was committed after all, readers know its event ids."""

LOOK_SECONDS = 0.5
"""How often a flush is looked after, and a database that is away is tried."""

ADOPT_SECONDS = 30.0
"""How often the spool is searched for files of processes that are gone, such as the one we replaced."""

TURNS = 1
"""Of the event loop between two flushes: those who wait at the sockets come in, and the flush is worth its price."""

GATHER_SECONDS = 0.003
"""How long after a flush began the next one waits for company: see `_gather`."""

FEW, ENOUGH = 4, 8
"""So many have to be expected at least to be waited for, and so many are not waited for to become more."""

LATER_SECONDS = 0.01
"""Between two flushes of clicks for which nobody waits."""


LATER_AT_ONCE = 10_000
LATER_LIMIT = 50_000
"""Clicks for which nobody waits; as many again may be on their way to the spool: 100,000 in memory at most."""

DRAIN_SECONDS = 3.0
"""What replaying may take of the time in which a process stops; the rest is safe where it is."""

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_ROUTING_KEY = UrlClicked.routing_key()


class ClickWriter:
    """The group commit: one flusher; whatever queued while the last flush ran is the next, with some company at times.

    While the database is away, clicks go to the spool, and from there into the outbox once it answers again.
    """

    def __init__(
        self, database: Database, clock: Clock, metrics: Metrics, spool: Spool, handover: Handover | None = None
    ) -> None:
        self._database = database
        self._outbox = handover or database
        self._clock = clock
        self._spool = spool
        self._shelter = Shelter(spool, clock, metrics)
        # Three lists and no tuples: nothing is made for a click that the garbage collector would have to look at.
        self._clicks: list[bytes] = []
        self._answers: list[HeldAnswer] = []
        self._payloads: list[bytes] = []
        self._later: list[bytes] = []
        self._sources: list[Source] = []
        self._sleeper: asyncio.Future[None] | None = None
        self._dozes = False
        self._began = -GATHER_SECONDS
        self._expected = 0
        self.gathers = False
        """Whether a flush waits for company, and wants to hear of each that comes."""
        self._unsafe: dict[Batch, None] = {}
        """What was taken and is not safe yet, oldest first: if whoever works on it is stopped, it is not lost."""
        self._flushing: Batch | None = None
        self._away = False
        self._complained = False
        """Whether it was said that clicks go to the spool, and not yet that they no longer do."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._overflow: asyncio.Task[None] | None = None
        self._overflowing: Batch | None = None
        registry = metrics.registry
        self._recorded = Counter("clicks_recorded", "Clicks committed to the outbox", registry=registry)
        self._seconds = Histogram(
            "click_flush_seconds", "How long a flush of clicks took", buckets=_BUCKETS, registry=registry
        )
        waiting = Gauge("clicks_waiting", "Clicks that wait for the next flush", registry=registry)
        waiting.set_function(lambda: self._waiting() + len(self._later))

    def draw_from(self, source: Source) -> None:
        """Take this one's clicks with every flush; it calls `wake` when it has some again."""
        self._sources.append(source)

    def record(self, click: bytes, answer: HeldAnswer, payload: bytes) -> None:
        """Take a click; once it is safe, the answer is released with the payload."""
        self._clicks.append(click)
        self._answers.append(answer)
        self._payloads.append(payload)
        if self._sleeper is not None:
            self.wake()

    def record_later(self, *clicks: bytes) -> None:
        """Take clicks for which nobody waits; they are lost if the process dies in the next moment."""
        self._later += clicks
        if self._sleeper is not None and not self._dozes:
            self.wake()
        elif len(self._later) >= LATER_LIMIT:
            self._spill()

    async def recorded(self, click: bytes) -> None:
        """Take a click and return once it is safe."""
        safe: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer = HeldAnswer()
        answer.deliver = lambda _: None if safe.done() else safe.set_result(None)
        self.record(click, answer, b"")
        await safe

    async def run(self) -> None:
        """Write clicks for ever, look after the flush, and bring the spool back."""
        await self._check_spool()
        flusher = asyncio.create_task(self._flush_for_ever(), name="click flusher")
        replayer = asyncio.create_task(self._replay_for_ever(), name="click replayer")
        try:
            while True:
                await asyncio.wait([flusher, replayer], timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in (flusher, replayer):
                    if task.done():
                        task.result()
                self._shelter.look()
                if self._is_overdue():
                    # Not waited for: where a server says nothing, even a flush that is given up takes its time.
                    self._dismiss(flusher)
                    self._lose_database(Unavailable("database", f"no commit within {FLUSH_TIMEOUT:g} s"))
                    flusher = asyncio.create_task(self._flush_for_ever(), name="click flusher")
        finally:
            for task in (flusher, replayer):
                self._dismiss(task)
            await asyncio.wait(self._leaving)

    async def drain(self) -> None:
        """Make everything safe that waits and, if the database answers, bring the spool back."""
        if self._overflow is not None:
            await asyncio.wait([self._overflow])
        while self._unsafe or self._waiting() or self._later:
            batch = next(iter(self._unsafe), None) or self._take()
            try:
                async with asyncio.timeout(None if self._away else FLUSH_TIMEOUT):
                    await self._make_safe(batch)
            except TimeoutError as error:
                self._lose_database(error)
        self._shelter.end()
        if self._shelter.hangs:
            return
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._replay_all()
        except Exception as error:  # noqa: BLE001  # whatever it is, the clicks stay in the spool
            logger.warning("click spool not drained; it is read after the next start", extra={"error": str(error)})
        await asyncio.to_thread(self._spool.close)

    # Flushing

    async def _flush_for_ever(self) -> None:
        for batch in list(self._unsafe):  # what the flusher before us was working on
            if batch in self._unsafe and batch is not self._overflowing:
                await self._make_safe(batch)
        task = asyncio.current_task()
        while task is not None and not task.cancelling():  # one that was dismissed ends, even if it was not heard
            if not self._waiting():
                await self._sleep()
            await self._gather()
            if not self._waiting() and not self._later:
                continue  # what it was woken for went to the spool
            await self._make_safe(self._take())
            for _ in range(TURNS):
                await asyncio.sleep(0)

    async def _sleep(self) -> None:
        """Until there is something to write. Where nobody waits for it, a little longer: a flush costs much the same
        for one click as for a hundred."""
        if not self._later:
            await self._rest(None)
        if not self._waiting():
            await self._rest(LATER_SECONDS)

    async def _gather(self) -> None:
        """While many come one by one, let the next flush take several: it costs much the same for one as for thirty,
        and so does the way of each row through the outbox and the bus.

        As many as the last flush had, and came meanwhile, are likely to come again: more of those who wait for their
        answer before they ask again there are not, and with them it leaves.
        """
        left = self._began + GATHER_SECONDS - self._clock.monotonic()
        if left > 0 and self._expected >= FEW and 0 < self._waiting() < self._expected:
            self.gathers = True
            try:
                await self._rest(left)
            finally:
                self.gathers = False

    def _waiting(self) -> int:
        """How many wait for their clicks to be written."""
        return len(self._clicks) + sum(map(len, self._sources))

    async def _rest(self, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        self._dozes = seconds is not None
        timer = None if seconds is None else loop.call_later(seconds, self._rise)
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """There is something to write; where company is waited for, it has to be enough."""
        if not self.gathers or self._waiting() >= self._expected:
            self._rise()

    def _rise(self) -> None:
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None and not sleeper.done():
            sleeper.set_result(None)

    def _take(self) -> Batch:
        """Everything that waits, but of what nobody waits for no more than is written in good time."""
        self._began = self._clock.monotonic()
        clicks, answers, payloads = self._clicks, self._answers, self._payloads
        self._clicks, self._answers, self._payloads = [], [], []
        if self._later:
            clicks += self._later[:LATER_AT_ONCE]
            del self._later[:LATER_AT_ONCE]
        own = Answers(clicks, answers, payloads)
        drawn = [bundle for source in self._sources if (bundle := source.take()) is not None]
        batch = Batch(own, *drawn) if clicks or not drawn else Batch(*drawn)
        self._unsafe[batch] = None
        return batch

    def _is_spooled(self, batch: Batch) -> bool:
        """Whether the spool is to have it: while the database is away, and where somebody has begun with that."""
        return self._away or self._shelter.has_begun(batch.clicks)

    async def _make_safe(self, batch: Batch) -> None:
        """Commit the clicks, or else spool them, or else shed them; then their answers leave."""
        if batch.clicks and (self._is_spooled(batch) or not await self._commit(batch)):
            await self._shelter.keep(batch.clicks)
        self._expected = min(len(batch.clicks) + self._waiting(), ENOUGH)
        self._settle(batch)

    async def _commit(self, batch: Batch) -> bool:
        batch.began = self._clock.monotonic()
        self._flushing = batch
        try:
            await self._post(*rows(batch.clicks))
        except Exception as error:  # noqa: BLE001  # whatever it is, no click may be lost to it
            self._lose_database(error)
            return False
        finally:
            if self._flushing is batch:
                self._flushing = None
        self._find_database()
        self._recorded.inc(len(batch.clicks))
        self._seconds.observe(self._clock.monotonic() - batch.began)
        return True

    async def _post(self, *bodies: bytes) -> None:
        await self._outbox.post(*(Message(LINK_EXCHANGE, _ROUTING_KEY, body, new_event_id()) for body in bodies))

    def _settle(self, batch: Batch) -> None:
        """The clicks are safe, or given up: let their answers go, once, and while the next flush is on its way."""
        if batch in self._unsafe:
            del self._unsafe[batch]
            batch.release()

    def _is_overdue(self) -> bool:
        """Whether a flush takes too long; said once of each."""
        batch = self._flushing
        if batch is None or self._clock.monotonic() - batch.began <= FLUSH_TIMEOUT:
            return False
        self._flushing = None
        return True

    def _dismiss(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _lose_database(self, error: Exception) -> None:
        self._away = True
        if not self._complained:
            self._complained = True
            trouble = None if isinstance(error, Unavailable) else error
            logger.warning("clicks go to the spool", extra={"error": str(error)}, exc_info=trouble)

    # The spool

    async def _check_spool(self) -> None:
        try:
            await asyncio.to_thread(self._spool.check)
        except OSError as error:
            logger.warning(
                "the click spool cannot be used: clicks are shed while the database is away",
                extra={"error": str(error)},
            )

    def _spill(self) -> None:
        """More waits than the database takes: half of it goes to the spool, or is shed if the other half still does."""
        clicks, self._later = self._later, []
        if self._overflow is not None and not self._overflow.done():
            self._shelter.shed(len(clicks), "neither the database nor the spool is fast enough")
            return
        batch = Batch(Answers(clicks, [], []))
        self._unsafe[batch] = None
        self._overflow = asyncio.create_task(self._overflow_with(batch), name="click overflow")

    async def _overflow_with(self, batch: Batch) -> None:
        self._overflowing = batch
        try:
            await self._shelter.keep(batch.clicks)
        finally:
            self._overflowing = None
        self._settle(batch)

    # Back from the spool

    async def _replay_for_ever(self) -> None:
        adopt_at = self._clock.monotonic()
        trouble = ""
        while True:
            try:
                if self._clock.monotonic() >= adopt_at:
                    adopt_at = self._clock.monotonic() + ADOPT_SECONDS
                    await self._adopt()
                if self._away or not self._spool.is_empty:
                    await self._replay_all()
                trouble = ""
            except Exception as error:  # noqa: BLE001  # whatever it is, the clicks stay in the spool
                if trouble != str(error):
                    trouble = str(error)
                    logger.warning("click spool not replayed; will retry", extra={"error": trouble})
            await asyncio.sleep(LOOK_SECONDS)

    async def _adopt(self) -> None:
        if adopted := await asyncio.to_thread(self._spool.adopt):
            logger.info("clicks of a process that is gone found in the spool", extra={"files": adopted})

    async def _replay_all(self) -> None:
        """Bring everything into the outbox, file by file; the first commit shows that the database is back.

        Where there is nothing to bring, the next flush tries it: of a database on a full disk, only a commit tells.
        """
        if self._away:  # asked first, which costs less than to read a file in vain
            async with asyncio.timeout(FLUSH_TIMEOUT):
                await self._database.ping()
        while (segment := await asyncio.to_thread(self._spool.next_segment)) is not None:
            await self._replay(segment)
        self._away = False

    async def _replay(self, segment: Segment) -> None:
        try:
            clicks = await asyncio.to_thread(segment.clicks)
        except OSError as error:
            await asyncio.to_thread(self._spool.set_aside, segment, error)
            return
        # One row at a time: those that are clicked now want their turn, too.
        for part in parts(clicks):
            async with asyncio.timeout(FLUSH_TIMEOUT):
                await self._post(row(part))
            segment.replayed += len(part)
            self._recorded.inc(len(part))
            self._find_database()
        await asyncio.to_thread(self._spool.remove, segment)

    def _find_database(self) -> None:
        self._away = False
        if self._complained:
            self._complained = False
            logger.info("clicks go to the database again")
