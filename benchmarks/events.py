"""The events that are published: link events of a usual size, to an exchange and a queue that nothing else uses."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from refract.runtime.messages import Binding, Message, Queue
from refract.services.links.api import UrlCreated

EXCHANGE = f"bench-{secrets.token_hex(6)}.events"
QUEUE = Queue(f"{EXCHANGE}.queue", (Binding(EXCHANGE, "url.*"),))
BATCH = 500
"""As many as the relay takes at once."""


def new_messages(count: int) -> list[Message]:
    """So many links were made just now."""
    return [_message(number) for number in range(count)]


def in_batches(messages: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    """The same messages in pieces."""
    for start in range(0, len(messages), size):
        yield messages[start : start + size]


def _message(number: int) -> Message:
    event = UrlCreated(
        short_code=f"{number:07x}",
        original_url=f"https://example.com/articles/{number}?utm_source=newsletter&utm_medium=mail",
        user_id="018f4b7a-4c1e-7b8e-9d57-3f1b6f1c2d3e",
        user_email="someone@example.com",
        order=number,
        occurred_at=datetime.now(UTC),
    )
    return replace(Message.of(event.stamped(f"bench-{number}")), exchange=EXCHANGE)
