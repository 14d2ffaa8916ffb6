"""Which thresholds a total passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.analytics.domain.milestones import THRESHOLDS, passed


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0, 5, ()),
        (0, 9, ()),
        (0, 10, (10,)),
        (0, 15, (10,)),
        (9, 10, (10,)),
        (10, 10, ()),
        (10, 11, ()),
        (10, 99, ()),
        (10, 150, (100,)),
        (99, 100, (100,)),
        (100, 101, ()),
        (0, 1_500, (10, 100, 1_000)),
        (1_000, 9_999, ()),
        (1_000, 50_000, (10_000,)),
        (999_999, 1_000_000, (1_000_000,)),
        (1_000_000, 50_000_000, ()),
    ],
)
def test_a_total_passes_what_lies_between(before: int, after: int, expected: tuple[int, ...]) -> None:
    assert passed(before, after) == expected


def test_the_decided_thresholds() -> None:
    assert THRESHOLDS == (10, 100, 1_000, 10_000, 100_000, 1_000_000)


def test_other_thresholds_can_be_set() -> None:
    assert passed(0, 7, (3, 5, 8)) == (3, 5)
    assert passed(0, 1_000, ()) == ()


@given(st.lists(st.integers(min_value=1, max_value=300), max_size=40))
def test_each_is_passed_once_however_clicks_are_divided(steps: list[int]) -> None:
    total = 0
    seen: list[int] = []
    for step in steps:
        seen += passed(total, total + step)
        total += step
    assert tuple(seen) == tuple(threshold for threshold in THRESHOLDS if threshold <= total)
