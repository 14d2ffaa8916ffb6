"""Frames that we make ourselves are those that the library makes."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from refract.runtime.distributed.rabbit_wire import LONGEST_ID, publish_frames
from refract.runtime.messages import Message

NOW = datetime(2026, 3, 1, 12, 30, 15, 999_999, tzinfo=UTC)
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)


def by_the_library(message: Message, headers: dict[str, str] | None, channel: int, frame_max: int) -> list[bytes]:
    properties = commands.Basic.Properties(
        content_type="application/json",
        delivery_mode=2,
        message_id=message.message_id,
        correlation_id=message.correlation_id,
        timestamp=NOW,
        headers=headers,  # type: ignore[arg-type]  # a table of texts is one, but not to a dictionary's type
    )
    method = commands.Basic.Publish(
        exchange=message.exchange, routing_key=message.routing_key, mandatory=message.mandatory
    )
    body, piece = message.body, frame_max - 8
    return [
        frame.marshal(method, channel),
        frame.marshal(ContentHeader(body_size=len(body), properties=properties), channel),
        *(frame.marshal(ContentBody(body[start : start + piece]), channel) for start in range(0, len(body), piece)),
    ]


@given(
    names,
    names,
    st.binary(max_size=1_000),
    st.tuples(names, names),
    st.booleans(),
    st.integers(1, 65_535),
    st.none() | st.dictionaries(st.sampled_from(["a", "refract-reason"]), names, max_size=2),
)
def test_the_frames_of_any_message(
    routing_key: str,
    message_id: str,
    body: bytes,
    others: tuple[str, str],
    mandatory: bool,
    channel: int,
    headers: dict[str, str] | None,
) -> None:
    correlation_id, _ = others
    message = Message("smap.events", routing_key, body, message_id, correlation_id, mandatory)
    made = publish_frames(message, headers, NOW, channel, 512)
    assert made == by_the_library(message, headers or None, channel, 512)


@pytest.mark.parametrize("field", ["message_id", "correlation_id", "routing_key"])
def test_what_does_not_fit_is_refused(field: str) -> None:
    values = {"message_id": "m", "correlation_id": "c", "routing_key": "k"} | {field: "ü" * 128}
    assert len(values[field].encode()) == LONGEST_ID + 1
    message = Message("e", values["routing_key"], b"{}", values["message_id"], values["correlation_id"])
    with pytest.raises((ValueError, TypeError), match="25"):
        publish_frames(message, None, NOW, 1, 131_072)
