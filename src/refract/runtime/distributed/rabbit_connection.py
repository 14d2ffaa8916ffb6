"""One connection to RabbitMQ, kept for ever: made in the background, and made again after every loss."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import aiormq
from aiormq.abc import AbstractChannel
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from aiormq.exceptions import AMQPError, ChannelClosed, ChannelInvalidStateError
from yarl import URL

from refract.kernel.errors import Unavailable
from refract.runtime.distributed.rabbit_decoding import tolerate_foreign_frames
from refract.runtime.environment import without_credentials

HEARTBEAT_SECONDS = 10
CONNECT_SECONDS = 5.0
STEP_SECONDS = 5.0
FIRST_ATTEMPT_SECONDS = 2.0
CLOSE_SECONDS = 2.0
SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
FIRST_PAUSE_OF_A_STEP = 0.5
LONGEST_PAUSE_OF_A_STEP = 30.0

TROUBLE = (AMQPError, OSError, ChannelInvalidStateError, Unavailable)
"""What a call to the broker may end in; a timeout is an OSError."""

REFUSED = (ChannelClosed, ValueError, TypeError)
"""What a call ends in when the broker, or the client library on its behalf, answers no."""

logger = logging.getLogger(__name__)
T = TypeVar("T")


async def answer(call: Awaitable[T]) -> T:
    """Await the client library, which cancels its callers when their connection dies: to us that is a loss."""
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Unavailable("rabbitmq", "the connection was lost") from None
    except RuntimeError as error:  # "… closed", with the user's name in the text
        raise Unavailable("rabbitmq", "the connection is closed") from error


class Session:
    """One live connection. It ends as a whole: when the broker closes one channel, everything is declared anew.

    Content and acknowledgements are written straight to the socket's buffer, because the client library's own queue
    costs a task for each frame and can wait without end.
    """

    def __init__(self, connection: aiormq.Connection, writer: asyncio.StreamWriter) -> None:
        self.connection = connection
        self.writer = writer
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refusal: ChannelClosed | None = None
        """Why the broker closed the channel that ended the session, if that is what ended it."""
        self._watched: dict[AbstractChannel, asyncio.Future[Any]] = {}
        self._dismissals: set[asyncio.Task[None]] = set()
        connection.closing.add_done_callback(self._ended)

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect and log in."""
        address = URL(url)
        transports = _KeptTransports(TLSTransportFactory() if address.scheme == "amqps" else TCPTransportFactory())
        if "heartbeat" not in address.query:
            address = address.update_query(heartbeat=HEARTBEAT_SECONDS)
        connection = aiormq.Connection(address, transport_factory=transports)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await answer(connection.connect())
        except BaseException:
            transports.abort()
            raise
        assert transports.writer is not None
        return cls(connection, transports.writer)

    @property
    def live(self) -> bool:
        """Whether it may still be used."""
        return not self.lost.done()

    async def channel(self) -> AbstractChannel:
        """A channel of its own; it is the caller's to close or to watch."""
        return await answer(self.connection.channel(publisher_confirms=False))

    @asynccontextmanager
    async def lasting_channel(self) -> AsyncIterator[AbstractChannel]:
        """A channel to prepare in the block. From then on the session ends with it; one that fails is closed."""
        channel = await self.channel()
        channel.on_consumer_cancel_callbacks.add(self._ended)
        try:
            yield channel
        except BaseException:
            self._dismiss(channel)
            raise
        self.watch(channel)

    @asynccontextmanager
    async def passing_channel(self) -> AsyncIterator[AbstractChannel]:
        """A channel for the block only, so that what the broker refuses there harms nothing else."""
        channel = await self.channel()
        try:
            yield channel
        finally:
            self._dismiss(channel)

    def watch(self, channel: AbstractChannel) -> None:
        """End the session when the broker closes this channel."""
        self._watched[channel] = channel.closing
        self._watched[channel].add_done_callback(self._ended)

    def unwatch(self, channel: AbstractChannel) -> None:
        """This channel is about to be closed on purpose."""
        watched = self._watched.pop(channel, None)
        if watched is not None:
            watched.remove_done_callback(self._ended)

    def write(self, frames: bytes) -> None:
        """Hand frames to the socket; uvloop raises where it has gone and nobody was told yet."""
        try:
            self.writer.write(frames)
        except RuntimeError:
            self.cut()

    async def unblocked(self) -> None:
        """Wait while an alarm makes the broker refuse what is published."""
        await self.connection.ready()

    async def is_blocked(self) -> bool:
        """Whether an alarm makes the broker refuse what is published."""
        try:
            async with asyncio.timeout(0):
                await self.connection.ready()
        except TimeoutError:
            return True
        return False

    def cut(self) -> None:
        """End the session at once, without a word to the broker."""
        if self.live:
            self.lost.set_result(None)
        self.writer.transport.abort()

    async def close(self) -> None:
        """Say goodbye to the broker, but do not wait long for its answer."""
        for channel in list(self._watched):
            self.unwatch(channel)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await answer(self.connection.close())
        except TROUBLE:
            logger.debug("rabbitmq did not answer the goodbye")
        self.cut()

    def _dismiss(self, channel: AbstractChannel) -> None:
        """Close a channel in the background: whoever used it may have no time left."""
        task = asyncio.create_task(self._close_channel(channel))
        self._dismissals.add(task)
        task.add_done_callback(self._dismissals.discard)

    async def _close_channel(self, channel: AbstractChannel) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await answer(channel.close())
        except TROUBLE:
            logger.debug("rabbitmq did not close a channel")

    def _ended(self, cause: object) -> None:
        if self.live and isinstance(cause, asyncio.Future) and not cause.cancelled():
            error = cause.exception()
            self.refusal = error if isinstance(error, ChannelClosed) else None
        self.cut()


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Something to be made on every new session: a declaration, a subscription. Its name is for the log."""

    name: str
    take: Callable[[Session], Awaitable[None]]


class RabbitConnection:
    """Holds the current session, or waits for the next one.

    A step that fails is tried again in the background, while the session serves the others.
    """

    def __init__(self, url: str, purpose: str) -> None:
        self._url = url
        self._purpose = purpose
        self._steps: list[Step] = []
        self._session: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._establishing = asyncio.Lock()
        self._attempted = asyncio.Event()
        self._trouble = "not connected yet"
        self._keeper: asyncio.Task[None] | None = None
        self._retries: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to connect; returns soon, connected or not."""
        # The client library reports every failed attempt as an error with a traceback; one warning of ours is enough.
        logging.getLogger("aiormq").setLevel(logging.CRITICAL)
        tolerate_foreign_frames()
        self._keeper = asyncio.create_task(self._keep())
        try:
            async with asyncio.timeout(FIRST_ATTEMPT_SECONDS):
                await self._attempted.wait()
        except TimeoutError:
            self._warn("no answer yet")

    async def session(self) -> Session:
        """The current session; waits until there is one."""
        return await asyncio.shield(self._session)

    def current(self) -> Session:
        """The current session; Unavailable if there is none."""
        if not self._session.done() or not self._session.result().live:
            raise Unavailable("rabbitmq", self._trouble)
        return self._session.result()

    async def establish(self, step: Step) -> None:
        """Take a step now, if there is a session, and on every session to come."""
        async with self._establishing:
            self._steps.append(step)
            await self._take(step)

    async def forget(self, step: Step) -> None:
        """Do not take this step again; whoever was cancelled while it waited for its turn never began it."""
        async with self._establishing:
            if step in self._steps:
                self._steps.remove(step)

    async def close(self) -> None:
        """Stop connecting and close the session."""
        tasks = [task for task in (self._keeper, *self._retries) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._trouble = "the bus is closed"
        if self._session.done():
            await self._session.result().close()

    async def _keep(self) -> None:
        pause = SHORTEST_PAUSE
        while True:
            try:
                session = await self._connect()
            except Exception as error:  # noqa: BLE001  # whatever it is, a bus that stops trying is worse
                self._trouble = _reason(error)
                if pause == SHORTEST_PAUSE:
                    self._warn(self._trouble)
                self._attempted.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if pause > SHORTEST_PAUSE:
                logger.info("rabbitmq is back", extra=self._about())
            pause = SHORTEST_PAUSE
            self._attempted.set()
            await asyncio.wait([session.lost])
            logger.warning("rabbitmq connection lost; will reconnect in background", extra=self._about())
            self._session = asyncio.get_running_loop().create_future()
            self._trouble = "the connection was lost"
            await asyncio.sleep(SHORTEST_PAUSE)  # a broker that accepts and hangs up must not spin us

    async def _connect(self) -> Session:
        session = await Session.open(self._url)
        async with self._establishing:
            try:
                await self._take_all(session)
            except BaseException:
                session.cut()
                raise
            self._session.set_result(session)
            return session

    async def _take_all(self, session: Session) -> None:
        """Side by side, so that one which hangs holds up no other; a broker that answers none of them is away."""
        steps = list(self._steps)
        errors = await asyncio.gather(*(_attempt(step, session) for step in steps))
        if not session.live:
            raise Unavailable("rabbitmq", "the connection was lost")
        failed = [(step, error) for step, error in zip(steps, errors, strict=True) if error is not None]
        if failed and len(failed) == len(steps) and not any(isinstance(error, REFUSED) for _, error in failed):
            raise failed[0][1]
        for step, error in failed:
            self._retry_later(step, session, error)

    async def _take(self, step: Step) -> None:
        if not self._session.done():
            return
        session = self._session.result()
        error = await _attempt(step, session)
        if error is not None:
            self._retry_later(step, session, error)

    def _retry_later(self, step: Step, session: Session, error: Exception) -> None:
        self._warn_of(step, error)
        task = asyncio.create_task(self._retry(step, session))
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    async def _retry(self, step: Step, session: Session) -> None:
        pause = FIRST_PAUSE_OF_A_STEP
        while True:
            await asyncio.wait([session.lost], timeout=pause)
            pause = min(2 * pause, LONGEST_PAUSE_OF_A_STEP)
            async with self._establishing:
                if not session.live or step not in self._steps:  # a new session begins with all steps
                    return
                error = await _attempt(step, session)
            if error is None:
                logger.info("rabbitmq: the %s is there", step.name, extra=self._about())
                return
            self._warn_of(step, error)

    def _warn(self, reason: str) -> None:
        logger.warning("rabbitmq unavailable; will retry in background", extra={**self._about(), "reason": reason})

    def _warn_of(self, step: Step, error: Exception) -> None:
        about = {**self._about(), "reason": f"{type(error).__name__}: {error}"}
        logger.warning("rabbitmq: the %s failed; will retry in background", step.name, extra=about)

    def _about(self) -> dict[str, str]:
        return {"address": without_credentials(self._url), "purpose": self._purpose}


class _KeptTransports(TransportFactory):
    """Makes the usual transport and keeps hold of its writer."""

    def __init__(self, usual: TransportFactory) -> None:
        self._usual = usual
        self.writer: asyncio.StreamWriter | None = None

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, self.writer = await self._usual.create(url, **kwargs)
        return reader, self.writer

    def abort(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()


async def _attempt(step: Step, session: Session) -> Exception | None:
    """What went wrong, if anything did."""
    try:
        async with asyncio.timeout(STEP_SECONDS):
            await step.take(session)
    except Exception as error:  # noqa: BLE001  # whatever it is, it must not take the other steps along
        return error
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, Unavailable):
        return error.reason
    # Other errors may quote the address, with its password.
    return f"{type(error).__name__}: {error}" if isinstance(error, TROUBLE) else type(error).__name__
