"""Pauses and reasons of deliveries."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.notifications.domain.sending import (
    JITTER,
    LONGEST_PAUSE,
    LONGEST_REASON,
    MAX_ATTEMPTS,
    pause_after,
    reason_of,
)


def test_pauses_grow_to_six_hours_and_make_a_day() -> None:
    pauses = [pause_after(attempt, 0.5) for attempt in range(1, MAX_ATTEMPTS)]
    assert pauses[0] == timedelta(minutes=1)
    assert pauses == sorted(pauses)
    assert pauses[-1] == timedelta(hours=6)
    assert sum(pauses, timedelta()) == timedelta(minutes=1444)


@given(st.integers(-5, 1000), st.floats(0, 1))
def test_chance_changes_a_pause_by_a_fifth_at_most(attempts: int, chance: float) -> None:
    middle = pause_after(attempts, 0.5)
    assert abs(pause_after(attempts, chance) - middle) <= middle * JITTER + timedelta(microseconds=1)


def test_chance_does_change_it() -> None:
    assert pause_after(3, 0) < pause_after(3, 0.5) < pause_after(3, 1)


@pytest.mark.parametrize(("asked", "given"), [(30, 30), (0.1, 1), (10_000, 360)])
def test_who_asks_for_more_gets_more_within_the_longest(asked: float, given: float) -> None:
    assert pause_after(1, 0.5, timedelta(minutes=asked)) == timedelta(minutes=given)
    assert timedelta(minutes=360) == LONGEST_PAUSE


@given(st.text())
def test_a_reason_is_one_short_printable_line(text: str) -> None:
    reason = reason_of(text)
    assert len(reason) <= LONGEST_REASON
    assert reason.isprintable()


def test_a_long_reason_is_cut() -> None:
    assert reason_of("x" * 1000) == "x" * (LONGEST_REASON - 1) + "…"
    assert reason_of("550 no\r\n\tsuch user\x00") == "550 no such user"
    assert reason_of("\ud800") == ""
