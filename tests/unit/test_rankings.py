"""Who is first: found once, and right again with whatever is added."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from refract.services.analytics.domain.rankings import Ranking, Standing, Top
from refract.services.analytics.domain.tallies import OTHER, Tally

VALUES = st.sampled_from(["", "a", "b", "c", "ä", "Z", "zz", OTHER])
COUNTS = st.dictionaries(VALUES, st.integers(1, 6), max_size=8)
TALLIES = st.builds(Tally, COUNTS, COUNTS)
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


@given(TALLIES, TALLIES, MOST)
def test_bots_count_for_those_who_want_them(tally: Tally, more: Tally, most: int) -> None:
    before = tally.people.copy(), tally.bots.copy()
    standing = Standing(tally)
    for _ in range(2):
        assert standing.top(most, more, bots=False) == naive(tally.people, more.people, most=most)
        everybody = (tally.people, tally.bots, more.people, more.bots)
        assert standing.top(most, more, bots=True) == naive(*everybody, most=most)
    assert (tally.people, tally.bots) == before


def test_its_size_grows_with_its_values() -> None:
    sizes = [Standing(Tally(dict.fromkeys(map(str, range(number)), 1))).size for number in (0, 10, 1_000)]
    assert sizes[0] == 0
    assert sizes[2] > 90 * sizes[1]
