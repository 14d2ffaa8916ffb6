"""Both event families: what is written, what comes back, and what is poison and why."""

import json
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.errors import PoisonMessage
from refract.kernel.events import (
    LINK_EXCHANGE,
    LONGEST_ID,
    MAX_REASON,
    MOST_BYTES,
    MOST_PARTS,
    PLATFORM_EXCHANGE,
    Event,
    EventDecoder,
    LinkEvent,
    Moment,
    PlatformEvent,
    Unreadable,
    array_of,
    encode_batch,
    parts_of,
)


class PageSeen(LinkEvent, frozen=True, kw_only=True, tag="page.seen"):
    page: str
    times: int = 1
    until: Moment | None = None


class MailWanted(PlatformEvent, frozen=True, kw_only=True, tag="email.wanted"):
    needs_reader: ClassVar[bool] = False

    to: str
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    until: Moment | None = None


DECODER = EventDecoder(PageSeen, MailWanted)
AT = datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)

FLAT: dict[str, Any] = {
    "event_type": "page.seen",
    "occurred_at": "2024-05-06T07:08:09.123456Z",
    "event_id": "e-1",
    "correlation_id": "c-1",
    "page": "home",
}
ENVELOPE: dict[str, Any] = {
    "event_id": "evt_1",
    "timestamp": "2024-05-06T07:08:09.123456Z",
    "correlation_id": "c-1",
    "payload": {"to": "a@example.com"},
}

# A lone surrogate is no character: UTF-8 cannot carry it, and no text that we read from the wire can hold one.
texts = st.text(st.characters(exclude_categories=["Cs"]))
offsets = st.integers(min_value=-23 * 60 - 59, max_value=23 * 60 + 59).map(lambda m: timezone(timedelta(minutes=m)))
moments = st.datetimes(timezones=st.one_of(st.just(UTC), offsets))
stamped_texts = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=LONGEST_ID)
page_seen = st.builds(
    PageSeen,
    occurred_at=moments,
    event_id=stamped_texts,
    correlation_id=texts,
    page=texts,
    times=st.integers(-(2**63), 2**63 - 1),
    until=st.none() | moments,
)
mail_wanted = st.builds(
    MailWanted,
    occurred_at=moments,
    event_id=stamped_texts,
    correlation_id=texts,
    to=texts,
    headers=st.dictionaries(texts, texts),
    until=st.none() | moments,
)


def flat(**changes: object) -> bytes:
    return json.dumps(FLAT | changes).encode()


def envelope(**changes: object) -> bytes:
    return json.dumps(ENVELOPE | changes).encode()


def without(document: dict[str, Any], key: str) -> bytes:
    return json.dumps({name: value for name, value in document.items() if name != key}).encode()


def reason(routing_key: str, body: bytes) -> str:
    with pytest.raises(PoisonMessage) as caught:
        DECODER.decode(routing_key, body)
    assert str(caught.value).startswith(f"{routing_key}: ")
    return str(caught.value).removeprefix(f"{routing_key}: ")


@given(page_seen)
def test_the_flat_family_comes_back(event: PageSeen) -> None:
    assert DECODER.decode("page.seen", event.encode()) == [event]


@given(mail_wanted)
def test_the_enveloped_family_comes_back(event: MailWanted) -> None:
    assert DECODER.decode("email.wanted", event.encode()) == [event]


@given(st.lists(page_seen, min_size=1, max_size=10))
def test_a_batch_comes_back_in_its_order(events: list[PageSeen]) -> None:
    assert DECODER.decode("page.seen", encode_batch(events)) == events


def test_the_flat_form() -> None:
    event = PageSeen(occurred_at=AT, event_id="e-1", correlation_id="c-1", page="home", times=2, until=AT)
    moment = "2024-05-06T07:08:09.123456Z"
    assert json.loads(event.encode()) == FLAT | {"times": 2, "until": moment, "occurred_at": moment}


def test_the_enveloped_form() -> None:
    event = MailWanted(occurred_at=AT, event_id="evt_1", correlation_id="c-1", to="a@example.com")
    assert json.loads(event.encode()) == ENVELOPE


def test_absent_optional_fields_are_not_written_and_ids_always_are() -> None:
    assert set(json.loads(PageSeen(occurred_at=AT, page="home").encode())) == set(FLAT)
    written = json.loads(MailWanted(occurred_at=AT, to="x").encode())
    assert written.keys() == ENVELOPE.keys()
    assert written["payload"] == {"to": "x"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2024-05-06T07:08:09Z", AT.replace(microsecond=0)),
        ("2024-05-06T07:08:09.1Z", AT.replace(microsecond=100000)),
        ("2024-05-06T07:08:09.123456789Z", AT.replace(microsecond=123457)),
        ("2024-05-06T07:08:09.999999999Z", AT.replace(second=10, microsecond=0)),
        ("2024-05-06T09:08:09.123456+02:00", AT),
    ],
)
def test_timestamps_of_other_writers_are_read(written: str, read: datetime) -> None:
    assert DECODER.decode("page.seen", flat(occurred_at=written))[0].occurred_at == read
    assert DECODER.decode("email.wanted", envelope(timestamp=written))[0].occurred_at == read


def test_unknown_fields_are_ignored() -> None:
    more: dict[str, object] = {"version": 7, "nested": {"a": [1, None, 1.5]}}
    assert DECODER.decode("page.seen", flat(**more)) == DECODER.decode("page.seen", flat())
    payload = ENVELOPE["payload"] | more
    expected = DECODER.decode("email.wanted", envelope())
    assert DECODER.decode("email.wanted", envelope(payload=payload, **more)) == expected


def test_a_null_is_an_absent_optional_field() -> None:
    assert DECODER.decode("page.seen", flat(until=None)) == DECODER.decode("page.seen", flat())


def test_the_envelope_outranks_its_payload() -> None:
    payload = ENVELOPE["payload"] | {"event_id": "forged", "occurred_at": "yesterday", "event_type": "page.seen"}
    assert DECODER.decode("email.wanted", envelope(payload=payload)) == DECODER.decode("email.wanted", envelope())


def test_a_type_named_by_the_routing_key_alone_is_enough() -> None:
    assert DECODER.decode("page.seen", without(FLAT, "event_type")) == DECODER.decode("page.seen", flat())


DEEP = 100_000
POISON_FLAT = {
    "nothing": (b"", "truncated"),
    "not JSON": (b"hello", "malformed"),
    "not UTF-8 at all": (b"\xff\xfe{}", "malformed"),
    "not UTF-8 in a text": (flat().replace(b"home", b"h\xffme"), "not UTF-8"),
    "half a surrogate pair": (flat().replace(b"home", rb"\ud800 and no other half"), "surrogate"),
    "truncated": (flat()[:-9], "truncated"),
    "more behind it": (flat() + b"{}", "trailing"),
    "null": (b"null", "got `null`"),
    "a text": (b'"page.seen"', "got `str`"),
    "a wrong type": (flat(page=7), "Expected `str`, got `int` - at `$.page`"),
    "a missing field": (without(FLAT, "page"), "missing required field `page`"),
    "no moment": (without(FLAT, "occurred_at"), "missing required field `occurred_at`"),
    "another event_type": (flat(event_type="page.left"), "'page.left' - at `$.event_type`"),
    "an event_type that is no text": (flat(event_type=[]), "`$.event_type`"),
    "a moment without offset": (flat(occurred_at="2024-05-06T07:08:09"), "timezone component - at `$.occurred_at`"),
    "no such day": (flat(occurred_at="2024-02-30T00:00:00Z"), "RFC3339 encoded datetime - at `$.occurred_at`"),
    "a moment in words": (flat(occurred_at="yesterday"), "RFC3339 encoded datetime - at `$.occurred_at`"),
    "an empty array": (b"[]", "empty array"),
    "one bad element": (b"[" + flat() + b"," + flat(page=None) + b"]", "got `null` - at `$[1].page`"),
    "arrays in an array": (b"[[" + flat() + b"]]", "got `array` - at `$[0]`"),
    "deep nesting": (flat()[:-1] + b',"more":' + b"[" * DEEP + b"]" * DEEP + b"}", "nested too deeply"),
    "a huge whole number": (flat()[:-1] + b',"times":' + b"9" * 5000 + b"}", "out of range - at `$.times`"),
    "a huge exponent": (flat()[:-1] + b',"times":1e999}', "out of range - at `$.times`"),
    "a fraction for a whole number": (flat(times=1.5), "got `float` - at `$.times`"),
    "no id at all": (flat(event_id="", correlation_id=""), "neither event_id nor correlation_id"),
    "no id in one element": (b"[" + flat() + b"," + flat(event_id="", correlation_id="") + b"]", "neither event_id"),
    "an id that is no text": (flat(event_id=5), "`$.event_id`"),
    "an id that is too long": (flat(event_id="x" * (LONGEST_ID + 1)), "an id of 257 characters that cannot be kept"),
    "an id that no database keeps": (flat(event_id="a\0b"), "an id of 3 characters that cannot be kept"),
    "a story in place of an id that no database keeps": (flat(event_id="", correlation_id="a\0"), "an id of 2"),
}
POISON_ENVELOPE = {
    "nothing": (b"", "truncated"),
    "an array": (b"[" + envelope() + b"]", "got `array`"),
    "no payload": (without(ENVELOPE, "payload"), "missing required field `payload`"),
    "a payload that is no object": (envelope(payload="to"), "got `str` - at `$.payload`"),
    "no event_id": (without(ENVELOPE, "event_id"), "missing required field `event_id`"),
    "no timestamp": (without(ENVELOPE, "timestamp"), "missing required field `timestamp`"),
    "a timestamp without offset": (envelope(timestamp="2024-05-06T07:08:09"), "timezone component"),
    "a missing field": (envelope(payload={}), "missing required field `to`"),
    "a wrong type": (envelope(payload={"to": 5}), "Expected `str`, got `int` - at `$.to`"),
    "no id at all": (envelope(event_id="", correlation_id=""), "neither event_id nor correlation_id"),
    "not UTF-8 in a text": (envelope().replace(b"example", b"ex\xffmple"), "not UTF-8"),
    "deep nesting": (b'{"payload":' + b'{"a":' * DEEP, "nested too deeply"),
}


@pytest.mark.parametrize(("body", "says"), POISON_FLAT.values(), ids=POISON_FLAT)
def test_poison_of_the_flat_family_says_what_is_wrong(body: bytes, says: str) -> None:
    assert says in reason("page.seen", body)


@pytest.mark.parametrize(("body", "says"), POISON_ENVELOPE.values(), ids=POISON_ENVELOPE)
def test_poison_of_the_enveloped_family_says_what_is_wrong(body: bytes, says: str) -> None:
    assert says in reason("email.wanted", body)


def test_a_routing_key_that_nobody_asked_for_is_poison() -> None:
    assert reason("page.left", flat(event_type="page.left")) == "not an event that this reader knows"
    assert reason("", flat()) == "not an event that this reader knows"


def test_a_reason_that_quotes_the_body_stays_short() -> None:
    assert len(reason("page.seen", flat(event_type="x" * 100_000))) <= MAX_REASON + 1


@given(st.sampled_from(["page.seen", "email.wanted", "other"]), st.binary())
def test_any_bytes_are_events_or_poison(routing_key: str, body: bytes) -> None:
    decode_or_poison(routing_key, body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | moments.map(datetime.isoformat),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["page", "times", "until", *FLAT]), json_values))
def test_any_values_in_the_fields_are_an_event_or_poison(changes: dict[str, Any]) -> None:
    decode_or_poison("page.seen", flat(**changes))
    decode_or_poison("page.seen", b"[" + flat(**changes) + b"," + flat() + b"]")


@given(st.dictionaries(st.sampled_from(["to", "headers", "until"]), json_values), json_values)
def test_any_values_in_an_envelope_are_an_event_or_poison(payload: dict[str, Any], timestamp: object) -> None:
    decode_or_poison("email.wanted", envelope(payload=payload))
    decode_or_poison("email.wanted", envelope(timestamp=timestamp))


@given(st.data())
def test_a_body_with_one_byte_changed_is_an_event_or_poison(data: st.DataObject) -> None:
    routing_key, body = data.draw(st.sampled_from([("page.seen", flat()), ("email.wanted", envelope())]))
    place = data.draw(st.integers(0, len(body) - 1))
    decode_or_poison(routing_key, body[:place] + data.draw(st.binary(max_size=2)) + body[place + 1 :])


@given(st.lists(st.one_of(page_seen, st.sampled_from([b"7", b"null", b"[]", b"{}", flat(page=None)])), max_size=8))
def test_of_an_array_every_event_is_read_and_the_rest_is_told_apart(parts: list[PageSeen | bytes]) -> None:
    events = [part for part in parts if isinstance(part, PageSeen)]
    others = [part for part in parts if isinstance(part, bytes)]
    body = array_of(part if isinstance(part, bytes) else part.encode() for part in parts)
    assert parts_of(body) == [part if isinstance(part, bytes) else part.encode() for part in parts]
    if not events:
        with pytest.raises(PoisonMessage):
            DECODER.sort_out("page.seen", body)
        return
    found, unreadable = DECODER.sort_out("page.seen", body)
    assert (found, [one.body for one in unreadable]) == (events, others)
    assert all(one.reason.startswith("page.seen: ") for one in unreadable)


@pytest.mark.parametrize("body", [b"", b"{", b"[1", b"7", b"{}", b'"[]"', b"\xff", b"[" * DEEP, b"[]"])
def test_what_is_no_array_has_no_parts(body: bytes) -> None:
    assert parts_of(body) == []
    with pytest.raises(PoisonMessage):
        DECODER.sort_out("page.seen", body)


@pytest.mark.parametrize("body", [array_of([b"1"] * (MOST_PARTS + 1)), array_of([b'"%b"' % (b"x" * MOST_BYTES)])])
def test_an_array_larger_than_any_of_ours_is_not_looked_into(body: bytes) -> None:
    assert parts_of(body) == []
    assert parts_of(array_of([b"1"] * MOST_PARTS)) == [b"1"] * MOST_PARTS


def test_an_array_for_a_reader_of_others_is_not_looked_into() -> None:
    with pytest.raises(PoisonMessage, match="not an event that this reader knows"):
        DECODER.sort_out("page.left", array_of([flat(), flat()]))
    assert DECODER.sort_out("page.seen", array_of([flat(), b"7"]))[1] == [
        Unreadable(b"7", "page.seen: Expected `object | array`, got `int`")
    ]


def decode_or_poison(routing_key: str, body: bytes) -> None:
    """Whatever else is raised fails the test."""
    try:
        events = DECODER.decode(routing_key, body)
    except PoisonMessage as error:
        assert len(str(error)) > len(routing_key) + 2  # noqa: PT017  # decoding may also succeed
    else:
        assert events
        assert all(event.event_id or event.correlation_id for event in events)


def test_stamping_fills_in_what_is_missing_and_nothing_else() -> None:
    bare = PageSeen(occurred_at=AT, page="home")
    stamped = bare.stamped("request-1")
    assert str(uuid.UUID(stamped.event_id)) == stamped.event_id
    assert stamped.correlation_id == "request-1"
    assert msgspec.structs.replace(stamped, event_id="", correlation_id="") == bare
    assert stamped.stamped("request-2") is stamped
    assert bare.stamped("").event_id != stamped.event_id


def test_stamping_keeps_what_is_there() -> None:
    with_id = PageSeen(occurred_at=AT, page="home", event_id="mine").stamped("request-1")
    assert (with_id.event_id, with_id.correlation_id) == ("mine", "request-1")
    with_correlation = PageSeen(occurred_at=AT, page="home", correlation_id="mine").stamped("request-1")
    assert with_correlation.correlation_id == "mine"
    assert with_correlation.event_id


def test_each_family_has_its_own_ids_and_exchange() -> None:
    assert MailWanted(occurred_at=AT, to="x").stamped("c").event_id.startswith("evt_")
    assert (PageSeen.exchange, MailWanted.exchange) == (LINK_EXCHANGE, PLATFORM_EXCHANGE)
    assert (PageSeen.routing_key(), MailWanted.routing_key()) == ("page.seen", "email.wanted")
    assert (PageSeen.needs_reader, MailWanted.needs_reader) == (True, False)


@pytest.mark.parametrize(
    ("event", "identity"),
    [
        (PageSeen(occurred_at=AT, page="x", event_id="e", correlation_id="c"), "e"),
        (PageSeen(occurred_at=AT, page="x", correlation_id="c"), "page.seen:c"),
        (MailWanted(occurred_at=AT, to="x", event_id="evt_1"), "evt_1"),
        (MailWanted(occurred_at=AT, to="x", correlation_id="c"), "email.wanted:c"),
    ],
)
def test_identity_is_the_event_id_or_the_older_composite(event: Event, identity: str) -> None:
    assert event.identity == identity


def test_an_event_without_event_id_is_read_and_told_apart_by_the_composite() -> None:
    [event] = DECODER.decode("page.seen", without(FLAT, "event_id"))
    assert event.identity == "page.seen:c-1"
