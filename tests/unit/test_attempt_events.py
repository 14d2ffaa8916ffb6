"""An attempt on its topic: what is written can be read, and what cannot be kept is refused or made fit."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.errors import PoisonMessage
from refract.services.sms.domain.attempt_events import LONGEST_MESSAGE, LONGEST_TEXT, decode, encode
from refract.services.sms.domain.attempts import Attempt

EVENT_ID = "019531f0-5b7c-7cc1-a51b-0a1b2c3d4e5f"
ATTEMPT = Attempt(
    event_id=EVENT_ID,
    user_id=7,
    status="limited",
    path="redis",
    message="Your code is 4711",
    reason="Rate Limit Exceeded",
    correlation_id="c-1",
    occurred_at=datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC),
    message_id="m-1",
)
WIRE: dict[str, Any] = {
    "event_id": EVENT_ID,
    "event_type": "sms.attempt",
    "userId": 7,
    "status": "limited",
    "path": "redis",
    "message": "Your code is 4711",
    "reason": "Rate Limit Exceeded",
    "correlation_id": "c-1",
    "message_id": "m-1",
    "occurred_at": "2026-03-01T12:00:00.250000Z",
}


def changed(**changes: Any) -> Attempt:
    return Attempt(**{name: getattr(ATTEMPT, name) for name in ATTEMPT.__struct_fields__} | changes)


def test_the_names_on_the_wire() -> None:
    assert json.loads(encode(ATTEMPT)) == WIRE
    assert decode(json.dumps(WIRE).encode()) == ATTEMPT


def test_what_never_came_to_a_message_has_no_id_of_one() -> None:
    assert "message_id" not in json.loads(encode(changed(message_id="")))
    assert decode(encode(changed(message_id="", user_id=None))) == changed(message_id="", user_id=None)


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert decode(json.dumps(WIRE | {"provider": "none"}).encode()) == ATTEMPT


@pytest.mark.parametrize("user_id", [-1, 1 << 63, 1 << 200])
def test_a_number_that_is_nobodys_is_nobody(user_id: int) -> None:
    assert json.loads(encode(changed(user_id=user_id)))["userId"] is None


@given(st.text(st.characters(exclude_categories=()), max_size=300), st.integers(1, 30))
def test_any_text_can_be_written_and_kept(text: str, times: int) -> None:
    noted = changed(message=text * times, reason=text, correlation_id=text, message_id=text)
    kept = decode(encode(noted))
    for value in (kept.message, kept.reason, kept.correlation_id, kept.message_id):
        assert "\0" not in value
        value.encode()
    assert len(kept.message) <= LONGEST_MESSAGE
    assert len(kept.reason) <= LONGEST_TEXT
    if text.isascii() and "\0" not in text:
        assert kept.message == (text * times)[:LONGEST_MESSAGE]


WRONG: list[bytes] = [b"", b"null", b"[]", b"7: hello", b"\xff\xfe", b'"x"', b"{", b"[" * 100_000]
WRONG += [
    json.dumps({name: WIRE[name] for name in WIRE if name != missing}).encode()
    for missing in ("event_id", "userId", "occurred_at")
]
WRONG += [
    json.dumps(WIRE | {name: value}).encode()
    for name, value in (
        ("event_type", "url.clicked"),
        ("event_id", "7"),
        ("event_id", EVENT_ID.upper()),
        ("event_id", f"{EVENT_ID}\n"),
        ("userId", "7"),
        ("userId", -1),
        ("userId", 1 << 63),
        ("userId", 1 << 70),
        ("userId", 1.5),
        ("userId", True),
        ("status", "lost"),
        ("path", ""),
        ("message", None),
        ("occurred_at", "2026-03-01T12:00:00"),
        ("occurred_at", "1999-12-31T23:59:59Z"),
        ("occurred_at", "2100-01-01T00:00:00Z"),
        ("occurred_at", "0001-01-01T00:00:00+23:59"),
        ("occurred_at", "yesterday"),
        ("occurred_at", 1_772_366_400),
    )
]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: value[:40].decode(errors="replace"))
def test_anything_else_is_poison(value: bytes) -> None:
    with pytest.raises(PoisonMessage):
        decode(value)


@given(st.binary(max_size=200))
def test_bytes_are_an_attempt_or_poison(value: bytes) -> None:
    with suppress(PoisonMessage):
        decode(value)
