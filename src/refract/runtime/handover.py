"""What this process has just saved is sent on from its memory: nobody has to read it back from the database first.

To read rows back, lock them and take them apart costs a relay about as much as to save them did, and whoever has saved
them knows them still. The row is there all the same: it is held for this process for some seconds, and if nothing is
heard of it by then, because the process was killed or could not send it, any relay takes it like every other.
"""

import asyncio
import logging
from collections.abc import Sequence
from math import inf

from refract.kernel.clock import Clock
from refract.kernel.errors import NotPublished, Unavailable
from refract.runtime.joining import joined
from refract.runtime.messages import Message
from refract.runtime.metrics import Metrics
from refract.runtime.outbox import GIVE_BACK, MARK
from refract.runtime.ports import Database, EventBus

logger = logging.getLogger("refract.outbox")

HELD_SECONDS = 10.0
"""How long a row is left to whoever saved it: longer than a publish and its mark take, if all goes well."""

GATHER_SECONDS = 0.02
"""Between the first of some messages and their leaving: those that come together share a message, and its price."""

AT_ONCE_BYTES = 512 * 1024
"""What leaves together at most: while it is put together, nobody else has a turn."""

MOST_BYTES = 8 * 1024 * 1024
"""What waits at most. More than the broker takes is left to the relay, and lies in the database only."""

NOTE_SECONDS = 0.25
"""Between two notes of what became of rows: one statement for hundreds of them."""

REST_SECONDS = 5.0
"""After something could not be sent, all is left to the relay for so long: it knows how to wait for a broker."""

Held = tuple[str, Message]
"""The id of a row, and what is in it."""


class Handover:
    """Saves messages and sends them on itself, those that follow one another together; the relay has what is left."""

    def __init__(self, service: str, *, database: Database, bus: EventBus, clock: Clock, metrics: Metrics) -> None:
        self._database = database
        self._bus = bus
        self._clock = clock
        self._published = metrics.outbox_published.labels(service)
        self._is_on = False
        self._rests_until = -inf
        self._waiting: list[Held] = []
        self._bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._sent: list[str] = []
        self._left: list[str] = []
        self._something_waits = asyncio.Event()
        self._something_to_note = asyncio.Event()

    async def post(self, *messages: Message) -> None:
        """Save messages in a transaction of their own; when this returns, they will be sent, whoever is killed."""
        if not self._is_on or self._bytes >= MOST_BYTES or self._clock.monotonic() < self._rests_until:
            await self._database.post(*messages)
            return
        ids = await self._database.post(*messages, held=HELD_SECONDS)
        self._waiting += zip(ids, messages, strict=True)
        self._bytes += sum(len(message.body) for message in messages)
        self._something_waits.set()

    async def run(self) -> None:
        """Send for ever."""
        self._is_on = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send_for_ever(), name="handover sender")
                group.create_task(self._note_for_ever(), name="handover notes")
        finally:
            self._is_on = False

    async def drain(self) -> None:
        """Leave to the relay what has not been sent, and note what has."""
        if self._sending is not None:
            await asyncio.wait([self._sending])
        self._leave(self._take(everything=True))
        try:
            await self._note()
        except (Unavailable, NotPublished) as error:
            logger.warning("what was sent is not noted, and will be sent again", extra={"error": str(error)})

    async def _send_for_ever(self) -> None:
        while True:
            await self._something_waits.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._something_waits.clear()
            while self._waiting:
                # By a task of its own: what is on its way when we are stopped comes to its end.
                self._sending = asyncio.create_task(self._send(self._take()), name="handover")
                await asyncio.shield(self._sending)

    async def _note_for_ever(self) -> None:
        while True:
            await self._something_to_note.wait()
            await asyncio.sleep(NOTE_SECONDS)
            self._something_to_note.clear()
            try:
                await self._note()
            except Unavailable as error:
                logger.warning("what was sent is not noted yet", extra={"error": str(error)})
                self._something_to_note.set()

    def _take(self, *, everything: bool = False) -> list[Held]:
        """The first of those that wait, as many as may leave at once."""
        size = number = 0
        for number, (_, message) in enumerate(self._waiting, start=1):  # noqa: B007  # how far it came is the answer
            size += len(message.body)
            if size >= AT_ONCE_BYTES and not everything:
                break
        taken, self._waiting = self._waiting[:number], self._waiting[number:]
        self._bytes -= size
        return taken

    async def _send(self, held: Sequence[Held]) -> None:
        """Publish; what is not taken is left to the relay, and so is what comes in the next seconds."""
        messages = list(joined(((message, row) for row, message in held), _is_array))
        try:
            await self._bus.ping()
            outcomes = await self._bus.publish_all([message for message, _ in messages])
        except (Unavailable, NotPublished) as error:
            self._give_up(held, error)
            return
        except BaseException:
            self._leave(held)
            raise
        trouble = None
        for (_, rows), outcome in zip(messages, outcomes, strict=True):
            if outcome is None:
                self._sent += rows
                self._published.inc(len(rows))
            else:
                trouble = outcome
                self._left += rows
        self._something_to_note.set()
        if trouble is not None:
            self._give_up((), trouble)

    def _give_up(self, held: Sequence[Held], trouble: Exception) -> None:
        self._rests_until = self._clock.monotonic() + REST_SECONDS
        self._leave([*held, *self._take(everything=True)])
        logger.warning("events are left to the relay", extra={"error": str(trouble)})

    def _leave(self, held: Sequence[Held]) -> None:
        self._left += [row for row, _ in held]
        if held:
            self._something_to_note.set()

    async def _note(self) -> None:
        """Mark what was published, and give back what was not; both stay on our lists until that is committed."""
        sent, left = list(self._sent), list(self._left)
        if not sent and not left:
            return
        async with self._database.transaction() as tx:
            if sent:
                await tx.execute(MARK, now=self._clock.now(), ids=sent)
            if left:
                await tx.execute(GIVE_BACK, ids=left)
        del self._sent[: len(sent)]
        del self._left[: len(left)]


def _is_array(body: bytes) -> bool:
    """Of a body that never was on a disk the first byte is enough; an empty array would leave a comma without a
    neighbour."""
    return body.startswith(b"[") and len(body) > 2
