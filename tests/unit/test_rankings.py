"""Who is first: found once, and right again with whatever is added."""

from collections import Counter
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from refract.services.analytics.domain import rankings
from refract.services.analytics.domain.rankings import MOST_RANKED, Ranking, Top
from refract.services.analytics.domain.tallies import OTHER

VALUES = st.sampled_from(["", "a", "b", "c", "ä", "Z", "zz", OTHER])
COUNTS = st.dictionaries(VALUES, st.integers(1, 6), max_size=8)
MOST = st.integers(1, 9)


def naive(*counts: dict[str, int], most: int) -> Top:
    together = Counter[str]()
    for some in counts:
        together.update(some)
    known = sum(together.values())
    del together[OTHER]
    ordered = sorted(together.items(), key=lambda item: (-item[1], item[0]))
    return Top(ordered[:most], known)


@given(COUNTS, MOST)
def test_the_first_of_some_counts(counts: dict[str, int], most: int) -> None:
    before = counts.copy()
    assert Top.of(counts, most) == naive(counts, most=most)
    assert counts == before


@given(COUNTS, st.lists(COUNTS, max_size=3), MOST)
def test_what_is_added_puts_others_first_and_is_not_kept(
    counts: dict[str, int], added: list[dict[str, int]], most: int
) -> None:
    ranking = Ranking(counts)
    for more in [{}, *added, {}]:
        assert ranking.top(most, more) == naive(counts, more, most=most)


@given(COUNTS, COUNTS, MOST)
def test_of_too_many_the_first_are_remembered_and_it_is_said_where_that_is_not_enough(
    counts: dict[str, int], more: dict[str, int], most: int
) -> None:
    with patch.object(rankings, "MOST_RANKED", 3):
        ranking = Ranking(counts)
    expected = naive(counts, more, most=min(most, 3))
    assert ranking.top(min(most, 3), more) in (expected, None)
    assert ranking.top(min(most, 3)) == naive(counts, most=min(most, 3))
    if set(more) <= set(dict(naive(counts, most=3).values)):
        assert ranking.top(min(most, 3), more) == expected


def test_one_that_was_forgotten_does_not_come_in_with_too_few() -> None:
    counts = {"a": 9, "b": 8, "c": 7, "d": 3, "e": 2}
    with patch.object(rankings, "MOST_RANKED", 4):
        ranking = Ranking(counts)
    assert ranking.top(2, {"e": 4}) == Top([("a", 9), ("b", 8)], 33)  # with 3 that it might have, 7
    assert ranking.top(2, {"e": 5}) is None
    assert ranking.top(2, {"d": 5}) == Top([("a", 9), ("b", 8)], 34)
    assert ranking.top(2, {OTHER: 50}) == Top([("a", 9), ("b", 8)], 79)


def test_what_was_forgotten_can_be_learned() -> None:
    counts = {"a": 9, "b": 8, "c": 7, "d": 3, "e": 2}
    with patch.object(rankings, "MOST_RANKED", 3):
        ranking = Ranking(counts)
    more = {"e": 5, "x": 6, OTHER: 1}
    assert ranking.top(3, more) is None
    ranking.learn(more, counts)
    assert ranking.top(3, more) == Top([("a", 9), ("b", 8), ("c", 7)], 41)
    assert ranking.top(4, more) == Top([("a", 9), ("b", 8), ("c", 7), ("e", 7)], 41)
    assert ranking.top(3) == Top([("a", 9), ("b", 8), ("c", 7)], 29)
    assert ranking.top(2, {"x": 9}) == Top([("a", 9), ("x", 9)], 38)


def test_its_size_grows_with_its_values_to_an_end() -> None:
    numbers = (0, 10, 1_000, 3 * MOST_RANKED)
    sizes = [Ranking(dict.fromkeys(map(str, range(number)), 1)).size for number in numbers]
    assert sizes[0] == 0
    assert sizes[2] > 90 * sizes[1]
    assert 1_000_000 < sizes[3] < 6_000_000
