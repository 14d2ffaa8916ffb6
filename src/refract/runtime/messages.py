"""What travels over the event bus: messages, the queues that take them, and letters that could not be handled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from refract.kernel.events import FANOUT_EXCHANGES, Event

PUBLISH_TIMEOUT = 5.0
"""Seconds after which a publish that nobody confirmed counts as failed."""


@dataclass(frozen=True, slots=True)
class Message:
    """A body on its way to an exchange. `mandatory` means: refuse it rather than drop it when no queue takes it."""

    exchange: str
    routing_key: str
    body: bytes
    message_id: str
    correlation_id: str = ""
    mandatory: bool = True

    @classmethod
    def of(cls, event: Event) -> Self:
        """The message that carries one event."""
        return cls(
            exchange=event.exchange,
            routing_key=event.routing_key(),
            body=event.encode(),
            message_id=event.event_id,
            correlation_id=event.correlation_id,
            mandatory=event.needs_reader,
        )


@dataclass(frozen=True, slots=True)
class Binding:
    """Which messages of an exchange a queue takes; `*` stands for one word of the key, `#` for any number."""

    exchange: str
    pattern: str

    def matches(self, exchange: str, routing_key: str) -> bool:
        """Whether a message sent there with this key is taken, by the rules of a topic exchange."""
        if exchange != self.exchange:
            return False
        return exchange in FANOUT_EXCHANGES or _matches(_words(self.pattern), _words(routing_key))


def _words(key: str) -> list[str]:
    """An empty key has no words, as RabbitMQ counts."""
    return key.split(".") if key else []


def _matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[taken:]) for taken in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue, declared by its reader together with what it is bound to."""

    name: str
    bindings: tuple[Binding, ...]
    prefetch: int = 500
    """How many deliveries a reader holds at once, which is also the largest batch."""

    @property
    def dead(self) -> str:
        """Where letters go that could not be handled."""
        return f"{self.name}.dead"


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One message handed to a reader; `tag` is the twin's own handle on it."""

    message: Message
    redelivered: bool
    tag: object = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up, with the reason."""

    message: Message
    queue: str
    reason: str
    buried_at: datetime
    headers: Mapping[str, str] = field(default_factory=dict)
