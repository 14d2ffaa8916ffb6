"""Arrays of events that leave together are one message; nothing else changes, and nothing is lost."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from refract.runtime.joining import JOINED_BYTES, in_messages


def row(number: int, payload: str | None, **others: Any) -> dict[str, Any]:
    """A row of the outbox."""
    return {
        "exchange": "some",
        "event_type": "some.thing",
        "payload": payload,
        "message_id": f"id-{number}",
        "correlation_id": "",
        "mandatory": True,
        **others,
    }


def array(*numbers: int) -> str:
    """Events as an array."""
    return json.dumps(numbers)


def test_arrays_are_joined_under_the_id_of_the_first_and_their_number() -> None:
    rows = [row(1, array(1, 2)), row(2, array(3)), row(3, array(4, 5))]
    [(message, together)] = in_messages(rows)
    assert json.loads(message.body) == [1, 2, 3, 4, 5]
    assert message.message_id == "id-1+2"
    assert together == rows


def test_an_array_alone_keeps_its_bytes() -> None:
    [(message, _)] = in_messages([row(1, "[ 1,\n2 ]\n")])
    assert message.body == b"[ 1,\n2 ]\n"
    assert message.message_id == "id-1"
    [(message, _)] = in_messages([row(1, "[ 1,\n2 ]\n"), row(2, "[3]")])
    assert json.loads(message.body) == [1, 2, 3]


def test_what_a_disk_has_spoilt_spoils_no_others() -> None:
    payloads = [array(1), '[{"a": 1}, {"b: 2}]', array(2), "[ ]", array(3), "[1]]", array(4), array(5)]
    rows = [row(number, payload) for number, payload in enumerate(payloads)]
    sizes = [len(together) for _, together in in_messages(rows)]
    assert sizes == [1, 1, 1, 1, 1, 1, 2]


def test_what_is_no_array_or_an_empty_one_leaves_by_itself() -> None:
    payloads: list[str | None] = [array(1), '{"a": [1]}', "[]", array(2), "", None, "[", "]", array(3), array(4)]
    bodies = [message.body for message, _ in in_messages([row(n, payload) for n, payload in enumerate(payloads)])]
    assert bodies == [b"[1]", b'{"a": [1]}', b"[]", b"[2]", b"", b"", b"[", b"]", b"[3,4]"]


def test_only_what_has_the_same_address_travels_together() -> None:
    for other in ({"exchange": "b"}, {"event_type": "b"}, {"mandatory": False}, {"correlation_id": "b"}):
        rows = [row(1, array(1)), row(2, array(2), **other), row(3, array(3), **other)]
        first, second = in_messages(rows)
        assert [len(together) for _, together in (first, second)] == [1, 2]
        assert json.loads(second[0].body) == [2, 3]


def test_a_message_has_its_bounds() -> None:
    long = json.dumps(["x" * (JOINED_BYTES // 3)])
    assert [len(together) for _, together in in_messages([row(n, long) for n in range(5)])] == [2, 2, 1]
    longer = json.dumps(["x" * 2 * JOINED_BYTES])
    assert [len(together) for _, together in in_messages([row(1, array(1)), row(2, longer), row(3, array(2))])] == [
        1,
        1,
        1,
    ]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.text(max_size=50), min_size=1, max_size=5))))
def test_every_event_is_there_once_and_in_its_order(written: list[tuple[str, list[str]]]) -> None:
    rows = [row(number, json.dumps(texts), event_type=kind) for number, (kind, texts) in enumerate(written)]
    messages = list(in_messages(rows))
    assert [one for _, together in messages for one in together] == rows
    sent = [(message.routing_key, text) for message, _ in messages for text in json.loads(message.body)]
    assert sent == [(kind, text) for kind, texts in written for text in texts]
