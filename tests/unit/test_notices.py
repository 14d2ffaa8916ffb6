"""What users are told: titles that say what happened in one plain line; preferences and digests."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.errors import Invalid, PoisonMessage
from refract.runtime.environment import Environment
from refract.services.links.api import UrlCreated
from refract.services.notifications.domain.digests import Line, digest_lines, digest_subject, next_digest
from refract.services.notifications.domain.notices import LONGEST_ID, LONGEST_TITLE, NoticeDecoder, notice_of, one_line
from refract.services.notifications.domain.preferences import EVENTS, Digest, Preferences
from refract.services.notifications.settings import NotificationSettings
from tests.support.notices import ALICE, URL, created, deleted, reached

TEXTS = st.text(max_size=400)


# Titles.


def test_a_new_link_is_named_by_its_code_and_its_title() -> None:
    assert notice_of(created(short_code="aB3xY9z")).title == f"New link aB3xY9z → {URL}"
    assert notice_of(created(short_code="aB3xY9z", title=" Spring ")).title == f"New link “Spring”: aB3xY9z → {URL}"


def test_numbers_are_written_for_people() -> None:
    assert notice_of(reached(milestone=1, short_code="x")).title == "Link x reached 1 click"
    assert notice_of(reached(milestone=1_000_000, short_code="x")).title == "Link x reached 1,000,000 clicks"
    assert notice_of(reached(milestone=10)).details == ()
    assert notice_of(reached(milestone=10, total_clicks=11)).details == ("It has 11 clicks by now.",)


@given(title=TEXTS, url=TEXTS, code=TEXTS)
def test_whatever_an_event_says_its_title_is_one_bounded_line(title: str, url: str, code: str) -> None:
    for event in (created(title=title, original_url=url, short_code=code), deleted(short_code=code)):
        notice = notice_of(event)
        assert notice.title.isprintable()
        assert len(notice.title) <= LONGEST_TITLE
        assert "\0" not in str(notice.payload)
        assert len(notice.short_code or "") <= 64


def test_a_line_that_is_cut_says_so() -> None:
    assert one_line("a" * 10, 10) == "a" * 10
    assert one_line("a" * 11, 10) == "a" * 9 + "…"
    assert one_line(" a\t\nb\u2028c\u202e\0d ", 20) == "a b cd"


def test_others_are_not_told_what_is_between_us_and_the_user() -> None:
    data = notice_of(created()).data
    assert set(data) == {"occurred_at", "short_code", "original_url", "user_id"}


@given(user=st.text())
def test_an_owner_that_cannot_be_one_is_poison(user: str) -> None:
    body = created(user_id=user).encode()
    if user.isprintable() and user.strip() and len(user) <= LONGEST_ID:
        [event] = NoticeDecoder().decode("url.created", body)
        assert isinstance(event, UrlCreated)
        assert notice_of(event).user_id == user
    else:
        with pytest.raises(PoisonMessage, match="user_id"):
            NoticeDecoder().decode("url.created", body)


# Preferences.


def test_what_is_kept_comes_back() -> None:
    chosen = Preferences().changed({"url.created": [], "milestone.reached": ["email"]}, "weekly")
    assert Preferences.of_document(chosen.document()) == chosen
    assert Preferences.of_document(None) == Preferences.of_document({}) == Preferences()


def test_what_is_kept_of_another_version_is_passed_over() -> None:
    kept = {"channels": {"url.created": ["email", "pigeon"], "url.expired": ["log"]}, "digest": "daily", "more": 1}
    assert Preferences.of_document(kept) == Preferences().changed({"url.created": ["email"]}, "daily")


def test_mail_and_line() -> None:
    chosen = Preferences().changed({"url.created": ["email"], "url.deleted": []}, None)
    assert [event for event in EVENTS if chosen.wants_mail(event)] == [
        "url.created",
        "milestone.reached",
        "webhook.disabled",
    ]
    assert [event for event in EVENTS if not chosen.wants_line(event)] == ["url.deleted"]
    assert not chosen.wants_mail("something.new")


@pytest.mark.parametrize("digest", ["", "Daily", "monthly", "off "])
def test_a_digest_is_one_of_three_words(digest: str) -> None:
    with pytest.raises(Invalid, match="digest must be one of off, daily, weekly"):
        Preferences().changed({}, digest)


# Digests.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENTS = st.integers(0, 4_000_000_000_000_000).map(lambda passed: _EPOCH + timedelta(microseconds=passed))


@given(now=MOMENTS)
def test_the_next_digest_is_the_next_morning_or_monday(now: datetime) -> None:
    daily, weekly = next_digest(Digest.DAILY, now), next_digest(Digest.WEEKLY, now)
    assert timedelta() < daily - now <= timedelta(days=1)
    assert timedelta() < weekly - now <= timedelta(days=7)
    assert (weekly.weekday(), weekly.hour, daily.hour, daily.minute, daily.microsecond) == (0, 8, 8, 0, 0)


def test_a_digest_due_now_is_not_due_again_at_once() -> None:
    monday = datetime(2026, 3, 2, 8, tzinfo=UTC)
    assert next_digest(Digest.DAILY, monday) == monday + timedelta(days=1)
    assert next_digest(Digest.WEEKLY, monday) == monday + timedelta(days=7)
    assert next_digest(Digest.WEEKLY, monday - timedelta(seconds=1)) == monday


def test_a_digest_sums_up_what_it_does_not_know_too() -> None:
    lines = [Line("url.created", "a"), Line("job.completed", "b"), Line("job.completed", "c")]
    assert digest_subject(Digest.DAILY, lines) == "Your day: 1 new link, 2 others"
    assert digest_lines(lines) == ["a", "b", "c"]
    assert digest_lines([Line("url.created", str(number)) for number in range(51)])[-1] == "… and 1 more"


# Settings.


def test_settings_have_defaults_and_embedded_ones() -> None:
    assert NotificationSettings.from_environment(Environment({})) == NotificationSettings()
    inside = NotificationSettings.from_environment(Environment({}), base_url="http://127.0.0.1:8080/")
    assert inside.base_url == "http://127.0.0.1:8080"
    told = {"BASE_URL": "https://sho.rt/", "NOTIFICATION_RETENTION_DAYS": "30"}
    settings = NotificationSettings.from_environment(Environment(told), base_url="http://127.0.0.1:8080")
    assert settings == NotificationSettings(base_url="https://sho.rt", retention=timedelta(days=30))


def test_the_events_of_m5_are_told() -> None:
    assert set(EVENTS) > {"url.created", "url.deleted", "milestone.reached"}
    assert notice_of(created()).user_id == ALICE
