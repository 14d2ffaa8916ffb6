"""A user's limit: both windows against exact models, the next slot, clocks that are set back, and its copies."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from refract.services.sms.domain.copies import TAKE, copy_of, in_milliseconds, key_of
from refract.services.sms.domain.limits import (
    SLICES,
    Algorithm,
    Limit,
    at_moment,
    decide,
    forgets_at,
    read_slices,
    write_slices,
)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
LAST = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC) - START

algorithms: st.SearchStrategy[Algorithm] = st.sampled_from(["fixed", "sliding"])
walks = st.lists(st.tuples(st.floats(0, 1.3), st.integers(1, 6)), max_size=60)
"""Steps in parts of the window, and how many ask after each."""


def new_limit(rate_limit: int, time_window: int, algorithm: Algorithm) -> Limit:
    return Limit(rate_limit, time_window, algorithm, 0, START)


def some_limit(algorithm: Algorithm = "fixed", *, used: int = 0, limit: int = 5, minutes: int = 10) -> Limit:
    return decide(new_limit(limit, minutes, algorithm), START, used).limit


@given(rate_limit=st.integers(1, 8), minutes=st.sampled_from([1, 7, 60, 50_000]), walk=walks)
def test_no_interval_of_a_sliding_window_has_more_than_the_limit_and_none_is_refused_for_longer_than_a_slice(
    rate_limit: int, minutes: int, walk: list[tuple[float, int]]
) -> None:
    limit = new_limit(rate_limit, minutes, "sliding")
    now, sends = START, list[datetime]()
    for step, asked in walk:
        now += step * limit.window
        decision = decide(limit, now, asked)
        exact = sum(sent > now - limit.window for sent in sends)
        lenient = sum(sent > now - limit.window - 2 * limit.window / SLICES for sent in sends)
        assert decision.admitted <= min(asked, rate_limit - exact)
        assert decision.admitted >= min(asked, rate_limit - lenient)
        sends += [now] * decision.admitted
        limit = decision.limit
        assert limit.current_count == sum(count for _, count in limit.slices) <= rate_limit
        assert len(limit.slices) <= SLICES + 1
        assert read_slices(write_slices(limit.slices)) == limit.slices


@given(rate_limit=st.integers(1, 8), minutes=st.sampled_from([1, 7, 60]), walk=walks)
def test_a_fixed_window_admits_the_limit_from_its_first_send_and_begins_anew_once_it_is_over(
    rate_limit: int, minutes: int, walk: list[tuple[float, int]]
) -> None:
    limit = new_limit(rate_limit, minutes, "fixed")
    window, now, begun, used = limit.window, START, START, 0
    for step, asked in walk:
        now += step * window
        if now - begun >= window:
            begun, used = now, 0
        decision = decide(limit, now, asked)
        assert decision.admitted == min(asked, rate_limit - used)
        used += decision.admitted
        limit = decision.limit
        assert (limit.current_count, limit.last_refresh_time) == (used, begun)


@given(algorithm=algorithms, rate_limit=st.integers(1, 8), walk=walks)
def test_whoever_waits_until_the_next_slot_is_admitted_and_a_microsecond_before_it_nobody_is(
    algorithm: Algorithm, rate_limit: int, walk: list[tuple[float, int]]
) -> None:
    limit, now = new_limit(rate_limit, 10, algorithm), START
    for step, asked in walk:
        now += step * limit.window
        decision = decide(limit, now, asked)
        limit = decision.limit
        if limit.room:
            assert decision.free_at == now
        else:
            assert decision.free_at > now
            assert decide(limit, decision.free_at, 1).admitted == 1
            assert decide(limit, decision.free_at - LAST, 1).admitted == 0


@given(algorithm=algorithms, walk=walks, batches=st.integers(1, 4))
def test_asking_together_is_asking_one_after_the_other(
    algorithm: Algorithm, walk: list[tuple[float, int]], batches: int
) -> None:
    together = alone = new_limit(5, 10, algorithm)
    now = START
    for step, asked in walk:
        now += step * together.window
        decision = decide(together, now, asked * batches)
        admitted = 0
        for _ in range(asked * batches):
            one = decide(alone, now, 1)
            admitted, alone = admitted + one.admitted, one.limit
        assert admitted == decision.admitted
        together = decision.limit
        assert at_moment(together, now) == at_moment(alone, now)


@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
@pytest.mark.parametrize("back", [timedelta(seconds=1), timedelta(hours=1), timedelta(days=400)])
def test_a_clock_that_is_set_back_gives_nobody_more_and_lets_nobody_wait_for_longer_than_a_window(
    algorithm: Algorithm, back: timedelta
) -> None:
    limit = some_limit(algorithm, used=5)
    now = START - back
    refused = decide(limit, now, 1)
    assert refused.admitted == 0
    assert refused.limit.current_count == 5
    assert timedelta() < refused.free_at - now <= limit.window * (SLICES + 1) / SLICES + timedelta(seconds=1)
    assert decide(refused.limit, refused.free_at, 1).admitted == 1


@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
def test_the_longest_window_and_the_highest_limit_can_be_reckoned_with(algorithm: Algorithm) -> None:
    limit = new_limit(2**31 - 1, 2**31 - 1, algorithm)
    full = decide(limit, START, 2**31 + 5)
    assert full.admitted == full.limit.current_count == 2**31 - 1
    assert full.free_at > START + timedelta(days=365 * 4_000)
    assert copy_of(full.limit, START + timedelta(days=1)).seconds > 0


def test_refused_ones_do_not_count_and_change_nothing() -> None:
    for algorithm in ("fixed", "sliding"):
        full = some_limit(algorithm, used=5)
        decision = decide(full, START + timedelta(minutes=1), 100)
        assert (decision.admitted, decision.limit) == (0, full)


# The copy that Redis holds.


@pytest.mark.parametrize(
    ("elapsed", "ttl"), [(0, 600), (59, 600), (60, 540), (119.9, 540), (599.9, 60), (600, 600), (9_999, 600)]
)
def test_a_copy_of_a_fixed_window_lives_as_long_as_the_document_says(elapsed: float, ttl: int) -> None:
    limit = some_limit(used=3)
    copy = copy_of(limit, START + timedelta(seconds=elapsed))
    over = elapsed >= 600
    assert copy.seconds == ttl
    assert copy.fields == {
        "rateLimit": 5,
        "currentCount": 0 if over else 3,
        "resetsAt": 0 if over else in_milliseconds(START + limit.window),
        "madeAt": in_milliseconds(START + timedelta(seconds=elapsed)),
    }


def test_a_copy_of_a_sliding_window_lives_until_the_next_slot_is_free_and_knows_when_only_if_it_is_full() -> None:
    empty = new_limit(5, 10, "sliding")
    assert copy_of(empty, START).seconds == 600
    assert copy_of(empty, START).fields["resetsAt"] == 0
    half = some_limit("sliding", used=3)
    free = forgets_at(half, START)
    assert copy_of(half, START).seconds == (free - START).total_seconds() == 610
    made = in_milliseconds(START)
    assert copy_of(half, START).fields == {"rateLimit": 5, "currentCount": 3, "resetsAt": 0, "madeAt": made}
    full = decide(half, START + timedelta(seconds=15), 2).limit
    copy = copy_of(full, START + timedelta(seconds=20))
    assert copy.fields == {
        "rateLimit": 5,
        "currentCount": 5,
        "resetsAt": in_milliseconds(free),
        "madeAt": in_milliseconds(START + timedelta(seconds=20)),
    }
    assert copy.seconds == 590


def test_a_moment_in_milliseconds_is_never_before_it() -> None:
    assert in_milliseconds(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000
    assert in_milliseconds(datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)) == 1_001


def test_the_key_is_the_document_s() -> None:
    assert key_of(101) == "RateLimiterCache:101"


def test_the_version_of_a_limit_does_not_change_with_what_is_counted() -> None:
    limit = replace(some_limit(), version=7)
    assert decide(limit, START + 3 * limit.window, 2).limit.version == 7
    assert TAKE.name
