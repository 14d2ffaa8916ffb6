"""Publishing to RabbitMQ: many messages in one write, each with its own confirmation, and never without end."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiormq
from aiormq.abc import ConfirmationFrameType
from pamqp import commands

from refract.kernel.clock import Clock
from refract.kernel.errors import NotPublished, Unavailable, Unroutable
from refract.runtime.distributed import rabbit_wire
from refract.runtime.distributed.rabbit_connection import TROUBLE, RabbitConnection, Session, answer
from refract.runtime.messages import PUBLISH_TIMEOUT, Message

Headers = Mapping[str, str]


class _Batch:
    """Messages sent together and what became of each."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        unconfirmed = NotPublished(f"no confirmation within {PUBLISH_TIMEOUT:g} s")
        self.outcomes: list[NotPublished | None] = [unconfirmed] * len(messages)
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.session: Session | None = None
        self.sent_at = 0.0
        self._unsettled = len(messages)

    def settle(self, index: int, outcome: NotPublished | None) -> None:
        self.outcomes[index] = outcome
        self._unsettled -= 1
        if self._unsettled == 0 and not self.settled.done():
            self.settled.set_result(None)

    def fail(self, reason: str) -> None:
        """None of them was sent."""
        self.outcomes = [NotPublished(reason) for _ in self.messages]


@dataclass(slots=True, eq=False)
class _Sent:
    batch: _Batch
    index: int
    message: Message
    returned: bool = False

    @property
    def identity(self) -> tuple[str, str, str]:
        """All that a returned message tells of itself."""
        return self.message.exchange, self.message.routing_key, self.message.message_id


class ConfirmingChannel(aiormq.Channel):
    """A channel that keeps account of what was sent and not yet confirmed, by delivery tag.

    The client library would keep a future for each message and find returned ones by their message id alone, which
    two messages may share.
    """

    def __init__(self, session: Session, clock: Clock) -> None:
        number = max(session.connection.channels, default=0) + 1
        super().__init__(session.connection, number)
        session.connection.channels[number] = self
        self.exchanges = {""}
        self.last_heard = 0.0
        self._clock = clock
        self._write = session.write
        self._tag = 0
        self._sent: dict[int, _Sent] = {}
        self._returnable: dict[tuple[str, str, str], list[_Sent]] = {}
        session.lost.add_done_callback(self._lose)

    def send(self, batch: _Batch, headers: Headers | None) -> None:
        """Write all frames of a batch at once."""
        moment, frame_max = self._clock.now(), self.connection.connection_tune.frame_max
        frames: list[bytes] = []
        for index, message in enumerate(batch.messages):
            try:
                frames += rabbit_wire.publish_frames(message, headers, moment, self.number, frame_max)
            except ValueError as error:  # such as a routing key of more than 255 bytes
                batch.settle(index, NotPublished(f"it cannot be encoded: {error}"))
                continue
            self._tag += 1
            sent = self._sent[self._tag] = _Sent(batch, index, message)
            if message.mandatory:
                self._returnable.setdefault(sent.identity, []).append(sent)
        self._write(b"".join(frames))

    async def _on_confirm_frame(self, frame: ConfirmationFrameType) -> None:
        self.last_heard = self.loop.time()
        last = frame.delivery_tag or 0
        refused = NotPublished("the broker refused it") if isinstance(frame, commands.Basic.Nack) else None
        if not getattr(frame, "multiple", False):
            self._settle(last, refused)
            return
        for tag in self._up_to(last):
            self._settle(tag, refused)

    async def _on_return_frame(self, frame: commands.Basic.Return) -> None:
        """The broker returns a message before it confirms it."""
        self.last_heard = self.loop.time()
        header = await self._get_frame()
        delivered = await self._read_content(frame, header)  # type: ignore[arg-type]  # the broker keeps their order
        identity = (frame.exchange, frame.routing_key or "", delivered.header.properties.message_id or "")
        # Of two with one identity both count as returned: one that is sent twice is not lost.
        for sent in self._returnable.get(identity, ()):
            sent.returned = True

    def _up_to(self, last: int) -> list[int]:
        tags = []
        for tag in self._sent:  # in the order of their tags
            if tag > last:
                break
            tags.append(tag)
        return tags

    def _settle(self, tag: int, outcome: NotPublished | None) -> None:
        sent = self._sent.pop(tag, None)
        if sent is None:
            return
        if sent.message.mandatory:
            self._forget(sent)
        if sent.returned:
            outcome = Unroutable(sent.message.exchange, sent.message.routing_key)
        sent.batch.settle(sent.index, outcome)

    def _forget(self, sent: _Sent) -> None:
        alike = self._returnable[sent.identity]
        alike.remove(sent)
        if not alike:
            del self._returnable[sent.identity]

    def _lose(self, _: object) -> None:
        for tag in list(self._sent):
            self._settle(tag, NotPublished("the connection to rabbitmq was lost"))


class Publisher:
    """Publishes over one connection, which it has for itself: an alarm of the broker stops only this one."""

    def __init__(self, connection: RabbitConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._channel: ConfirmingChannel | None = None

    async def start(self) -> None:
        """Have a channel on every session."""
        await self._connection.establish(self._open)

    async def publish(self, message: Message, headers: Headers | None = None) -> None:
        """Publish one message; raises what became of it."""
        outcome = (await self.publish_all([message], headers))[0]
        if outcome is not None:
            raise outcome

    async def publish_all(
        self, messages: Sequence[Message], headers: Headers | None = None
    ) -> list[NotPublished | None]:
        """Publish many; returns within PUBLISH_TIMEOUT, whatever the broker does."""
        if not messages:
            return []
        batch = _Batch(messages)
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT):
                await self._publish(batch, headers)
        except TimeoutError:
            await self._suspect(batch)
        except TROUBLE as error:
            batch.fail(str(error))
        return list(batch.outcomes)

    async def _publish(self, batch: _Batch, headers: Headers | None) -> None:
        session = await self._connection.session()
        channel = self._channel
        assert channel is not None  # a session begins with it
        await session.unblocked()
        for exchange in {message.exchange for message in batch.messages} - channel.exchanges:
            await answer(rabbit_wire.declare_exchange(channel, exchange))
            channel.exchanges.add(exchange)
        await session.writer.drain()
        if not session.live:
            raise Unavailable("rabbitmq", "the connection was lost")
        batch.sent_at, batch.session = channel.loop.time(), session
        channel.send(batch, headers)
        await batch.settled

    async def _suspect(self, batch: _Batch) -> None:
        """A session on which nothing was heard since the batch was sent is dead, even if nobody told us."""
        session, channel = batch.session, self._channel
        if session is None or channel is None or not session.live:
            return
        if channel.last_heard < batch.sent_at and not await session.is_blocked():
            session.cut()

    async def _open(self, session: Session) -> None:
        channel = ConfirmingChannel(session, self._clock)
        await answer(channel.open())
        session.watch(channel)
        self._channel = channel
