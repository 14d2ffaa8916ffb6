"""The sliding window against an exact model that remembers every hit."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refract.runtime.windows import BUCKETS, MICROSECONDS, Policy, SlidingWindow, SlidingWindows, Verdict

windows = st.sampled_from([0.000_02, 0.000_03, 0.001, 0.333_333, 1.0, 60.0, 900.0])
steps = st.lists(st.tuples(st.floats(0, 1.2), st.integers(0, 6)), max_size=60)


class ExactModel:
    """Every admitted hit with its moment."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.window = round(policy.window * MICROSECONDS)
        self.hits: list[tuple[int, int]] = []

    def admitted_since(self, moment: int) -> int:
        return sum(cost for at, cost in self.hits if at >= moment)

    def needed_wait(self, now: int, cost: int) -> int:
        """How long an exact limiter would ask to wait."""
        for at, _ in self.hits:
            if self.admitted_since(at + 1) + cost <= self.policy.limit:
                return max(0, at + self.window - now)
        return 0


@example(limit=6, window=0.000_03, start=0, walk=[(0.0, 6), (0.84, 6)])  # a bucket of one and a half microseconds
@given(limit=st.integers(1, 8), window=windows, start=st.integers(0, 10**15), walk=steps)
def test_no_interval_admits_more_than_the_limit_and_nothing_is_refused_for_longer_than_a_bucket(
    limit: int, window: float, start: int, walk: list[tuple[float, int]]
) -> None:
    policy, counter, now = Policy("route", limit, window), SlidingWindow(), start
    model = ExactModel(policy)
    for step, cost in walk:
        now += round(step * model.window)
        verdict = counter.hit(policy, now, cost)
        if verdict.allowed:
            model.hits.append((now, cost))
            assert model.admitted_since(now - model.window) <= limit
        else:
            assert model.admitted_since(now - (BUCKETS + 1) * policy.bucket) + cost > limit
        assert 0 <= verdict.remaining <= limit


@given(limit=st.integers(1, 8), window=windows, start=st.integers(0, 10**15), walk=steps)
def test_waiting_as_told_is_enough_and_at_most_a_bucket_too_long(
    limit: int, window: float, start: int, walk: list[tuple[float, int]]
) -> None:
    policy, counter, now = Policy("route", limit, window), SlidingWindow(), start
    model = ExactModel(policy)
    for step, cost in walk:
        now += round(step * model.window)
        verdict = counter.hit(policy, now, cost)
        if not verdict.allowed and cost <= limit:
            wait = round(verdict.retry_after * MICROSECONDS)
            # The bucket's width is rounded up to a microsecond, and twenty of them make the window.
            assert 0 < wait <= model.needed_wait(now, cost) + policy.bucket + BUCKETS
            now += wait
            assert counter.hit(policy, now, cost).allowed
            verdict = Verdict(allowed=True, limit=limit, remaining=0)
        if verdict.allowed and cost:
            model.hits.append((now, cost))


def test_hits_that_were_refused_do_not_count() -> None:
    policy, counter = Policy("route", 2, 60), SlidingWindow()
    assert [counter.hit(policy, 0).allowed for _ in range(50)] == [True, True] + [False] * 48
    first_free = round(counter.hit(policy, 0).retry_after * MICROSECONDS)
    assert [counter.hit(policy, first_free).allowed for _ in range(3)] == [True, True, False]


def test_a_cost_over_the_limit_is_refused_and_counts_nothing() -> None:
    policy, counter = Policy("route", 3, 60), SlidingWindow()
    assert not counter.hit(policy, 0, cost=4).allowed
    assert counter.hit(policy, 0, cost=3).allowed


def test_a_cost_of_nothing_asks_without_counting() -> None:
    policy, counter = Policy("route", 2, 60), SlidingWindow()
    counter.hit(policy, 0)
    assert [counter.hit(policy, 0, cost=0).remaining for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(("wait", "header"), [(0.000_001, 1), (1.0, 1), (1.2, 2), (59.9, 60)])
def test_the_header_is_whole_seconds_and_never_too_few(wait: float, header: int) -> None:
    assert Verdict(allowed=False, limit=1, remaining=0, retry_after=wait).retry_after_seconds == header


@pytest.mark.parametrize(("limit", "window"), [(-1, 60.0), (1, 0.0), (1, -5.0)])
def test_a_limit_that_makes_no_sense_is_refused(limit: int, window: float) -> None:
    with pytest.raises(ValueError, match="no such rate limit"):
        Policy("route", limit, window)


def test_a_flood_of_strangers_does_not_grow_without_bound() -> None:
    policy, counters = Policy("route", 5, 60), SlidingWindows(capacity=100)
    for number in range(10_000):
        counters.hit(f"stranger {number}", policy, now=0)
    assert len(counters) == 100


def test_idle_counters_are_swept_while_others_come() -> None:
    policy, counters = Policy("route", 5, 60), SlidingWindows()
    for number in range(1_000):
        counters.hit(f"morning {number}", policy, now=0)
    for number in range(600):
        counters.hit(f"evening {number}", policy, now=3_600 * MICROSECONDS)
    assert len(counters) == 600


def test_a_counter_in_use_outlives_a_sweep() -> None:
    policy, counters = Policy("route", 1, 60), SlidingWindows(capacity=10)
    counters.hit("regular", policy, now=0)
    for number in range(500):
        counters.hit(f"stranger {number}", policy, now=0)
        assert not counters.hit("regular", policy, now=0).allowed


def test_routes_are_counted_apart() -> None:
    counters = SlidingWindows()
    for route in ("shorten", "redirect"):
        assert counters.hit("somebody", Policy(route, 1, 60), now=0).allowed
        assert not counters.hit("somebody", Policy(route, 1, 60), now=0).allowed


def test_to_ask_leaves_no_counter_behind() -> None:
    windows = SlidingWindows(capacity=2)
    policy = Policy("login", 10, 60.0)
    windows.hit("victim", policy, 0)
    for number in range(10):
        assert windows.hit(f"name-{number}", policy, 1, cost=0).remaining == 10
    assert len(windows) == 1
    assert windows.hit("victim", policy, 1, cost=0).remaining == 9
