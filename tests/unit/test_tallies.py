"""Counts by value: kept, put together, and cut where there are too many."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.analytics.domain.tallies import (
    OTHER,
    ROOM,
    Tally,
    add_counts,
    add_stored,
    merge_tallies,
    most_frequent,
    tally_with,
)

COUNTS = st.dictionaries(st.text(max_size=8), st.integers(min_value=1, max_value=2**40), max_size=20)
TALLIES = st.builds(Tally, COUNTS, COUNTS)


def same(one: Tally, other: Tally) -> bool:
    return (one.people, one.bots) == (other.people, other.bots)


@given(TALLIES)
def test_a_tally_comes_back_as_it_was_stored(tally: Tally) -> None:
    assert same(Tally.decode(tally.encode()), tally)


def test_an_empty_one_takes_no_room() -> None:
    assert Tally().encode() is None
    assert same(Tally.decode(None), Tally())


def test_people_and_bots_are_told_apart() -> None:
    stored = Tally({"Chrome 120": 3}, {"Chrome 120": 1}).encode()
    assert stored is not None
    assert msgspec.msgpack.decode(stored) == [{"Chrome 120": 3}, {"Chrome 120": 1}]
    assert b"Chrome 120" in stored, "values are plain text in it, which can be looked for"


@given(st.lists(TALLIES, max_size=6))
def test_put_together_they_count_what_they_counted(tallies: list[Tally]) -> None:
    merged = merge_tallies([*(tally.encode() for tally in tallies), None])
    for name in ("people", "bots"):
        counts: dict[str, int] = getattr(merged, name)
        values = {value for tally in tallies for value in getattr(tally, name)}
        assert counts == {value: sum(getattr(tally, name).get(value, 0) for tally in tallies) for value in values}


@given(st.lists(TALLIES, max_size=6), st.booleans())
def test_stored_ones_are_added_with_the_bots_or_without_them(tallies: list[Tally], bots: bool) -> None:
    counts: dict[str, int] = {}
    for tally in tallies:
        if (stored := tally.encode()) is not None:
            add_stored(counts, stored, bots=bots)
    merged = merge_tallies(tally.encode() for tally in tallies)
    if bots:
        add_counts(merged.people, merged.bots)
    assert counts == merged.people


def test_what_is_no_tally_is_not_added() -> None:
    with pytest.raises(ValueError, match="not a tally"):
        add_stored({}, b"nothing", bots=False)


def test_adding_leaves_what_is_added() -> None:
    counts: dict[str, int] = {}
    more = {"a": 1}
    add_counts(counts, more)
    add_counts(counts, more)
    assert (counts, more) == ({"a": 2}, {"a": 1})


@given(TALLIES, st.integers(min_value=1, max_value=25))
def test_a_capped_one_keeps_the_most_frequent_and_the_sum(tally: Tally, most: int) -> None:
    before = dict(tally.people), dict(tally.bots)
    tally.cap(most)
    for counts, all_counts in ((tally.people, before[0]), (tally.bots, before[1])):
        assert len(counts) <= most
        assert sum(counts.values()) == sum(all_counts.values())
        if len(all_counts) <= most:
            assert counts == all_counts
            continue
        kept = {value: count for value, count in counts.items() if value != OTHER}
        dropped = [count for value, count in all_counts.items() if value not in counts]
        assert all(all_counts[value] == count for value, count in kept.items())
        assert not kept or not dropped or min(kept.values()) >= max(dropped)


def test_the_rest_goes_on_under_one_name() -> None:
    tally = Tally({"a": 5, "b": 3, "c": 2, "d": 1})
    tally.cap(3)
    assert tally.people == {"a": 5, "b": 3, OTHER: 3}
    add_counts(tally.people, {"e": 4})
    tally.cap(3)
    assert tally.people == {"a": 5, "e": 4, OTHER: 6}


@pytest.mark.parametrize("letter", ["a", "é"])
def test_long_values_are_fewer(letter: str) -> None:
    """Anybody can send a referer of two thousand letters with every click: a row has no more bytes for it."""
    most, stored = 50, None
    for number in range(120):
        values = [f"{number:03}{letter * 2_000}"] * (number % 2 + 1)
        stored = tally_with(values, values, most, stored)
        assert stored is not None
        assert len(stored) < 2 * most * ROOM + 2_100
    tally = Tally.decode(stored)
    for counts in (tally.people, tally.bots):
        assert sum(counts.values()) == 180
        kept = [count for value, count in counts.items() if value != OTHER]
        assert kept
        assert set(kept) == {2}, "the most frequent ones are kept"


def test_short_values_have_all_the_room_there_is() -> None:
    values = [f"https://{number}.example/{'x' * 60}" for number in range(2_000)]
    tally = Tally.decode(tally_with(values, values, 2_000, None))
    assert tally.people == tally.bots == dict.fromkeys(values, 1)


def test_one_that_is_put_together_has_no_more_room() -> None:
    tally = Tally({"short": 1} | {f"{number:03}{'x' * 500}": number for number in range(2, 41)})
    tally.cap(50)
    # One that would still fit, but is not among the most frequent, would make it look as if it were.
    assert sorted(tally.people.values()) == [*range(32, 41), sum(range(1, 32))]


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x00",
        b"\x91\x80",
        b"\x92\x80\x90",
        b"\x92\x81\x01\x01\x80",
        b"\x92\x81\xa1a\xa1b\x80",
        b"\x92\x80\x80\x00",
        b"\xff" * 40,
    ],
)
def test_what_is_no_tally_is_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="not a tally"):
        Tally.decode(stored)


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 5), max_size=12), st.integers(1, 12))
def test_the_most_frequent_come_first_and_equal_ones_in_their_order(counts: dict[str, int], most: int) -> None:
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]
    assert most_frequent(counts, most) == expected
