"""What this process has just saved is sent on from its memory: nobody has to read it back from the database first.

To read rows back, lock them and take them apart costs a relay about as much as to save them did, and whoever has saved
them knows them still. The row is there all the same: it is held for this process for some seconds, and if nothing is
heard of it by then, because the process was killed or could not send it, any relay takes it like every other.
"""

import asyncio
import logging
from collections.abc import Sequence
from itertools import takewhile
from math import inf
from typing import NamedTuple

from refract.kernel.clock import Clock
from refract.kernel.errors import NotPublished, RefractError, Unavailable
from refract.runtime.joining import joined
from refract.runtime.messages import PUBLISH_TIMEOUT, Message
from refract.runtime.metrics import Metrics
from refract.runtime.outbox import GIVE_BACK, GIVE_BACK_UNSURE, MARK
from refract.runtime.ports import Database, EventBus

logger = logging.getLogger("refract.outbox")

HELD_SECONDS = 10.0
"""How long a row is left to whoever saved it: longer than a publish and its mark take, if all goes well."""

LEAST_SECONDS = PUBLISH_TIMEOUT + 0.5
"""What has to be left of that when a row is sent: a broker that is slow must not get from a relay, too, what is on its
way already."""

GATHER_SECONDS = 0.05
"""Before some leave, also where others have just left: those that come meanwhile share a message, and its price."""

AT_ONCE_BYTES = 512 * 1024
"""What leaves together at most: while it is put together, nobody else has a turn."""

MOST_BYTES = 8 * 1024 * 1024
"""What waits at most. More than the broker takes is left to the relay, and lies in the database only."""

NOTE_SECONDS = 0.05
LONGEST_NOTE_PAUSE = 2.0
"""Between two notes of what became of rows; and how long that grows in trouble."""

NOTED_AT_ONCE = 64
"""Rows in a statement: 500 keep PostgreSQL's processor for 5 ms, and where there is one for all, clicks wait for it."""

MOST_UNNOTED = 20_000
"""Rows that wait to be noted at most, while the database takes what is saved and takes no notes."""

REST_SECONDS = 5.0
"""After something could not be sent, all is left to the relay for so long: it knows how to wait for a broker."""


class Held(NamedTuple):
    """A row that is ours to send until then, in seconds of the clock."""

    row: str
    message: Message
    until: float


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
        self._unsure: list[str] = []
        """Ids of messages that may have been saved although nobody heard of it: whoever waited has given up."""
        self._something_waits = asyncio.Event()
        self._something_to_note = asyncio.Event()

    async def post(self, *messages: Message) -> None:
        """Save messages in a transaction of their own; when this returns, they will be sent, whoever is killed."""
        now = self._clock.monotonic()
        if not self._is_on or now < self._rests_until or self._is_full():
            await self._database.post(*messages)
            return
        until = now + HELD_SECONDS
        try:
            ids = await self._database.post(*messages, held=HELD_SECONDS)
        except BaseException:
            # If it was committed all the same, nobody would send it before its hold is over.
            self._unsure += [message.message_id for message in messages]
            self._something_to_note.set()
            raise
        self._waiting += [Held(row, message, until) for row, message in zip(ids, messages, strict=True)]
        self._bytes += sum(len(message.body) for message in messages)
        self._something_waits.set()

    async def run(self) -> None:
        """Send for ever."""
        self._is_on = True
        # Whoever was here before us may have died with something in hand.
        self._something_waits.set()
        self._something_to_note.set()
        tasks = [
            asyncio.create_task(self._send_for_ever(), name="handover sender"),
            asyncio.create_task(self._note_for_ever(), name="handover notes"),
        ]
        try:
            # Not a group: that would not notice if one of them were cancelled from inside.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            self._is_on = False
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def drain(self) -> None:
        """Leave to the relay what has not been sent, and note what has."""
        if self._sending is not None:
            await asyncio.wait([self._sending])
        self._leave(self._take(everything=True))
        try:
            while self._unnoted():
                await self._note()
        except RefractError as error:
            logger.warning("what was sent is not noted, and will be sent again", extra={"error": str(error)})

    def _is_full(self) -> bool:
        return self._bytes >= MOST_BYTES or self._unnoted() >= MOST_UNNOTED

    def _unnoted(self) -> int:
        return len(self._sent) + len(self._left) + len(self._unsure)

    async def _send_for_ever(self) -> None:
        while True:
            await self._something_waits.wait()
            if self._bytes < AT_ONCE_BYTES:
                await asyncio.sleep(GATHER_SECONDS)
            if self._waiting:
                # By a task of its own: what is on its way when we are stopped comes to its end.
                self._sending = asyncio.create_task(self._send(self._take()), name="handover")
                await asyncio.shield(self._sending)
            if not self._waiting:
                self._something_waits.clear()

    async def _note_for_ever(self) -> None:
        pause = NOTE_SECONDS
        while True:
            await self._something_to_note.wait()
            await asyncio.sleep(pause)
            self._something_to_note.clear()
            try:
                while self._unnoted():
                    await self._note()
                pause = NOTE_SECONDS
            except RefractError as error:
                if pause == NOTE_SECONDS:
                    logger.warning("what was sent is not noted yet", extra={"error": str(error)})
                pause = min(LONGEST_NOTE_PAUSE, pause * 2)
                self._something_to_note.set()

    def _take(self, *, everything: bool = False) -> list[Held]:
        """The first of those that wait, as many as may leave at once."""
        size = number = 0
        for number, held in enumerate(self._waiting, start=1):  # noqa: B007  # how far it came is the answer
            size += len(held.message.body)
            if size >= AT_ONCE_BYTES and not everything:
                break
        taken, self._waiting = self._waiting[:number], self._waiting[number:]
        self._bytes -= size
        return taken

    async def _send(self, held: Sequence[Held]) -> None:
        """Publish; what is not taken is left to the relay, and so is what comes in the next seconds."""
        latest = self._clock.monotonic() + LEAST_SECONDS
        late = list(takewhile(lambda one: one.until < latest, held))  # they stand in the order of their time
        self._leave(late)
        held = held[len(late) :]
        try:
            messages = list(joined(((one.message, one.row) for one in held), _is_array))
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
        self._left += [one.row for one in held]
        if held:
            self._something_to_note.set()

    async def _note(self) -> None:
        """Mark some that were published, and give back some that were not; they stay on our lists until that is
        committed."""
        sent, left, unsure = (notes[:NOTED_AT_ONCE] for notes in (self._sent, self._left, self._unsure))
        async with self._database.transaction() as tx:
            if sent:
                await tx.execute(MARK, now=self._clock.now(), ids=sent)
            if left:
                await tx.execute(GIVE_BACK, ids=left)
            if unsure:
                await tx.execute(GIVE_BACK_UNSURE, ids=unsure)
        del self._sent[: len(sent)]
        del self._left[: len(left)]
        del self._unsure[: len(unsure)]


def _is_array(body: bytes) -> bool:
    """Of a body that never was on a disk the first byte is enough; an empty array would leave a comma without a
    neighbour."""
    return body.startswith(b"[") and len(body) > 2
