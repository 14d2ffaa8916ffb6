"""What every Kafka client of ours shares: its settings, and what becomes of the library's own log lines."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from refract.kernel.errors import Unavailable

T = TypeVar("T")

CLIENT_ID = "refract"
SECONDS_BETWEEN_LINES = 60.0
"""The library repeats itself with every attempt to connect: so long it is heard once."""

AWAY = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001  # the library's own errors have public names with an underscore
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
    }
)

logger = logging.getLogger(__name__)


def client_settings(bootstrap: str) -> dict[str, str | int | float | bool]:
    """Where the brokers are and how soon they are tried again."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": CLIENT_ID,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "socket.connection.setup.timeout.ms": 5_000,
        "socket.keepalive.enable": True,
        "allow.auto.create.topics": False,
        "log.connection.close": False,
    }


class Quietened(logging.Filter):
    """Lets a line of the library through once in a while, whatever numbers it has in it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line of its kind was not heard lately; the kind is the first word of it."""
        kind = record.getMessage().partition(" ")[0]
        now = self._clock()
        if now < self._next.get(kind, 0.0):
            return False
        self._next[kind] = now + SECONDS_BETWEEN_LINES
        return True


def library_log() -> logging.Logger:
    """Where the library's lines go: into our log, quietened."""
    log = logging.getLogger("refract.kafka")
    if not any(isinstance(one, Quietened) for one in log.filters):
        log.addFilter(Quietened())
    return log


async def asked(question: Callable[[], T]) -> T:
    """Ask a blocking question in a thread; the library's trouble is Unavailable."""
    try:
        return await asyncio.to_thread(question)
    except KafkaException as error:
        raise Unavailable("kafka", reason_of(error)) from None


def reason_of(error: KafkaException) -> str:
    """The words of an error, without the object around them."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner)
