"""The visitors of a day's quarters: whoever was seen in a stretch of the day is told, and nobody else."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.quarters import MOST_CLICKS, Quarters, pack_quarters, place_of, quarters_of
from refract.services.analytics.domain.sketches import Sketch, merge_sketches

DAY = datetime(2026, 3, 1, tzinfo=UTC)

seen = st.lists(st.tuples(st.integers(0, 95), st.booleans(), st.integers(0, 9)), min_size=1, max_size=40)


def a_click(quarter: int, visitor: int, *, bot: bool = False) -> Click:
    moment = DAY + timedelta(minutes=15 * quarter, seconds=visitor % 900)
    return Click("id", "abc", "", "", moment, visitor=visitor.to_bytes(8, "big"), bot=bot)


@given(seen=seen, edges=st.tuples(st.integers(0, 96), st.integers(0, 96)), bots=st.booleans())
def test_a_stretch_has_everybody_who_was_seen_in_it(
    seen: list[tuple[int, bool, int]], edges: tuple[int, int], bots: bool
) -> None:
    first, end = sorted(edges)
    stored = quarters_of([a_click(quarter, visitor, bot=bot) for quarter, bot, visitor in seen])
    assert stored is not None
    told = Quarters(stored).between(first, end, bots=bots)
    inside = {visitor for quarter, bot, visitor in seen if first <= quarter < end and (bots or not bot)}
    assert merge_sketches(told).exact == Sketch.of(visitor.to_bytes(8, "big") for visitor in inside).exact
    assert len(told) <= 1 + bots


def test_whoever_comes_twice_in_a_quarter_is_kept_once() -> None:
    once, twice = ([a_click(7, 1)] * times for times in (1, 2))
    assert quarters_of(once) == quarters_of(twice)
    assert len(pack_quarters({7: {b"hash-1"}, 8: {b"hash-1"}})) == 1 + 2 * 7


def test_the_last_moment_of_a_quarter_belongs_to_it() -> None:
    last = DAY + timedelta(minutes=15, microseconds=-1)
    assert (place_of(last, bot=False), place_of(DAY + timedelta(minutes=15), bot=False)) == (0, 1)
    assert place_of(DAY + timedelta(days=1, microseconds=-1), bot=True) == 128 + 95


def test_a_day_with_too_many_clicks_has_none() -> None:
    clicks = [a_click(1, visitor) for visitor in range(MOST_CLICKS + 1)]
    assert quarters_of(clicks) is None
    assert len(quarters_of(clicks[1:]) or b"") == 1 + 7 * MOST_CLICKS


@pytest.mark.parametrize("stored", [b"", b"\x01", b"\x01abc", b"\x02abcdefg", b"\x01abcdefgh"])
def test_what_is_none_is_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="not the visitors"):
        Quarters(stored)
