"""Sending a message: counted first or behind a lock, published, and noted, whatever became of it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from refract.kernel.clock import Clock
from refract.kernel.errors import NotPublished, RefractError, Unavailable
from refract.kernel.ids import new_event_id
from refract.runtime.correlation import current_correlation_id
from refract.runtime.ports import Database, RecordLog
from refract.services.sms.commands.copying import Copies, CopiesAway
from refract.services.sms.commands.counting import Claim, Counter, Verdict
from refract.services.sms.commands.locking import Outgoing, RowLock
from refract.services.sms.commands.uncounted import Uncounted
from refract.services.sms.domain.attempts import Attempt, Attempts, Path, Status
from refract.services.sms.domain.sends import (
    DatabaseAway,
    KeyReused,
    LimitExceeded,
    LogAway,
    SendKey,
    SendRequest,
    UserNotFound,
)

REPEATED = "repeated"
"""The reason of an attempt for which nothing had to be sent, because the one before it was."""

PATIENCE = 8.0
"""Seconds that a send may take: a little less than the server gives it, so that the answer is one of document 003."""

_STATUSES: Mapping[type[Exception], Status] = {LimitExceeded: "limited", KeyReused: "invalid"}


class Course(Struct):
    """What is known of an attempt while it is under way."""

    path: Path = "none"
    message_id: str = ""
    reason: str = ""


class Sending:
    """Sends messages. `copies` is None where every send is to go behind the lock."""

    def __init__(
        self, database: Database, records: RecordLog, copies: Copies | None, attempts: Attempts, clock: Clock
    ) -> None:
        self._records = records
        self._copies = copies
        self._attempts = attempts
        self._clock = clock
        uncounted = Uncounted(database, clock)
        self._counter = Counter(database, clock, uncounted, None if copies is None else copies.time.learn)
        self._row_lock = RowLock(database, records, clock, uncounted)
        self._keys = OneByOne()

    async def send(self, request: SendRequest, key: SendKey | None) -> None:
        """Return when the message is safe in the log.

        Raises UserNotFound, LimitExceeded, LogAway, DatabaseAway, and KeyReused.
        """
        course = Course()
        try:
            await self._send(request, key, course)
        except RefractError as error:
            self._note(request, _STATUSES.get(type(error), "failed"), course, error.message)
            raise
        except Exception:
            self._note(request, "failed", course, RefractError.message)
            raise
        self._note(request, "sent", course, course.reason)

    def refuse(self, user_id: int | None, message: str, reason: str) -> None:
        """Note a request that is wrong, with what could be read of it."""
        self._attempts.note(self._attempt(user_id, message, "invalid", Course(), reason))

    async def _send(self, request: SendRequest, key: SendKey | None, course: Course) -> None:
        outgoing = Outgoing(Claim(request.user_id, key), request, current_correlation_id())
        try:
            async with asyncio.timeout(PATIENCE):
                if key is None:
                    await self._by_either_way(outgoing, course)
                else:
                    async with self._keys.turn(key.key_hash):
                        await self._by_either_way(outgoing, course)
        except (Unavailable, TimeoutError) as error:  # the log has less time than we do, and fails by itself
            raise DatabaseAway from error

    async def _by_either_way(self, outgoing: Outgoing, course: Course) -> None:
        if self._copies is not None:
            with suppress(CopiesAway):
                await self._counted_first(self._copies, outgoing, course)
                return
        course.path = "row-lock"
        verdict = await self._row_lock.send(outgoing)
        course.message_id = verdict.message_id
        _settle(verdict, course)

    async def _counted_first(self, copies: Copies, outgoing: Outgoing, course: Course) -> None:
        """The quick way: what Redis does not refuse is counted in the database, and then published."""
        course.path = "redis"
        claim = outgoing.claim
        verdict = None if claim.key is None else await self._counter.recall(claim.user_id, claim.key)
        if verdict is None:
            wait = await copies.take(claim.user_id)
            if wait is not None:
                raise LimitExceeded(wait)
            verdict = await self._count(copies, claim)
        course.message_id = verdict.message_id
        _settle(verdict, course)
        if not verdict.to_publish:
            return
        try:
            await self._records.publish(outgoing.record(verdict.message_id))
        except (NotPublished, Unavailable) as error:
            raise LogAway from error
        if verdict.key is not None:
            with suppress(Unavailable):  # a repeat is then published again, under the id by which readers know it
                await self._counter.mark_sent(claim.user_id, verdict.key)

    async def _count(self, copies: Copies, claim: Claim) -> Verdict:
        """The database's verdict; a copy that said something else is wrong, and goes."""
        try:
            verdict = await self._counter.count(claim)
        except BaseException:
            await copies.drop(claim.user_id)
            raise
        if verdict.word != "admitted":
            await copies.drop(claim.user_id)
        return verdict

    def _note(self, request: SendRequest, status: Status, course: Course, reason: str) -> None:
        self._attempts.note(self._attempt(request.user_id, request.message, status, course, reason))

    def _attempt(self, user_id: int | None, message: str, status: Status, course: Course, reason: str) -> Attempt:
        return Attempt(
            event_id=new_event_id(),
            user_id=user_id,
            status=status,
            path=course.path,
            message=message,
            reason=reason,
            correlation_id=current_correlation_id(),
            occurred_at=self._clock.now(),
            message_id=course.message_id,
        )


def _settle(verdict: Verdict, course: Course) -> None:
    """Raise what a verdict means, unless it is a good one."""
    match verdict.word:
        case "refused":
            raise LimitExceeded(verdict.retry_after)
        case "unknown user":
            raise UserNotFound
        case "key reused":
            raise KeyReused
        case "not published":
            raise LogAway
        case "sent before":
            course.reason = REPEATED


class OneByOne:
    """Requests with the same key, one after the other: the second finds what the first has left."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """Alone with the key, in this process; another one meets it at the lock of the user."""
        lock, waiting = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._locks.pop(key)
            if waiting > 1:
                self._locks[key] = lock, waiting - 1
