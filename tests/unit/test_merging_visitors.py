"""Visitors of several stretches: each counted once, and what is remembered is no other than what was asked."""

import pytest

from refract.services.analytics.domain.sketches import Sketch
from refract.services.analytics.queries.merging import WORTH_REMEMBERING, Merging, Seen


def visitors(first: int, last: int) -> list[bytes]:
    return [number.to_bytes(8, "big") for number in range(first, last)]


def stored(first: int, last: int) -> bytes:
    """A sketch of these visitors, as a row has it; exact up to 2,048 of them."""
    sketch = Sketch.of(visitors(first, last)).encode()
    assert sketch is not None
    return sketch


def test_each_stretch_and_all_of_them_together() -> None:
    merging = Merging()
    seen = [Seen([stored(0, 900)]), Seen([stored(800, 1_700), stored(1_600, 1_800)]), Seen(), Seen([stored(5, 6)])]
    assert len(seen[0].sketches[0]) > WORTH_REMEMBERING
    for _ in range(3):  # remembered from the second time on
        assert merging.counts(seen) == (1_800, [900, 1_000, 0, 1])


def test_single_visitors_at_the_edges_count_too() -> None:
    merging = Merging()
    for edge in (0, 3, 2, 0):
        seen = [Seen([stored(0, 900)], set(visitors(890, 900 + edge)))]
        assert merging.counts(seen) == (900 + edge, [900 + edge])
        assert merging.counts([*seen, Seen([stored(0, 10)])]) == (900 + edge, [900 + edge, 10])


def test_a_day_that_is_over_is_merged_once_with_the_visitors_at_its_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever days begin at half past, each of them has such visitors."""
    merging = Merging()
    seen = [Seen([stored(0, 900)], set(visitors(890, 905))), Seen([stored(1_000, 1_900)], {b"somebody"}), Seen()]
    expected = merging.counts(seen)
    assert expected == (1_806, [905, 901, 0])
    merged: list[int] = []
    monkeypatch.setattr(Sketch, "add_many", lambda _, visitors: merged.append(len(visitors)))
    assert merging.counts(seen) == expected
    assert merged == [0], "today, of whom nothing is remembered"


def test_nobody() -> None:
    assert Merging().counts([]) == (0, [])
    assert Merging().counts([Seen(), Seen()]) == (0, [0, 0])


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    merging = Merging(most=2)
    for number in range(5):
        assert merging.counts([Seen([stored(number, 1_000)]), Seen()])[0] == 1_000 - number
    assert len(merging._remembered) == 2


def test_the_same_sketches_otherwise_divided_are_something_else() -> None:
    merging = Merging()
    one, two = stored(0, 900), stored(900, 1_800)
    assert merging.counts([Seen([one, two]), Seen()]) == (1_800, [1_800, 0])
    assert merging.counts([Seen([one]), Seen([two])]) == (1_800, [900, 900])
    assert merging.counts([Seen([two]), Seen([one]), Seen()]) == (1_800, [900, 900, 0])
