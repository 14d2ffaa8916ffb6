"""Messages and bindings: which queue takes what, by the rules of a topic exchange."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.events import LEGACY_MAIL_EXCHANGE, LINK_EXCHANGE, PLATFORM_EXCHANGE
from refract.runtime.messages import Binding, Message, Queue
from refract.services.links.api import UrlDeleted

words = st.lists(st.sampled_from(["url", "email", "clicked", "", "x"]), max_size=5)


@pytest.mark.parametrize(
    ("pattern", "routing_key", "taken"),
    [
        ("url.clicked", "url.clicked", True),
        ("url.clicked", "url.clicke", False),
        ("url.clicked", "url.clicked.twice", False),
        ("url.clicked", "URL.clicked", False),
        ("url.*", "url.clicked", True),
        ("url.*", "url", False),
        ("url.*", "url.", True),
        ("url.*", "url.a.b", False),
        ("*.clicked", "url.clicked", True),
        ("*", "url", True),
        ("*", "", False),
        ("*", "url.clicked", False),
        ("email.#", "email", True),
        ("email.#", "email.a", True),
        ("email.#", "email.a.b.c", True),
        ("email.#", "emails.a", False),
        ("#", "", True),
        ("#", "a.b.c", True),
        ("#.clicked", "clicked", True),
        ("#.clicked", "a.b.clicked", True),
        ("#.clicked", "a.clicked.b", False),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("a.#.b", "a", False),
        ("#.*", "a", True),
        ("#.*", "", False),
        ("*.#", "a.b.c", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_topics(pattern: str, routing_key: str, taken: bool) -> None:
    assert Binding(LINK_EXCHANGE, pattern).matches(LINK_EXCHANGE, routing_key) is taken


@given(words)
def test_a_key_without_wildcards_takes_itself(key: list[str]) -> None:
    routing_key = ".".join(key)
    assert Binding(LINK_EXCHANGE, routing_key).matches(LINK_EXCHANGE, routing_key)
    assert Binding(LINK_EXCHANGE, "#").matches(LINK_EXCHANGE, routing_key)


@given(words, words, words)
def test_a_hash_stands_for_any_words(before: list[str], between: list[str], after: list[str]) -> None:
    pattern = ".".join(["start", *before, "#", *after, "end"])
    routing_key = ".".join(["start", *before, *between, *after, "end"])
    assert Binding(LINK_EXCHANGE, pattern).matches(LINK_EXCHANGE, routing_key)


def test_another_exchange_is_never_taken() -> None:
    assert not Binding(LINK_EXCHANGE, "#").matches(PLATFORM_EXCHANGE, "url.clicked")


def test_a_fanout_takes_every_key() -> None:
    assert Binding(LEGACY_MAIL_EXCHANGE, "").matches(LEGACY_MAIL_EXCHANGE, "email.verification")


def test_a_message_carries_its_event() -> None:
    event = UrlDeleted(
        occurred_at=datetime(2024, 5, 6, tzinfo=UTC),
        event_id="e-1",
        correlation_id="c-1",
        short_code="abc",
        user_id="u",
        user_email="u@example.com",
    )
    assert Message.of(event) == Message(
        exchange="url-shortener",
        routing_key="url.deleted",
        body=event.encode(),
        message_id="e-1",
        correlation_id="c-1",
        mandatory=True,
    )


def test_an_event_that_needs_no_reader_is_not_mandatory() -> None:
    class UrlSeen(UrlDeleted, frozen=True, kw_only=True, tag="url.seen"):
        needs_reader = False

    event = UrlSeen(occurred_at=datetime(2024, 5, 6, tzinfo=UTC), short_code="a", user_id="u", user_email="e")
    assert not Message.of(event).mandatory


def test_dead_letters_lie_beside_their_queue() -> None:
    assert Queue("analytics.clicks", ()).dead == "analytics.clicks.dead"
