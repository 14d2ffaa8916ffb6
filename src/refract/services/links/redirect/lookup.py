"""Finds links that L1 does not know: the misses of one turn of the event loop are one question to L2 and database."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.runtime.caching import TOMBSTONE_SECONDS, CacheEntry
from refract.runtime.ports import Cache, Database
from refract.runtime.statements import Statement
from refract.services.links.redirect.records import (
    KEY_PREFIX,
    LinkRecord,
    decode_copy,
    encode_copy,
    is_same_copy,
)

Found = LinkRecord | Unavailable | None
Done = Callable[[Found], None]

CODES_AT_ONCE = 500
FLIGHTS = 4
"""How many questions are under way at most; what is asked meanwhile gathers for the next."""

LATE_SECONDS = 0.005
"""While one is under way, another leaves when as many have gathered as wait for the first, or when that takes so long:
a question costs much the same for one code as for fifty."""

LONGEST_CODE = 64
MOST_WAITING = 20_000
DATABASE_DEADLINE = 2.0
"""Whoever follows a link waits: a database that takes this long is better taken for absent."""

SILENT_SECONDS = 1.0
"""After that it is left alone for so long: who asks meanwhile had better be given something stale than wait in vain."""

CHANGES_REMEMBERED = 10_000
MOST_UNFILLED = 5_000
FILL_SECONDS = TOMBSTONE_SECONDS / 2
"""A record that was asked for longer ago is not put into L2: the tombstone of a later version may be gone by now."""

FIND_RECORDS = Statement(
    "find_records",
    "Reads what redirects need to know of some links.",
    """
    SELECT short_code, original_url, created_by AS user_id, owner_email AS user_email, status, expires_at,
        redirect_status, version AS "order"
    FROM links WHERE short_code = ANY(:codes)
    """,
    sqlite="""
    SELECT short_code, original_url, created_by AS user_id, owner_email AS user_email, status, expires_at,
        redirect_status, version AS "order"
    FROM links WHERE short_code IN (SELECT value FROM json_each(:codes))
    """,
    urgent=True,
)

logger = logging.getLogger("refract.links")


class _Question:
    """A code, and all who wait for its record."""

    __slots__ = ("code", "waiting")

    def __init__(self, code: str, done: Done) -> None:
        self.code = code
        self.waiting = [done]

    def answer(self, found: Found) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            try:
                done(found)
            except Exception:
                logger.exception("an answer to a redirect failed")


class Lookup:
    """Reads records through L2. Its answers come in later turns of the event loop, never inside the call."""

    def __init__(self, cache: Cache, database: Database, clock: Clock) -> None:
        self._cache = cache
        self._database = database
        self._clock = clock
        self._open: dict[str, _Question] = {}
        self._least: OrderedDict[str, int] = OrderedDict()
        self._gathered: list[_Question] = []
        self._called = False
        self._flights: dict[asyncio.Task[None], int] = {}
        self._under_way = 0
        self._impatience: asyncio.TimerHandle | None = None
        self._silent_until = 0.0
        self._unfilled: list[tuple[LinkRecord, float]] = []
        self._filling: asyncio.Task[None] | None = None
        cache.on_invalidation(self.hear, self.hear_gap)

    def soon(self, code: str, done: Done) -> None:
        """Have `done` called with the record, with None if there is no such code, or with what was unavailable."""
        question = self._open.get(code)
        if question is not None:
            question.waiting.append(done)
        elif len(code) > LONGEST_CODE or not (code.isascii() and code.isprintable()):
            # No link has such a code, and one odd character would fail the statement for all who share it.
            asyncio.get_running_loop().call_soon(done, None)
        elif len(self._gathered) >= MOST_WAITING:
            asyncio.get_running_loop().call_soon(done, Unavailable("database", "too many wait for it"))
        else:
            question = self._open[code] = _Question(code, done)
            self._gathered.append(question)
            if not self._called:
                self._called = True
                asyncio.get_running_loop().call_soon(self._depart)

    async def find(self, code: str) -> LinkRecord | None:
        """The record, or None if there is no such code; raises Unavailable."""
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self.soon(code, partial(_resolve, answer))
        found = await answer
        if isinstance(found, Unavailable):
            raise Unavailable(found.dependency, found.reason)  # one of its own for everyone who waited
        return found

    async def unchanged(self, links: Sequence[tuple[str, int, int]]) -> list[bool]:
        """Which of these codes, with a status and an order number, L2 knows as active links of that very version."""
        if not self._cache.keeps:
            return [False] * len(links)
        copies = await self._cache.get_many([KEY_PREFIX + code for code, _, _ in links])
        return [
            copy is not None and order >= self._least.get(code, 0) and is_same_copy(copy, code, status, order)
            for copy, (code, status, order) in zip(copies, links, strict=True)
        ]

    def hear(self, keys: Sequence[str]) -> None:
        """These were dropped: what is on its way may be older, and is not for those who ask from now on."""
        for key in keys:
            self._open.pop(key.removeprefix(KEY_PREFIX), None)

    def hear_orders(self, orders: Mapping[str, int]) -> None:
        """The links behind these keys have changed, whether or not L2 has heard of it: a copy from before is a miss.

        A Redis that takes no writes still gives away what it has.
        """
        self.hear(list(orders))
        for key, order in orders.items():
            code = key.removeprefix(KEY_PREFIX)
            self._least[code] = max(order, self._least.pop(code, 0))
            if len(self._least) > CHANGES_REMEMBERED:
                self._least.popitem(last=False)

    def hear_gap(self) -> None:
        """Anything may have been dropped."""
        self._open.clear()

    async def drain(self) -> None:
        """Wait until everybody has an answer and L2 has what was found."""
        while self._gathered or self._flights or self._filling:
            await asyncio.sleep(0)
            if under_way := [*self._flights, *([self._filling] if self._filling else [])]:
                await asyncio.wait(under_way)

    def _depart(self) -> None:
        self._called = False
        while self._gathered and self._may_depart():
            self._take_off()
        if self._gathered and self._impatience is None:
            self._impatience = asyncio.get_running_loop().call_later(LATE_SECONDS, self._depart_late)

    def _may_depart(self) -> bool:
        if len(self._gathered) < min(self._under_way, CODES_AT_ONCE):
            return False
        return len(self._flights) < FLIGHTS

    def _depart_late(self) -> None:
        self._impatience = None
        if self._gathered and len(self._flights) < FLIGHTS:
            self._take_off()
        self._depart()

    def _take_off(self) -> None:
        questions, self._gathered = self._gathered[:CODES_AT_ONCE], self._gathered[CODES_AT_ONCE:]
        flight = asyncio.get_running_loop().create_task(self._fly(questions), name="lookup")
        self._flights[flight] = len(questions)
        self._under_way += len(questions)
        flight.add_done_callback(self._land)

    def _land(self, flight: "asyncio.Task[None]") -> None:
        self._under_way -= self._flights.pop(flight)
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None
        self._depart()

    async def _fly(self, questions: list[_Question]) -> None:
        trouble = Unavailable("database", "the lookup was given up")
        try:
            missed = await self._ask_cache(questions)
            if missed:
                await self._ask_database(missed)
        except Unavailable as error:
            trouble = error
        except Exception:
            logger.exception("a lookup failed")
        finally:
            for question in questions:
                if question.waiting:
                    self._settle(question, trouble)

    async def _ask_cache(self, questions: list[_Question]) -> list[_Question]:
        """Answer what L2 knows; returns the rest."""
        if not self._cache.keeps:
            return questions
        copies = await self._cache.get_many([KEY_PREFIX + question.code for question in questions])
        missed: list[_Question] = []
        for question, copy in zip(questions, copies, strict=True):
            record = None if copy is None else decode_copy(copy, question.code)
            if record is None or record.order < self._least.get(question.code, 0):
                missed.append(question)
            else:
                self._settle(question, record)
        return missed

    async def _ask_database(self, questions: list[_Question]) -> None:
        asked_at = self._clock.monotonic()
        if asked_at < self._silent_until:
            raise Unavailable("database", "it did not answer a moment ago")
        try:
            async with asyncio.timeout(DATABASE_DEADLINE):
                rows = await self._database.fetch(FIND_RECORDS, codes=[question.code for question in questions])
        except TimeoutError:
            trouble = Unavailable("database", f"no answer within {DATABASE_DEADLINE:g} s")
            self._silent_until = self._clock.monotonic() + SILENT_SECONDS
            waiting, self._gathered = self._gathered, []
            for question in waiting:  # who has waited behind these would wait as long again
                self._settle(question, trouble)
            raise trouble from None
        records = {row["short_code"]: LinkRecord(**row) for row in rows}
        for question in questions:
            self._settle(question, records.get(question.code))
        self._fill_later(records, asked_at)

    def _settle(self, question: _Question, found: Found) -> None:
        if self._open.get(question.code) is question:
            del self._open[question.code]
        question.answer(found)

    def _fill_later(self, records: dict[str, LinkRecord], asked_at: float) -> None:
        """Give L2 its copies when everybody is answered; if it does not keep up, it misses some."""
        if not self._cache.keeps:
            return
        room = MOST_UNFILLED - len(self._unfilled)
        self._unfilled += [(record, asked_at) for record in islice(records.values(), room)]
        if self._unfilled and self._filling is None:
            self._filling = asyncio.get_running_loop().create_task(self._fill(), name="cache fill")

    async def _fill(self) -> None:
        try:
            while self._unfilled:
                unfilled, self._unfilled = self._unfilled, []
                now, latest = self._clock.now(), self._clock.monotonic() - FILL_SECONDS
                entries = [_entry(record, record.copy_seconds(now)) for record, at in unfilled if at > latest]
                await self._cache.set_many(entries)
        finally:
            self._filling = None


def _entry(record: LinkRecord, seconds: float) -> CacheEntry:
    return CacheEntry(KEY_PREFIX + record.short_code, record.order, encode_copy(record), seconds)


def _resolve(answer: "asyncio.Future[Found]", found: Found) -> None:
    if not answer.done():
        answer.set_result(found)
