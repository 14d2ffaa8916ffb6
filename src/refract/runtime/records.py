"""What a record log carries: topics, the records written to them, and records as a reader gets them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from refract.kernel.errors import NotPublished

LARGEST_RECORD = 1_000_000
"""Bytes of value, key and headers together that one record may have: with its frame it fits into the 1 MiB that a
broker takes as it is shipped."""
LONGEST_KEY = 1024
LARGEST_BATCH = 500
"""Records that a reader is handed at once, at most."""
MOST_PARTITIONS = 1_000

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_DOTS = {".", ".."}


@dataclass(frozen=True, slots=True)
class Topic:
    """A named log. Records of one key go to one of its partitions, and only within a partition is there an order."""

    name: str
    partitions: int = 4

    def __post_init__(self) -> None:
        if not is_topic_name(self.name):
            raise ValueError(f"{self.name!r} is no name for a topic")
        if not 1 <= self.partitions <= MOST_PARTITIONS:
            raise ValueError(f"a topic has 1 to {MOST_PARTITIONS} partitions, not {self.partitions}")


@dataclass(frozen=True, slots=True)
class Record:
    """A value on its way to a topic, in order behind those of the same key."""

    topic: str
    key: str
    value: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReceivedRecord:
    """A record as a reader gets it; topic, partition and offset together name it for good.

    Anybody may have written it: what is not UTF-8 in its key and headers is replaced, and a missing value is empty.
    """

    topic: str
    key: str
    value: bytes
    headers: Mapping[str, str]
    partition: int
    offset: int
    written_at: datetime


def is_topic_name(name: str) -> bool:
    """Whether a topic may be called so, by Kafka's rules."""
    return _TOPIC.fullmatch(name) is not None and name not in _DOTS


def refusal(record: Record) -> NotPublished | None:
    """Why a record cannot be written at all, whatever the state of the log; the same in both modes."""
    if not is_topic_name(record.topic):
        return NotPublished(f"{record.topic[:300]!r} is no name for a topic")
    try:
        key = len(record.key.encode())
        headers = sum(len(name.encode()) + len(value.encode()) for name, value in record.headers.items())
    except UnicodeEncodeError as error:
        return NotPublished(f"it cannot be encoded: {error.reason}")
    if not 1 <= key <= LONGEST_KEY:
        return NotPublished(f"a key has 1 to {LONGEST_KEY} bytes, not {key}")
    size = key + headers + len(record.value)
    if size > LARGEST_RECORD:
        return NotPublished(f"a record has at most {LARGEST_RECORD} bytes, not {size}")
    return None
