"""The breaker's states, and which results count in them."""

import pytest

from refract.kernel.errors import Kind
from refract.services.gateway.domain.breaker import Breaker, BreakerPolicy, CircuitOpen, State
from tests.support.clocks import ManualClock


class Bench:
    """A breaker with M5's figures, its clock, and the states it went through."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.states: list[State] = []
        self.breaker = Breaker(BreakerPolicy(), self.clock, self.states.append)

    @property
    def state(self) -> State:
        return self.breaker.state

    def is_in(self, state: State) -> bool:
        return self.breaker.state is state

    def allow(self) -> int | None:
        return self.breaker.allow()

    def enter(self) -> int:
        ticket = self.breaker.allow()
        assert ticket is not None
        return ticket

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.breaker.failed(self.enter())

    def succeed(self) -> None:
        assert self.breaker.succeeded(self.enter())

    def open(self) -> None:
        self.fail(5)
        assert self.is_in(State.OPEN)

    def probe(self) -> int:
        """Open, wait, and let the probe through."""
        self.open()
        self.clock.advance(30)
        return self.enter()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_figures_are_those_of_the_specification() -> None:
    policy = BreakerPolicy()
    assert (policy.failures, policy.window, policy.pause, policy.probe) == (5, 10.0, 30.0, 30.0)


def test_it_begins_closed_and_lets_everybody_through(bench: Bench) -> None:
    assert bench.is_in(State.CLOSED)
    assert None not in [bench.allow() for _ in range(100)]
    assert (bench.state, bench.states, bench.breaker.retry_after()) == (State.CLOSED, [], 0.0)


def test_five_failures_in_a_row_open_it_and_four_do_not(bench: Bench) -> None:
    bench.fail(4)
    assert bench.is_in(State.CLOSED)
    bench.fail()
    assert bench.states == [State.OPEN]


def test_requests_that_were_under_way_together_open_it_together(bench: Bench) -> None:
    tickets = [bench.enter() for _ in range(100)]
    assert [bench.breaker.failed(ticket) for ticket in tickets] == [True] * 5 + [False] * 95
    assert bench.states == [State.OPEN]


def test_open_it_lets_nobody_through_for_thirty_seconds(bench: Bench) -> None:
    bench.open()
    for _ in range(30):
        assert bench.allow() is None
        bench.clock.advance(0.999_999)
    assert bench.allow() is None
    bench.clock.advance(0.000_03)
    assert bench.allow() is not None
    assert bench.states == [State.OPEN, State.HALF_OPEN]


def test_time_alone_changes_nothing(bench: Bench) -> None:
    bench.open()
    bench.clock.advance(3600)
    assert bench.is_in(State.OPEN)


def test_a_success_resets_the_count(bench: Bench) -> None:
    bench.fail(4)
    bench.succeed()
    bench.fail(4)
    assert bench.is_in(State.CLOSED)
    bench.fail()
    assert bench.is_in(State.OPEN)


def test_a_failure_long_after_the_one_before_begins_a_new_row(bench: Bench) -> None:
    bench.fail(3)
    bench.clock.advance(10.001)
    bench.fail(4)
    assert bench.is_in(State.CLOSED)
    bench.fail()
    assert bench.is_in(State.OPEN)


def test_each_failure_is_within_ten_seconds_of_the_last_and_not_of_the_first(bench: Bench) -> None:
    for _ in range(4):
        bench.fail()
        bench.clock.advance(10)
    bench.fail()
    assert bench.is_in(State.OPEN)


def test_half_open_exactly_one_of_a_hundred_gets_through(bench: Bench) -> None:
    bench.open()
    bench.clock.advance(30)
    assert sum(bench.allow() is not None for _ in range(100)) == 1
    assert bench.is_in(State.HALF_OPEN)


def test_a_probe_that_succeeds_closes_it_with_a_clean_count(bench: Bench) -> None:
    assert bench.breaker.succeeded(bench.probe())
    assert bench.states == [State.OPEN, State.HALF_OPEN, State.CLOSED]
    bench.fail(4)
    assert bench.is_in(State.CLOSED)


def test_a_probe_that_fails_opens_it_for_another_thirty_seconds(bench: Bench) -> None:
    probe = bench.probe()
    bench.clock.advance(5)
    assert bench.breaker.failed(probe)
    assert bench.states == [State.OPEN, State.HALF_OPEN, State.OPEN]
    bench.clock.advance(29.999)
    assert bench.allow() is None
    bench.clock.advance(0.001)
    assert bench.allow() is not None


def test_a_probe_that_hangs_frees_its_place_after_thirty_seconds(bench: Bench) -> None:
    hanging = bench.probe()
    bench.clock.advance(29.999)
    assert bench.allow() is None
    bench.clock.advance(0.001)
    second = bench.enter()
    assert bench.allow() is None
    assert not bench.breaker.failed(hanging), "what the first one says now is about the past"
    assert not bench.breaker.succeeded(hanging)
    bench.breaker.undecided(hanging)
    assert bench.allow() is None, "the second probe still has its place"
    assert bench.breaker.succeeded(second)
    assert bench.states == [State.OPEN, State.HALF_OPEN, State.CLOSED]


def test_a_probe_that_hangs_and_then_fails_with_nobody_behind_it_counts(bench: Bench) -> None:
    probe = bench.probe()
    bench.clock.advance(35)
    assert bench.breaker.failed(probe)
    assert bench.is_in(State.OPEN)


def test_a_probe_whose_client_leaves_gives_its_place_to_the_next_request(bench: Bench) -> None:
    bench.breaker.undecided(bench.probe())
    assert bench.is_in(State.HALF_OPEN)
    second = bench.enter()
    assert bench.allow() is None
    assert bench.breaker.succeeded(second)
    assert bench.is_in(State.CLOSED)


def test_a_client_that_leaves_neither_counts_nor_resets(bench: Bench) -> None:
    bench.fail(4)
    for _ in range(10):
        bench.breaker.undecided(bench.enter())
    assert bench.is_in(State.CLOSED)
    bench.fail()
    assert bench.is_in(State.OPEN)


@pytest.mark.parametrize("late", ["failed", "succeeded", "undecided"])
@pytest.mark.parametrize("now", [State.OPEN, State.HALF_OPEN, State.CLOSED])
def test_results_begun_before_a_change_of_state_do_not_count(bench: Bench, late: str, now: State) -> None:
    tickets = [bench.enter() for _ in range(10)]
    if now is State.OPEN:
        bench.open()
    else:
        probe = bench.probe()
        if now is State.CLOSED:
            assert bench.breaker.succeeded(probe)
            bench.fail(4)
    states = list(bench.states)
    for ticket in tickets:
        assert not getattr(bench.breaker, late)(ticket)
    assert (bench.state, bench.states) == (now, states)
    if now is State.CLOSED:
        bench.fail()  # four were counted before, and are still
        assert bench.states[-1] is State.OPEN
    else:
        assert bench.allow() is None


def test_it_says_how_long_to_wait(bench: Bench) -> None:
    bench.open()
    assert bench.breaker.retry_after() == 30.0
    bench.clock.advance(12)
    assert bench.breaker.retry_after() == 18.0
    bench.clock.advance(20)
    assert bench.breaker.retry_after() == 0.0
    probe = bench.enter()
    bench.clock.advance(10)
    assert bench.breaker.retry_after() == 20.0
    bench.breaker.undecided(probe)
    assert bench.breaker.retry_after() == 0.0


def test_an_open_circuit_is_unavailable() -> None:
    error = CircuitOpen(12.5)
    assert (error.kind, error.message, error.retry_after) == (Kind.UNAVAILABLE, "service unavailable", 12.5)
