"""Enrichment: what a click says of itself, in words that any database takes, whatever was sent."""

import logging
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.runtime.metrics import Metrics
from refract.services.analytics.adapters.agents import Agents
from refract.services.analytics.adapters.enriching import Enricher
from refract.services.analytics.adapters.geography import LOOK_SECONDS, Geography
from refract.services.analytics.adapters.remembering import Remembered
from refract.services.analytics.domain.clicks import EARLIEST, FUTURE_SKEW, Click, bounded, visitor_of
from refract.services.links.api import UrlClicked
from tests.support.clocks import START, ManualClock
from tests.support.maps import BERLIN, write_map

CHROME = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36"
)
HASH = "ab" * 32


def clicked(
    *,
    event_id: str = "0190",
    short_code: str = "abc",
    user_id: str = "owner",
    user_email: str = "owner@example.com",
    ip_hash: str = HASH,
    occurred_at: datetime = START,
    correlation_id: str = "c-1",
    user_agent: str = CHROME,
    ip_anonymized: str = "8.8.8.0",
    referer: str = "",
    query: str = "",
    accept_language: str = "",
) -> UrlClicked:
    return UrlClicked(
        event_id=event_id,
        short_code=short_code,
        user_id=user_id,
        user_email=user_email,
        ip_hash=ip_hash,
        occurred_at=occurred_at,
        correlation_id=correlation_id,
        user_agent=user_agent,
        ip_anonymized=ip_anonymized,
        referer=referer,
        query=query,
        accept_language=accept_language,
    )


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(scope="module")
def enricher(metrics: Metrics) -> Enricher:
    """One for all: its lists take a while to read."""
    return Enricher(Geography(None, ManualClock()), metrics)


def enriched(enricher: Enricher, event: UrlClicked, now: datetime = START) -> Click:
    [click] = enricher.enrich([event], now)
    return click


def test_a_click_says_everything_that_is_known_of_it(enricher: Enricher) -> None:
    event = clicked(
        referer="https://News.Example:8443/front?page=2",
        query="utm_source=letter&utm_medium=mail&utm_campaign=spring&utm_term=short&utm_content=top",
        accept_language="de-CH,de;q=0.9,en;q=0.8",
    )

    assert enriched(enricher, event) == Click(
        event_id="0190",
        short_code="abc",
        user_id="owner",
        user_email="owner@example.com",
        occurred_at=START,
        visitor=bytes.fromhex(HASH),
        ip_anonymized="8.8.8.0",
        user_agent=CHROME,
        referer="https://News.Example:8443/front?page=2",
        referrer="news.example",
        country="US",
        browser="Chrome 120",
        os="Windows 10",
        device="desktop",
        language="de-CH",
        utm_source="letter",
        utm_medium="mail",
        utm_campaign="spring",
        utm_term="short",
        utm_content="top",
        correlation_id="c-1",
    )


def test_a_click_that_says_nothing_is_a_click(enricher: Enricher) -> None:
    event = msgspec.json.decode(
        b'{"event_type":"url.clicked","short_code":"abc","user_id":"u","ip_hash":"","user_agent":"",'
        b'"occurred_at":"2026-03-01T12:00:00Z","correlation_id":"c-9"}',
        type=UrlClicked,
    )

    click = enriched(enricher, event)

    assert click.event_id == "url.clicked:c-9", "what readers deduplicate on"
    assert (click.referer, click.country, click.browser, click.os, click.language) == ("", "", "", "", "")
    assert (click.visitor, click.device, click.bot, click.latitude) == (b"", "desktop", False, None)


def test_clicks_keep_their_order(enricher: Enricher) -> None:
    events = [clicked(event_id=str(number)) for number in range(100)]

    assert [click.event_id for click in enricher.enrich(events, START)] == [str(number) for number in range(100)]


# The time of a click


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(seconds=59), FUTURE_SKEW, -timedelta(days=4000)])
def test_a_click_keeps_its_own_time(enricher: Enricher, ahead: timedelta) -> None:
    assert enriched(enricher, clicked(occurred_at=START + ahead)).occurred_at == START + ahead


def test_clicks_ahead_of_their_time_count_now_and_are_mentioned_once(
    enricher: Enricher, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    before = metrics.registry.get_sample_value("clicks_ahead_of_time_total") or 0
    ahead = START + FUTURE_SKEW + timedelta(microseconds=1)
    events = [clicked(occurred_at=ahead, correlation_id=f"c-{number}") for number in range(5)]

    clicks = enricher.enrich([*events, clicked()], START)

    assert [click.occurred_at for click in clicks] == [START] * 6
    assert metrics.registry.get_sample_value("clicks_ahead_of_time_total") == before + 5
    [record] = [one for one in caplog.records if one.name == "refract.enriching"]
    assert (record.levelno, record.clicks, record.correlation_id) == (logging.WARNING, 5, "c-0")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("occurred_at", "counted_at"),
    [
        (START.astimezone(timezone(timedelta(hours=5, minutes=30))), START),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), EARLIEST),
        (datetime.min.replace(tzinfo=UTC), EARLIEST),
        (datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=1))), EARLIEST),
        (EARLIEST - timedelta(microseconds=1), EARLIEST),
        (EARLIEST + timedelta(microseconds=1), EARLIEST + timedelta(microseconds=1)),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), START),
    ],
)
def test_times_are_told_in_utc(enricher: Enricher, occurred_at: datetime, counted_at: datetime) -> None:
    click = enriched(enricher, clicked(occurred_at=occurred_at))

    assert click.occurred_at == counted_at
    assert click.occurred_at.tzinfo is UTC


# Who and where


@pytest.mark.parametrize(
    ("ip_hash", "visitor"),
    [
        (HASH, bytes.fromhex(HASH)),
        (HASH * 3, bytes.fromhex(HASH)),
        ("not hexadecimal", b"not hexadecimal"),
        ("é" * 40, ("é" * 16).encode()),
        ("\ud800", b"?"),
        ("", b""),
    ],
)
def test_a_visitor_is_the_bytes_of_a_hash(ip_hash: str, visitor: bytes) -> None:
    assert visitor_of(ip_hash) == visitor


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("203.0.113.0", "203.0.113.0"),
        ("203.0.113.77", "203.0.113.0"),
        ("::ffff:203.0.113.77", "203.0.113.0"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
        ("203.0.113.77:8080", ""),
        ("somebody", ""),
        ("1" * 5_000, ""),
    ],
)
def test_no_whole_address_is_kept_whoever_sent_it(enricher: Enricher, sent: str, kept: str) -> None:
    assert enriched(enricher, clicked(ip_anonymized=sent)).ip_anonymized == kept


def test_places_come_from_the_database_and_from_its_new_edition(tmp_path: Path) -> None:
    path = write_map(tmp_path / "cities.mmdb", {"203.0.113.0/24": BERLIN})
    clock = ManualClock()
    enricher = Enricher(Geography(path, clock), Metrics())
    event = clicked(ip_anonymized="203.0.113.0", user_agent="")

    click = enriched(enricher, event)
    assert (click.country, click.region, click.city) == ("DE", "State of Berlin", "Berlin")
    assert (click.latitude, click.longitude) == (52.5196, 13.4069)

    write_map(path, {"203.0.113.0/24": {"country": {"iso_code": "CH"}}})
    clock.advance(LOOK_SECONDS)
    click = enriched(enricher, event)
    assert (click.country, click.city, click.latitude) == ("CH", "", None), "what was remembered is forgotten"


# Bad input


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain", "plain"),
        ("a\0b", "a\ufffdb"),
        ("é\0", "é\ufffd"),
        ("half \ud83d", "half ?"),
        ("x" * 300, "x" * 200),
        ("😀" * 300, "😀" * 200),
    ],
)
def test_a_text_is_made_fit_for_a_database(text: str, kept: str) -> None:
    assert bounded(text) == kept


def test_nothing_is_longer_than_its_column(enricher: Enricher) -> None:
    huge = "x" * 100_000
    click = enriched(
        enricher,
        clicked(
            event_id=huge,
            short_code=huge,
            user_id=huge,
            user_email=huge,
            ip_hash=huge,
            correlation_id=huge,
            user_agent=huge,
            ip_anonymized=huge,
            referer=f"https://{huge}/",
            query=f"utm_source={huge}&utm_term={huge}",
            accept_language=f"{huge},de",
        ),
    )

    assert {len(value) for value in (click.event_id, click.short_code, click.user_id, click.user_email)} == {200}
    assert (len(click.correlation_id), len(click.utm_source), len(click.visitor)) == (200, 200, 32)
    assert (len(click.user_agent), len(click.referer)) == (2_048, 2_048)
    assert (click.referrer, click.ip_anonymized, click.language) == ("", "", "de")


words = st.text(st.characters(exclude_categories=()), max_size=300) | st.sampled_from(
    [CHROME, "https://[::1", "http://%zz", "utm_source=%ff%00%ed%a0%80", "en-", ";q=", "::", "1.2.3.4", "\0" * 50]
)
moments = st.datetimes(timezones=st.timezones() | st.just(UTC))


@given(st.lists(st.builds(UrlClicked, **dict.fromkeys(("short_code", "user_id", "user_email", "ip_hash"), words),
    **dict.fromkeys(("event_id", "correlation_id", "user_agent", "ip_anonymized", "referer", "query"), words),
    accept_language=words, occurred_at=moments), max_size=5))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_whatever_is_sent_becomes_a_click(events: list[UrlClicked]) -> None:
    clicks = SHARED.enrich(events, START)

    assert len(clicks) == len(events)
    for click in clicks:
        for name, value in msgspec.structs.asdict(click).items():
            if isinstance(value, str):
                assert len(value) <= (2_048 if name in {"user_agent", "referer"} else 200)
                assert "\0" not in value
                value.encode()
        assert len(click.visitor) <= 32
        assert click.occurred_at <= START + FUTURE_SKEW
        assert click.device in {"desktop", "mobile", "tablet", "bot"}
        assert click.bot == (click.device == "bot")


SHARED = Enricher(Geography(None, ManualClock()), Metrics())


# What is remembered


def test_what_was_found_out_is_remembered_and_bounded() -> None:
    asked: list[str] = []

    def find(text: str) -> str:
        asked.append(text)
        return text.upper()

    remembered = Remembered(find, capacity=3, longest=5)

    assert [remembered[text] for text in ("a", "a", "b", "a")] == ["A", "A", "B", "A"]
    assert asked == ["a", "b"]
    assert [remembered["longer"], remembered["longer"]] == ["LONGER", "LONGER"]
    assert asked == ["a", "b", "longer", "longer"], "too long to be kept"
    assert [remembered[text] for text in "cde"] == ["C", "D", "E"]
    assert list(remembered) == ["c", "d", "e"], "the oldest went first"


async def test_the_lists_are_read_once_before_the_first_click(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    class Counted(Agents):
        def __init__(self) -> None:
            nonlocal read
            read += 1
            super().__init__()

    monkeypatch.setattr("refract.services.analytics.adapters.enriching.Agents", Counted)
    enricher = Enricher(Geography(None, ManualClock()), Metrics())
    assert read == 0, "nobody pays for them before there is a click"

    await enricher.prepare()
    await enricher.prepare()
    enriched(enricher, clicked())

    assert read == 1
