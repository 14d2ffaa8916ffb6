"""The breaker against a naive model, which keeps everything that happened and works the state out anew each time."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from refract.services.gateway.domain.breaker import Breaker, BreakerPolicy, State
from tests.support.clocks import ManualClock

SMALL = BreakerPolicy(failures=3, window=10.0, pause=30.0, probe=20.0)

CHANGES = {
    (State.CLOSED, State.OPEN),
    (State.OPEN, State.HALF_OPEN),
    (State.HALF_OPEN, State.CLOSED),
    (State.HALF_OPEN, State.OPEN),
}


@dataclass
class Happening:
    """Something that happened: somebody came, was let through, or a result came in."""

    at: int
    what: str
    request: int


class Model:
    """Reads the whole history from its beginning, with whole seconds, for every question."""

    def __init__(self) -> None:
        self.history: list[Happening] = []
        self.states: list[State] = []

    def add(self, at: int, what: str, request: int) -> bool:
        """Take note, and say whether the request was let through, or the result counted."""
        self.history.append(Happening(at, what, request))
        return self.read()

    def read(self) -> bool:
        state, states = State.CLOSED, [State.CLOSED]
        failures: list[int] = []
        opened = probe_at = 0
        begun_in: dict[int, int] = {}  # by request, how many states there had been
        probe: int | None = None
        counted = False
        for event in self.history:
            if event.what == "come":
                counted = state is State.CLOSED
                if state is State.OPEN and event.at - opened >= SMALL.pause:
                    state = State.HALF_OPEN
                    states.append(state)
                    probe, probe_at, counted = event.request, event.at, True
                elif state is State.HALF_OPEN and (probe is None or event.at - probe_at >= SMALL.probe):
                    probe, probe_at, counted = event.request, event.at, True
                begun_in[event.request] = len(states)
                continue
            counted = begun_in[event.request] == len(states) and (state is State.CLOSED or event.request == probe)
            if not counted:
                continue
            if event.what == "undecided":
                probe = None
            elif event.what == "success":
                failures = []
                if state is State.HALF_OPEN:
                    state = State.CLOSED
                    states.append(state)
            else:
                failures.append(event.at)
                last = failures[-SMALL.failures :]
                gaps = [later - earlier for earlier, later in pairwise(last)]
                in_a_row = len(last) == SMALL.failures and all(gap <= SMALL.window for gap in gaps)
                if state is State.HALF_OPEN or in_a_row:
                    state, opened, failures, probe = State.OPEN, event.at, [], None
                    states.append(state)
        self.states = states
        return counted


class BreakerMachine(RuleBasedStateMachine):
    """Requests come, results come in any order, time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.states = [State.CLOSED]
        self.breaker = Breaker(SMALL, self.clock, self.states.append)
        self.model = Model()
        self.model.read()
        self.seconds = 0
        self.requests = 0
        self.under_way: dict[int, int] = {}

    @rule()
    def a_request_comes(self) -> None:
        self.requests += 1
        allowed = self.model.add(self.seconds, "come", self.requests)
        ticket = self.breaker.allow()
        assert (ticket is not None) == allowed
        if ticket is not None:
            self.under_way[self.requests] = ticket

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), what=st.sampled_from(["success", "failure", "failure", "failure", "undecided"]))
    def a_result_comes(self, data: st.DataObject, what: str) -> None:
        request = data.draw(st.sampled_from(sorted(self.under_way)))
        ticket = self.under_way.pop(request)
        counted = self.model.add(self.seconds, what, request)
        if what == "success":
            assert self.breaker.succeeded(ticket) == counted
        elif what == "failure":
            assert self.breaker.failed(ticket) == counted
        else:
            self.breaker.undecided(ticket)

    @rule(seconds=st.sampled_from([1, 9, 10, 11, 19, 20, 29, 30, 31]))
    def time_passes(self, seconds: int) -> None:
        self.seconds += seconds
        self.clock.advance(seconds)

    @invariant()
    def both_went_the_same_way(self) -> None:
        assert self.states == self.model.states
        assert self.breaker.state is self.states[-1]
        assert set(pairwise(self.states)) <= CHANGES

    @invariant()
    def waiting_as_told_is_enough(self) -> None:
        assert 0 <= self.breaker.retry_after() <= 30


BreakerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestBreakerAgainstItsModel = BreakerMachine.TestCase
