"""Whatever clicks come, how often, in which order and in whatever batches: the counts are those of a naive recount."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from refract.services.analytics.domain.milestones import THRESHOLDS
from refract.services.links.api import UrlClicked
from tests.support.clocks import START
from tests.support.counting import (
    AGENTS,
    CLICKS,
    MILESTONES,
    click_inbox,
    clicked,
    clicks_of,
    counted_again,
    hand_over,
    hours_in,
    ingesting,
    letter,
    totals_again,
    totals_in,
)
from tests.support.following import Between, analytics

__all__ = ["analytics"]

_examples = count()

MOMENTS = st.one_of(
    st.integers(-400 * 86_400, 86_400).map(lambda seconds: START + timedelta(seconds=seconds)),
    st.integers(-7_200_000_000, 120_000_000).map(lambda microseconds: START + timedelta(microseconds=microseconds)),
    st.sampled_from([START.replace(hour=0), START.replace(hour=0) - timedelta(microseconds=1)]),
)
WORDS = st.one_of(st.just(""), st.sampled_from(["letter", "poster", "(other)", "Ünï", "a" * 300, "\x00"]))


@st.composite
def streams(draw: st.DrawFn) -> list[list[UrlClicked]]:
    """Batches of clicks, in which any click may come again, sooner or later."""
    events = draw(st.lists(clicks(), min_size=1, max_size=40))
    again = draw(st.lists(st.sampled_from(events), max_size=15))
    stream = draw(st.permutations([*events, *again]))
    batches, first = [], 0
    while first < len(stream):
        size = draw(st.integers(1, 20))
        batches.append(stream[first : first + size])
        first += size
    return batches


@st.composite
def clicks(draw: st.DrawFn) -> UrlClicked:
    """A click on one of three links, by one of ten visitors, with whatever comes from outside."""
    return clicked(
        draw(st.sampled_from("abc")),
        draw(MOMENTS),
        visitor=draw(st.integers(0, 9)),
        user_agent=draw(st.one_of(st.sampled_from(AGENTS), WORDS)),
        referer=draw(st.one_of(st.sampled_from(["https://a.example/x", "https://a.example/y", "a:b", "//"]), WORDS)),
        query="&".join(f"utm_{name}={draw(WORDS)}" for name in draw(st.sets(st.sampled_from(["source", "term"])))),
        accept_language=draw(st.sampled_from(["", "de", "en-GB,en;q=0.5", "*", ";;"])),
    )


@dataclass
class Renamed:
    """The links of one example under names that no other example has."""

    number: int

    def batches(self, stream: Sequence[Sequence[UrlClicked]]) -> list[list[UrlClicked]]:
        """The same clicks under ids and names of this example."""
        return [
            [
                replace(
                    event, short_code=f"{self.number}-{event.short_code}", event_id=f"{self.number}-{event.event_id}"
                )
                for event in batch
            ]
            for batch in stream
        ]

    def owns(self, short_code: str) -> bool:
        return short_code.startswith(f"{self.number}-")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(stream=streams())
async def test_any_stream_is_counted_as_a_naive_recount_does(
    analytics: Between, stream: list[list[UrlClicked]]
) -> None:
    names = Renamed(next(_examples))
    inbox = click_inbox(analytics.database, analytics.clock, ingesting(analytics.clock))
    for number, batch in enumerate(names.batches(stream)):
        letters = [letter(*batch)] if number % 2 else list(map(letter, batch))
        desk = await hand_over(inbox, *letters)
        assert desk.buried == []
    expected = clicks_of([event for batch in names.batches(stream) for event in batch], analytics.clock)
    hours = await hours_in(analytics.database)
    assert {key: hour for key, hour in hours.items() if names.owns(key[0])} == counted_again(expected)
    totals = await totals_in(analytics.database)
    assert {code: total for code, total in totals.items() if names.owns(code)} == totals_again(expected)
    rows = await analytics.database.fetch(CLICKS)
    kept = sorted(row["event_id"] for row in rows if names.owns(row["short_code"]))
    assert kept == sorted(click.event_id for click in expected)
    reached = [
        (row["short_code"], row["milestone"])
        for row in await analytics.database.fetch(MILESTONES)
        if names.owns(row["short_code"])
    ]
    assert reached == [
        (code, threshold)
        for code, total in sorted(totals_again(expected).items())
        for threshold in THRESHOLDS
        if threshold <= total[0]
    ]
