"""The link events on the wire: the exact keys of the specification, what was added, and the round trip."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.errors import PoisonMessage
from refract.kernel.events import LONGEST_ID, EventDecoder, LinkEvent, encode_batch
from refract.services.analytics.api import LinkTotal, MilestoneReached, StatsTotals
from refract.services.links.api import UrlClicked, UrlCreated, UrlDeleted, UrlUpdated

EVENTS: tuple[type[LinkEvent], ...] = (UrlCreated, UrlUpdated, UrlDeleted, UrlClicked, MilestoneReached, StatsTotals)
DECODER = EventDecoder(*EVENTS)
AT = datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)
WRITTEN_AT = "2024-05-06T07:08:09.123456Z"

texts = st.text(st.characters(exclude_categories=["Cs"]))
counts = st.integers(0, 2**63 - 1)
moments = st.datetimes(timezones=st.just(UTC))
ids = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=LONGEST_ID)
envelope = {"occurred_at": moments, "event_id": ids, "correlation_id": texts}
owner = {"short_code": texts, "user_id": texts, "user_email": texts}
state = owner | {"original_url": texts, "order": counts, "expires_at": st.none() | moments}

clicks = st.builds(UrlClicked, **envelope, **owner, ip_hash=texts, ip_anonymized=texts, user_agent=texts, referer=texts)
totals = st.builds(LinkTotal, short_code=texts, total_clicks=counts, last_clicked_at=moments)
any_event = st.one_of(
    st.builds(UrlCreated, **envelope, **state),
    st.builds(UrlUpdated, **envelope, **state),
    st.builds(UrlDeleted, **envelope, **owner, order=counts),
    st.builds(MilestoneReached, **envelope, **owner, milestone=counts, total_clicks=counts),
    st.builds(StatsTotals, **envelope, totals=st.lists(totals, max_size=3).map(tuple)),
    clicks,
)

FULL: list[tuple[LinkEvent, dict[str, object]]] = [
    (
        UrlCreated(
            occurred_at=AT,
            event_id="e",
            correlation_id="c",
            short_code="abc1234",
            original_url="https://example.com/",
            user_id="u",
            user_email="u@example.com",
            order=1,
            expires_at=AT,
        ),
        {
            "event_type": "url.created",
            "occurred_at": WRITTEN_AT,
            "correlation_id": "c",
            "short_code": "abc1234",
            "original_url": "https://example.com/",
            "user_id": "u",
            "user_email": "u@example.com",
            "expires_at": WRITTEN_AT,
            "event_id": "e",
            "order": 1,
        },
    ),
    (
        UrlUpdated(
            occurred_at=AT,
            event_id="e",
            correlation_id="c",
            short_code="abc1234",
            original_url="https://example.com/",
            user_id="u",
            user_email="u@example.com",
            order=2,
            expires_at=AT,
        ),
        {
            "event_type": "url.updated",
            "occurred_at": WRITTEN_AT,
            "correlation_id": "c",
            "short_code": "abc1234",
            "original_url": "https://example.com/",
            "user_id": "u",
            "user_email": "u@example.com",
            "expires_at": WRITTEN_AT,
            "event_id": "e",
            "order": 2,
        },
    ),
    (
        UrlDeleted(
            occurred_at=AT,
            event_id="e",
            correlation_id="c",
            short_code="abc1234",
            user_id="u",
            user_email="u@example.com",
            order=3,
        ),
        {
            "event_type": "url.deleted",
            "occurred_at": WRITTEN_AT,
            "correlation_id": "c",
            "short_code": "abc1234",
            "user_id": "u",
            "user_email": "u@example.com",
            "event_id": "e",
            "order": 3,
        },
    ),
    (
        UrlClicked(
            occurred_at=AT,
            event_id="e",
            correlation_id="c",
            short_code="abc1234",
            user_id="u",
            user_email="u@example.com",
            ip_hash="5f" * 32,
            ip_anonymized="192.0.2.0",
            user_agent="curl/8",
            referer="https://example.org/",
        ),
        {
            "event_type": "url.clicked",
            "occurred_at": WRITTEN_AT,
            "correlation_id": "c",
            "event_id": "e",
            "short_code": "abc1234",
            "user_id": "u",
            "ip_hash": "5f" * 32,
            "user_agent": "curl/8",
            "referer": "https://example.org/",
            "user_email": "u@example.com",
            "ip_anonymized": "192.0.2.0",
        },
    ),
    (
        MilestoneReached(
            occurred_at=AT,
            event_id="e",
            correlation_id="c",
            short_code="abc1234",
            user_id="u",
            user_email="u@example.com",
            milestone=100,
            total_clicks=103,
        ),
        {
            "event_type": "milestone.reached",
            "occurred_at": WRITTEN_AT,
            "correlation_id": "c",
            "short_code": "abc1234",
            "user_id": "u",
            "user_email": "u@example.com",
            "milestone": 100,
            "total_clicks": 103,
            "event_id": "e",
        },
    ),
    (
        StatsTotals(
            occurred_at=AT,
            event_id="e",
            correlation_id="c",
            totals=(LinkTotal(short_code="abc1234", total_clicks=103, last_clicked_at=AT),),
        ),
        {
            "event_type": "stats.totals",
            "occurred_at": WRITTEN_AT,
            "correlation_id": "c",
            "totals": [{"short_code": "abc1234", "total_clicks": 103, "last_clicked_at": WRITTEN_AT}],
            "event_id": "e",
        },
    ),
]
OPTIONAL = {"expires_at", "referer"}
ADDED = {"event_id", "order", "ip_anonymized"}


@pytest.mark.parametrize(("event", "written"), FULL, ids=lambda value: getattr(type(value), "__name__", ""))
def test_the_keys_on_the_wire(event: LinkEvent, written: dict[str, object]) -> None:
    assert json.loads(event.encode()) == written
    assert DECODER.decode(event.routing_key(), json.dumps(written).encode()) == [event]


@pytest.mark.parametrize(("event", "written"), FULL, ids=lambda value: getattr(type(value), "__name__", ""))
def test_the_form_of_the_specification_alone_is_read(event: LinkEvent, written: dict[str, object]) -> None:
    left_out = OPTIONAL | ADDED | ({"user_email"} if isinstance(event, UrlClicked) else set())
    body = {key: value for key, value in written.items() if key not in left_out}
    [read] = DECODER.decode(event.routing_key(), json.dumps(body).encode())
    assert json.loads(read.encode()) == body | {"event_id": ""}


@pytest.mark.parametrize(("event", "written"), FULL, ids=lambda value: getattr(type(value), "__name__", ""))
def test_every_required_key_is_missed(event: LinkEvent, written: dict[str, object]) -> None:
    lenient = OPTIONAL | ADDED | {"event_type", "correlation_id"}
    required = written.keys() - lenient - ({"user_email"} if isinstance(event, UrlClicked) else set())
    for key in required:
        body = {name: value for name, value in written.items() if name != key}
        with pytest.raises(PoisonMessage, match=f"missing required field `{key}`"):
            DECODER.decode(event.routing_key(), json.dumps(body).encode())


@given(any_event)
def test_link_events_come_back(event: LinkEvent) -> None:
    assert DECODER.decode(event.routing_key(), event.encode()) == [event]


@given(st.lists(clicks, min_size=1, max_size=5))
def test_batches_of_clicks_come_back(batch: list[UrlClicked]) -> None:
    assert DECODER.decode("url.clicked", encode_batch(batch)) == batch


@pytest.mark.parametrize("order", [-1, 2**63])
def test_an_order_that_no_database_holds_is_poison(order: int) -> None:
    body = json.dumps(FULL[0][1] | {"order": order}).encode()
    with pytest.raises(PoisonMessage, match=r"\$\.order"):
        DECODER.decode("url.created", body)


def test_every_link_event_travels_to_the_exchange_of_links_and_must_have_a_reader() -> None:
    assert {event.exchange for event in EVENTS} == {"url-shortener"}
    assert all(event.needs_reader for event in EVENTS)
