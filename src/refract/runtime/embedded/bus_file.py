"""The tables of the embedded bus and what is done to them; each function is a job inside a transaction."""

import re
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from refract.kernel.errors import NotPublished
from refract.runtime.embedded.packing import packed, unpacked, unpacked_size
from refract.runtime.messages import Binding, DeadLetter, Message, Queue

SCHEMA = """
CREATE TABLE IF NOT EXISTS queues (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    -- The highest message id that a reader was given: what is not above it comes again as redelivered. It is written
    -- without waiting for the disk, so it outlives a kill of the process but perhaps not a loss of power.
    handed_out INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS bindings (
    queue INTEGER NOT NULL REFERENCES queues (id),
    exchange TEXT NOT NULL,
    pattern TEXT NOT NULL,
    PRIMARY KEY (queue, exchange, pattern)
) WITHOUT ROWID;
-- Ids are never used again: what is above handed_out is new.
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL REFERENCES queues (id),
    exchange TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    message_id TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS messages_by_queue ON messages (queue, id);
CREATE TABLE IF NOT EXISTS dead_letters (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL REFERENCES queues (id),
    exchange TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    message_id TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    body BLOB NOT NULL,
    reason TEXT NOT NULL,
    buried_at TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS dead_letters_by_queue ON dead_letters (queue, id);
"""

_INSERT = """
INSERT INTO messages (queue, exchange, routing_key, body, message_id, correlation_id) VALUES (?, ?, ?, ?, ?, ?)
"""
_TAKE_ONE = "SELECT id, exchange, routing_key, body, message_id, correlation_id FROM messages WHERE id = ?"
_TAKE_NEW = """
SELECT id, exchange, routing_key, body, message_id, correlation_id
FROM messages WHERE queue = ? AND id > ? ORDER BY id LIMIT ?
"""
_MARK_HANDED_OUT = "UPDATE queues SET handed_out = ?2 WHERE id = ?1 AND handed_out < ?2"
_BURY = """
INSERT INTO dead_letters (queue, exchange, routing_key, body, message_id, correlation_id, reason, buried_at)
SELECT queue, exchange, routing_key, ?, message_id, correlation_id, ?, ? FROM messages WHERE id = ?
"""
_DEAD_LETTERS = """
SELECT reason, buried_at, exchange, routing_key, body, message_id, correlation_id
FROM dead_letters WHERE queue = (SELECT id FROM queues WHERE name = ?) ORDER BY id LIMIT ?
"""
_REPLAY = """
INSERT INTO messages (queue, exchange, routing_key, body, message_id, correlation_id)
SELECT queue, exchange, routing_key, body, message_id, correlation_id FROM dead_letters WHERE id = ?
"""

# What a broker refuses is refused here too, so that nobody finds out in production.
LONGEST_TEXT = 255
LARGEST_BODY = 128 * 1024 * 1024
BATCH_BYTES = 192 * 1024
"""After so much a batch ends. It is handled in the thread that answers requests, a few hundred clicks at a time."""
_BODY = 3
_EXCHANGE = re.compile(r"[a-zA-Z0-9-_.:@#,/+ ]{0,127}")

Row = tuple[int, str, str, bytes, str, str]
"""Queue, exchange, routing key, body, message id, correlation id."""


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """What the file knows of a queue."""

    id: int
    name: str
    handed_out: int
    bindings: tuple[Binding, ...]


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection has written to the file."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def declared_queues(connection: sqlite3.Connection) -> list[DeclaredQueue]:
    """All queues with their bindings."""
    bindings: dict[int, list[Binding]] = {}
    for queue, exchange, pattern in connection.execute("SELECT queue, exchange, pattern FROM bindings"):
        bindings.setdefault(queue, []).append(Binding(exchange, pattern))
    rows = connection.execute("SELECT id, name, handed_out FROM queues ORDER BY id")
    return [DeclaredQueue(number, name, handed, tuple(bindings.get(number, ()))) for number, name, handed in rows]


def declare(connection: sqlite3.Connection, queue: Queue) -> None:
    """Make a queue exist. Bindings are added and never removed, as on a broker."""
    connection.execute("INSERT INTO queues (name) VALUES (?) ON CONFLICT DO NOTHING", (queue.name,))
    connection.executemany(
        "INSERT INTO bindings SELECT id, ?, ? FROM queues WHERE name = ? ON CONFLICT DO NOTHING",
        [(binding.exchange, binding.pattern, queue.name) for binding in queue.bindings],
    )


def insert(connection: sqlite3.Connection, messages: Iterable[tuple[Sequence[int], Message]]) -> None:
    """Write one row for each queue that takes a message."""
    connection.executemany(_INSERT, (row for queues, message in messages for row in _rows(queues, message)))


def take(
    connection: sqlite3.Connection, queue: int, returned: Sequence[int], after: int, limit: int
) -> list[tuple[int, Message]]:
    """Messages that were given back and then new ones, and a mark of how far the new ones were handed out."""
    taken = [row for wanted in returned for row in connection.execute(_TAKE_ONE, (wanted,))]
    with closing(connection.execute(_TAKE_NEW, (queue, after, limit - len(returned)))) as new:
        size = sum(unpacked_size(row[_BODY]) for row in taken)
        for row in new:
            taken.append(row)
            size += unpacked_size(row[_BODY])
            if size > BATCH_BYTES:
                break
    if taken:
        connection.execute(_MARK_HANDED_OUT, (queue, taken[-1][0]))
    return [(number, _message(row)) for number, *row in taken]


def delete(connection: sqlite3.Connection, ids: Collection[int]) -> None:
    """Forget messages that were handled."""
    connection.executemany("DELETE FROM messages WHERE id = ?", [(number,) for number in ids])


def bury(connection: sqlite3.Connection, number: int, body: bytes, reason: str, moment: datetime) -> None:
    """Move one message to the dead letters of its queue, with what of its body is to be kept."""
    connection.execute(_BURY, (packed(body), reason, moment.astimezone(UTC).isoformat(), number))
    delete(connection, [number])


def dead_letters(connection: sqlite3.Connection, queue: str, limit: int) -> list[DeadLetter]:
    """The oldest dead letters of a queue."""
    rows = connection.execute(_DEAD_LETTERS, (queue, limit))
    return [
        DeadLetter(message=_message(row), queue=queue, reason=reason, buried_at=datetime.fromisoformat(buried_at))
        for reason, buried_at, *row in rows
    ]


def replay(connection: sqlite3.Connection, queue: str, message_ids: Collection[str] | None) -> int:
    """Put dead letters back as new messages, so that readers who are further already see them."""
    rows = connection.execute(
        "SELECT id, message_id FROM dead_letters WHERE queue = (SELECT id FROM queues WHERE name = ?) ORDER BY id",
        (queue,),
    )
    chosen = [(number,) for number, message_id in rows if message_ids is None or message_id in message_ids]
    connection.executemany(_REPLAY, chosen)
    connection.executemany("DELETE FROM dead_letters WHERE id = ?", chosen)
    return len(chosen)


def refusal(message: Message) -> NotPublished | None:
    """Why a message cannot be sent at all, as on the wire: its address and ids are short texts."""
    if not _EXCHANGE.fullmatch(message.exchange):
        return NotPublished(f"exchange {message.exchange!r} is refused")
    if len(message.body) > LARGEST_BODY:
        return NotPublished(f"it cannot be encoded: its body has {len(message.body)} bytes")
    try:
        longest = max(len(text.encode()) for text in (message.routing_key, message.message_id, message.correlation_id))
    except UnicodeEncodeError as error:
        return NotPublished(f"it cannot be encoded: {error}")
    return NotPublished(f"it cannot be encoded: {longest} bytes in a short text") if longest > LONGEST_TEXT else None


def _rows(queues: Iterable[int], message: Message) -> list[Row]:
    """A message as a row for each queue; one without an id gets a stable one, as a reader of the wire gives it."""
    message_id = message.message_id or sha256(message.body).hexdigest()
    body = packed(message.body)
    return [
        (queue, message.exchange, message.routing_key, body, message_id, message.correlation_id) for queue in queues
    ]


def _message(row: Sequence[Any]) -> Message:
    exchange, routing_key, body, *ids = row
    return Message(exchange, routing_key, unpacked(body), *ids)
