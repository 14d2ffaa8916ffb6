"""What both twins of the database share: announcing in a transaction, its end after a failure, the wake-up bell."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from refract.kernel.errors import Invalid, RefractError
from refract.kernel.events import Event
from refract.kernel.ids import new_event_id
from refract.runtime.correlation import current_correlation_id
from refract.runtime.messages import Message

ACQUIRE_TIMEOUT = 5.0
"""Seconds that a caller waits for a connection, or for its turn to write."""

COMMAND_TIMEOUT = 10.0
"""Seconds that one statement may take."""

OUTBOX_COLUMNS = (
    "id",
    "exchange",
    "event_type",
    "payload",
    "message_id",
    "correlation_id",
    "mandatory",
    "created_at",
    "next_attempt_at",
)


class StatementFailed(RefractError):
    """A statement is wrong, or breaks a rule of its table. Says which and how, and never quotes a value of a row."""

    def __init__(self, statement: str, reason: str) -> None:
        super().__init__()
        self.statement = statement
        self.reason = reason

    def __str__(self) -> str:
        return f"statement {self.statement} failed: {self.reason}"


class TransactionOver(RefractError):
    """A transaction was used after its end, or after one of its statements had failed and doomed it."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def __str__(self) -> str:
        return f"this transaction cannot go on: {self.reason}"


class Outgoing:
    """A transaction's announcements: kept until its next statement or its commit, and then written in one go."""

    def __init__(self) -> None:
        self.announced = False
        self._waiting: list[Message] = []
        self._over: str | None = None

    async def announce(self, *events: Event) -> None:
        """Save events with this write; they are sent after the commit, and only then."""
        correlation_id = current_correlation_id()
        await self.post(*(Message.of(event.stamped(correlation_id)) for event in events))

    async def post(self, *messages: Message) -> None:
        """The same for bodies that are encoded already."""
        self.check_usable()
        self._waiting.extend(messages)
        self.announced = self.announced or bool(messages)

    def take_waiting(self) -> list[Message]:
        """What is to be written before anything else, each message once."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def check_usable(self) -> None:
        """Refuse what comes after the end, and after a failure: PostgreSQL does so, and both engines shall be alike."""
        if self._over is not None:
            raise TransactionOver(self._over)

    def end(self, reason: str) -> None:
        """Nothing can be done in this transaction any more; the first reason stands."""
        self._over = self._over or reason


def outbox_rows(messages: Sequence[Message], held: float = 0.0) -> list[tuple[Any, ...]]:
    """The rows that keep messages, in the order of OUTBOX_COLUMNS; no relay takes them while they are `held`."""
    now = datetime.now(UTC)
    due = now + timedelta(seconds=held) if held else None
    return [
        (
            new_event_id(),  # version 7: rows lie in their index in the order in which they were written
            message.exchange,
            message.routing_key,
            _text(message),
            message.message_id,
            message.correlation_id,
            message.mandatory,
            now,
            due,
        )
        for message in messages
    ]


def _text(message: Message) -> str:
    """A body as the text that the outbox keeps; bodies are JSON, so anything else is a mistake of the caller."""
    try:
        return message.body.decode()
    except UnicodeDecodeError:
        raise Invalid(f"the body of {message.routing_key} is not UTF-8") from None


class Bell:
    """Wakes whoever waits. Rung while nobody waits, it wakes the next who does: no call is lost in between."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake all who wait, or else the next."""
        self._rung.set()

    async def heard(self, timeout: float) -> bool:
        """Whether it rang within so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._rung.wait()
        heard = self._rung.is_set()
        self._rung.clear()
        return heard
