"""Counts by value: kept, put together, and cut where there are too many."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.analytics.domain.tallies import OTHER, Tally, add_counts, merge_tallies

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
    assert tally.overflowed == (OTHER in tally.people or OTHER in tally.bots)


def test_the_rest_goes_on_under_one_name() -> None:
    tally = Tally({"a": 5, "b": 3, "c": 2, "d": 1})
    tally.cap(3)
    assert tally.people == {"a": 5, "b": 3, OTHER: 3}
    assert tally.overflowed
    add_counts(tally.people, {"e": 4})
    tally.cap(3)
    assert tally.people == {"a": 5, "e": 4, OTHER: 6}
    assert not Tally({"a": 1}, {"b": 1}).overflowed


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
