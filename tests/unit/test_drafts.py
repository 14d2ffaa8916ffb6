"""Wishes and drafts: what may be asked for, and in which words it is refused."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.errors import Invalid
from refract.services.links.domain.destinations import OwnDomains
from refract.services.links.domain.drafts import (
    Draft,
    Wish,
    checked_expiry,
    checked_notes,
    checked_redirect_status,
    checked_tags,
    checked_title,
)
from tests.support.shortening import sent

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OWN = OwnDomains.of("https://short.example", ())
URL = "https://example.com/a"


def wish(row: object) -> Wish:
    return Wish.of(sent(row))


def draft(**fields: object) -> Draft:
    return Draft.of(msgspec.convert({"url": URL, **fields}, Wish), OWN, NOW)


def refusal(**fields: object) -> str:
    with pytest.raises(Invalid) as refused:
        draft(**fields)
    return refused.value.message


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-01T12:00:01Z", NOW + timedelta(seconds=1)),
        ("2026-03-01t13:00:00.5z", NOW + timedelta(hours=1, seconds=0.5)),
        ("2026-03-01T14:30:00+02:00", NOW + timedelta(minutes=30)),
        ("2026-03-01T08:00:00-05:00", NOW + timedelta(hours=1)),
        ("2026-03-01T12:00:00.000001Z", NOW + timedelta(microseconds=1)),
        ("2026-03-01T12:00:00.000001999Z", NOW + timedelta(microseconds=2)),
        ("9999-12-31T23:59:59Z", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_an_expiry_is_read_as_utc(text: str, moment: datetime) -> None:
    expiry = checked_expiry(text, NOW)
    assert expiry == moment
    assert expiry.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2027-03-01",
        "2027-03-01T12:00:00",
        "2027-03-01 12:00:00Z",
        "2027-03-01T12:00Z",
        "2027-03-01T12:00:00+0200",
        "2027-02-31T12:00:00Z",
        "2027-03-01T25:00:00Z",
        "2027-03-01T12:00:00.Z",
        " 2027-03-01T12:00:00Z",
        "2027-03-01T12:00:00Z\n",
        "20270301T120000Z",
        "٢٠٢٧-03-01T12:00:00Z",
        "9999-12-31T23:59:59-12:00",
        "0000-01-01T00:00:00Z",
        "1803513600",
    ],
)
def test_an_expiry_in_another_form_is_refused(text: str) -> None:
    assert refusal(expires_at=text) == "expires_at must be RFC3339 format"


@pytest.mark.parametrize("text", ["2026-03-01T12:00:00Z", "2026-03-01T13:59:59+02:00", "1999-12-31T00:00:00Z"])
def test_an_expiry_that_has_passed_is_refused(text: str) -> None:
    assert refusal(expires_at=text) == "expires_at must be in the future"


@given(st.text(max_size=40) | st.datetimes().map(lambda moment: f"{moment.isoformat()}-12:00"))
def test_any_text_is_a_moment_to_come_or_refused(text: str) -> None:
    with suppress(Invalid):
        assert checked_expiry(text, NOW) > NOW


def test_texts_are_trimmed() -> None:
    assert checked_title("  Spring sale ") == "Spring sale"
    assert checked_notes("\n first\r\n\tsecond \n") == "first\r\n\tsecond"
    assert checked_tags([" spring", "sale ", "spring", "2026"]) == ("2026", "sale", "spring")


def test_texts_may_be_as_long_as_their_limit() -> None:
    assert len(checked_title("x" * 200)) == 200
    assert len(checked_notes("x" * 2_000)) == 2_000
    assert len(checked_tags(["x" * 50])[0]) == 50
    assert len(checked_tags([f"{number:02}" for number in range(20)] * 2)) == 20


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"title": "x" * 201}, "title must be at most 200 characters"),
        ({"title": "a\nb"}, "title must not contain control characters"),
        ({"title": "a\x00b"}, "title must not contain control characters"),
        ({"title": "a\x9fb"}, "title must not contain control characters"),
        ({"title": "a\ud800b"}, "title must not contain control characters"),
        ({"notes": "x" * 2_001}, "notes must be at most 2000 characters"),
        ({"notes": "a\x00b"}, "notes must not contain control characters"),
        ({"notes": "a\x1bb"}, "notes must not contain control characters"),
        ({"tags": ["x" * 51]}, "a tag must be at most 50 characters"),
        ({"tags": ["fine", "a\tb"]}, "a tag must not contain control characters"),
        ({"tags": ["fine", " "]}, "a tag must not be empty"),
        ({"tags": [str(number) for number in range(21)]}, "tags must be at most 20"),
        ({"tags": [" " * number for number in range(21)]}, "tags must be at most 20"),
        ({"redirect_status": 303}, "redirect_status must be 301, 302, 307 or 308"),
        ({"redirect_status": 0}, "redirect_status must be 301, 302, 307 or 308"),
        ({"custom_code": "a b"}, "custom_code must be 3 to 50 letters, digits or hyphens"),
        ({"url": ""}, "url is required"),
        ({"url": None}, "url is required"),
        ({"url": "example.com"}, "url must include scheme and host"),
        ({"url": "ftp://example.com"}, "url scheme must be http or https"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_the_rule(fields: dict[str, object], message: str) -> None:
    assert refusal(**fields) == message


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_has_one_of_four_statuses(status: int) -> None:
    assert checked_redirect_status(status) == status


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"url": 5}, "url: expected string or null, got integer"),
        ({"url": URL, "tags": ["a", 5]}, "tags[1]: expected string, got integer"),
        ({"url": URL, "redirect_status": "301"}, "redirect_status: expected integer or null, got string"),
        ({"url": URL, "force_new": 1}, "force_new: expected boolean, got integer"),
        (5, "a row must be a URL or an object"),
        (None, "a row must be a URL or an object"),
        ([URL], "a row must be a URL or an object"),
    ],
)
def test_a_row_of_another_type_is_refused(row: object, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        wish(row)
    assert refused.value.message == message


def test_a_row_may_be_a_url_alone() -> None:
    assert wish(URL) == wish({"url": URL}) == Wish(url=URL)


@pytest.mark.parametrize(
    "fields",
    [
        {"custom_code": "spring"},
        {"expires_at": "2027-03-01T12:00:00Z"},
        {"title": "Spring"},
        {"notes": "for the letter"},
        {"tags": ["spring"]},
        {"redirect_status": 301},
        {"stats_public": True},
        {"stats_public": False},
        {"force_new": True},
    ],
)
def test_any_option_makes_a_draft_more_than_plain(fields: dict[str, object]) -> None:
    assert not draft(**fields).is_plain


@pytest.mark.parametrize(
    "fields",
    [{}, {"custom_code": ""}, {"title": " ", "notes": "", "tags": []}, {"force_new": False}, {"expires_at": None}],
)
def test_a_draft_that_asks_for_nothing_is_plain(fields: dict[str, object]) -> None:
    assert draft(**fields).is_plain


def test_a_draft_has_what_was_asked_for() -> None:
    wanted = draft(
        custom_code="spring-26",
        expires_at="2027-03-01T12:00:00Z",
        title=" Spring ",
        notes="for the letter",
        tags=["sale", "letter"],
        redirect_status=307,
        stats_public=False,
        force_new=True,
    )
    assert wanted.destination.url == URL
    assert (wanted.alias, wanted.title, wanted.notes, wanted.tags) == (
        "spring-26",
        "Spring",
        "for the letter",
        ("letter", "sale"),
    )
    assert wanted.expires_at == datetime(2027, 3, 1, 12, tzinfo=UTC)
    assert (wanted.redirect_status, wanted.stats_public, wanted.force_new) == (307, False, True)
