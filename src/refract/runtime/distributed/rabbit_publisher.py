"""Publishing to RabbitMQ: many messages in one write, each with its own confirmation, and never without end."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiormq
from aiormq.abc import ConfirmationFrameType
from pamqp import commands

from refract.kernel.clock import Clock
from refract.kernel.errors import BusAway, NotPublished, Unavailable, Unroutable
from refract.runtime.distributed import rabbit_wire
from refract.runtime.distributed.rabbit_connection import REFUSED, TROUBLE, RabbitConnection, Session, Step, answer
from refract.runtime.messages import PUBLISH_TIMEOUT, Message

Headers = Mapping[str, str]

SHARE_OF_CONFIRMATIONS = 0.9
SHARE_OF_PROBE = 0.08
"""How the time to publish is spent: when no confirmation has come, we ask whether the broker is there at all."""


class _Batch:
    """Messages sent together and what became of each."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.outcomes: dict[int, NotPublished | None] = {}
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.channel: ConfirmingChannel | None = None
        """Where it was sent, if it was."""
        self.heard_before = 0
        self.tags: list[int] = []

    def settle(self, index: int, outcome: NotPublished | None) -> None:
        self.outcomes[index] = outcome
        if len(self.outcomes) == len(self.messages) and not self.settled.done():
            self.settled.set_result(None)

    def fail(self, outcome: NotPublished) -> None:
        """This became of all that nothing is known of yet."""
        for index in range(len(self.messages)):
            self.outcomes.setdefault(index, outcome)


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
        self.session = session
        self.exchanges = {""}
        self.heard = 0
        """How often the broker has said something about a message."""
        self._clock = clock
        self._tag = 0
        self._sent: dict[int, _Sent] = {}
        self._returnable: dict[tuple[str, str, str], list[_Sent]] = {}
        session.lost.add_done_callback(self._lose)

    def send(self, batch: _Batch, headers: Headers | None) -> None:
        """Write all frames of a batch at once, but for what is settled already."""
        batch.channel, batch.heard_before = self, self.heard
        moment, frame_max = self._clock.now(), self.connection.connection_tune.frame_max
        frames: list[bytes] = []
        for index, message in enumerate(batch.messages):
            if index in batch.outcomes:
                continue
            try:
                frames += rabbit_wire.publish_frames(message, headers, moment, self.number, frame_max)
            except (ValueError, TypeError) as error:  # such as a routing key of more than 255 bytes
                batch.settle(index, NotPublished(f"it cannot be encoded: {error}"))
                continue
            self._tag += 1
            sent = self._sent[self._tag] = _Sent(batch, index, message)
            batch.tags.append(self._tag)
            if message.mandatory:
                self._returnable.setdefault(sent.identity, []).append(sent)
        self.session.write(b"".join(frames))

    def abandon(self, batch: _Batch) -> None:
        """Nobody waits for this batch any more: forget its bodies, and whatever is still said of it."""
        for tag in batch.tags:
            self._remove(tag)

    async def answers(self) -> bool:
        """Whether the broker is there, as it is for some messages while a queue cannot take another."""
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT * SHARE_OF_PROBE):
                await answer(self.basic_qos(prefetch_count=0))
        except TROUBLE:
            return False
        return True

    async def _on_confirm_frame(self, frame: ConfirmationFrameType) -> None:
        self.heard += 1
        last = frame.delivery_tag or 0
        refused = NotPublished("the broker refused it") if isinstance(frame, commands.Basic.Nack) else None
        if not getattr(frame, "multiple", False):
            self._settle(last, refused)
            return
        for tag in self._up_to(last):
            self._settle(tag, refused)

    async def _on_return_frame(self, frame: commands.Basic.Return) -> None:
        """The broker returns a message before it confirms it."""
        self.heard += 1
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
        sent = self._remove(tag)
        if sent is None:
            return
        if sent.returned:
            outcome = Unroutable(sent.message.exchange, sent.message.routing_key)
        sent.batch.settle(sent.index, outcome)

    def _remove(self, tag: int) -> _Sent | None:
        sent = self._sent.pop(tag, None)
        if sent is not None and sent.message.mandatory:
            self._forget(sent)
        return sent

    def _forget(self, sent: _Sent) -> None:
        alike = self._returnable[sent.identity]
        alike.remove(sent)
        if not alike:
            del self._returnable[sent.identity]

    def _lose(self, _: object) -> None:
        """With a lost connection the bus is away; with a closed channel, one of the messages was to blame."""
        refusal = self.session.refusal
        for tag in list(self._sent):
            self._settle(
                tag,
                BusAway("the connection to rabbitmq was lost")
                if refusal is None
                else NotPublished(f"the broker closed the channel: {refusal}"),
            )


class Publisher:
    """Publishes over one connection, which it has for itself: an alarm of the broker stops only this one."""

    def __init__(self, connection: RabbitConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._channel: ConfirmingChannel | None = None

    async def start(self) -> None:
        """Have a channel on every session."""
        await self._connection.establish(Step("channel to publish", self._open))

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
            async with asyncio.timeout(PUBLISH_TIMEOUT * SHARE_OF_CONFIRMATIONS):
                await self._publish(batch, headers)
        except TimeoutError:
            batch.fail(await _silence(batch))
        except TROUBLE as error:
            batch.fail(BusAway(str(error)))
        finally:
            if batch.channel is not None and batch.settled.cancelled():  # by the timeout, or with our caller
                batch.channel.abandon(batch)
        return [batch.outcomes[index] for index in range(len(messages))]

    async def _publish(self, batch: _Batch, headers: Headers | None) -> None:
        session = await self._connection.session()
        channel = self._channel
        assert channel is not None  # a session begins with it
        await session.unblocked()
        await self._declare_exchanges(channel, batch)
        await session.writer.drain()
        if not session.live:
            raise Unavailable("rabbitmq", "the connection was lost")
        channel.send(batch, headers)
        await batch.settled

    async def _declare_exchanges(self, channel: ConfirmingChannel, batch: _Batch) -> None:
        """Make unknown exchanges exist; messages to one that is refused are settled, and travel no further."""
        for exchange in {message.exchange for message in batch.messages} - channel.exchanges:
            try:
                async with channel.session.passing_channel() as passing:
                    await answer(rabbit_wire.declare_exchange(passing, exchange))
            except REFUSED as error:
                refused = NotPublished(f"exchange {exchange!r} is refused: {error}")
                for index, message in enumerate(batch.messages):
                    if message.exchange == exchange:
                        batch.settle(index, refused)
            else:
                channel.exchanges.add(exchange)

    async def _open(self, session: Session) -> None:
        channel = ConfirmingChannel(session, self._clock)
        await answer(channel.open())
        session.watch(channel)
        self._channel = channel


async def _silence(batch: _Batch) -> NotPublished:
    """Who is to blame that nothing was confirmed; a session that does not answer is dead, even if nobody told us."""
    reason, channel = f"no confirmation within {PUBLISH_TIMEOUT:g} s", batch.channel
    if channel is None or not channel.session.live or await channel.session.is_blocked():
        return BusAway(reason)
    if channel.heard > batch.heard_before or await channel.answers():
        return NotPublished(reason)
    channel.session.cut()
    return BusAway(reason)
