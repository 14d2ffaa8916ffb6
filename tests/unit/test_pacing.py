"""When the next flush of clicks leaves: judged by the last one, and by how many wait."""

import pytest

from refract.services.links.redirect.pacing import ENOUGH, FEW, GATHER_SECONDS, MANY, NAP_SECONDS, Pace
from tests.support.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pace(clock: ManualClock) -> Pace:
    """That of a writer whose last flush has just begun."""
    pace = Pace(clock)
    pace.begin()
    return pace


@pytest.mark.parametrize(
    ("coming", "waiting", "waits"),
    [
        (FEW, 1, True),
        (FEW - 1, 1, False),
        (FEW, 0, False),
        (FEW, FEW, False),
        (MANY, ENOUGH - 1, True),
        (MANY, ENOUGH, False),
    ],
)
def test_company_is_waited_for_until_it_is_what_came_last_or_enough(
    pace: Pace, coming: int, waiting: int, waits: bool
) -> None:
    pace.coming = coming
    assert pace.company(waiting) == (GATHER_SECONDS if waits else 0.0)


@pytest.mark.parametrize(
    ("coming", "waiting", "naps"),
    [
        (ENOUGH, 1, True),
        (ENOUGH - 1, 1, False),
        (ENOUGH, 0, False),
        (ENOUGH, ENOUGH, False),
        (2 * MANY, MANY - 1, True),
        (2 * MANY, MANY, False),
    ],
)
def test_the_loop_stands_still_while_many_come_and_not_once_they_are_here(
    pace: Pace, coming: int, waiting: int, naps: bool
) -> None:
    pace.coming = coming
    assert pace.nap(waiting) == (NAP_SECONDS if naps else 0.0)


def test_what_the_last_flush_took_counts(pace: Pace, clock: ManualClock) -> None:
    pace.coming = MANY
    clock.advance(NAP_SECONDS / 4)
    assert pace.nap(1) == pytest.approx(NAP_SECONDS * 3 / 4)
    clock.advance(NAP_SECONDS)
    assert pace.nap(1) == 0.0
    assert pace.company(1) == pytest.approx(GATHER_SECONDS - NAP_SECONDS * 5 / 4)
    clock.advance(GATHER_SECONDS)
    assert pace.company(1) == 0.0


def test_before_the_first_flush_nobody_waits(clock: ManualClock) -> None:
    pace = Pace(clock)
    pace.coming = MANY
    assert (pace.nap(1), pace.company(1)) == (0.0, 0.0)
