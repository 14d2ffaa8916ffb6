"""The breakers at work: which request reaches its target, what its result was, and who is told of a change."""

import logging
from collections.abc import Awaitable, Iterable
from typing import Literal

from prometheus_client import Counter, Gauge

from refract.kernel.clock import Clock
from refract.kernel.errors import RefractError
from refract.runtime.edge import Message, Receive, Scope, Send
from refract.runtime.exchange import ended_with
from refract.runtime.metrics import Metrics
from refract.services.gateway.api import Route
from refract.services.gateway.domain.breaker import Breaker, BreakerPolicy, CircuitOpen, State
from refract.services.gateway.domain.headers import Header, UpstreamFailed
from refract.services.gateway.ports import Asker, Errand, Services

logger = logging.getLogger("refract.gateway.breaker")
_answers = logging.getLogger("refract.gateway")

Result = Literal["success", "failure", "undecided", "late"]
"""How a request went. `late` is what came to an end after the state in which it began, and does not count."""

_RESULTS: tuple[Result, ...] = ("success", "failure", "undecided", "late")
_LEVELS = {State.CLOSED: logging.INFO, State.HALF_OPEN: logging.INFO, State.OPEN: logging.WARNING}
_WORDS = {State.CLOSED: "closed", State.HALF_OPEN: "half-open", State.OPEN: "open"}


class Breakers:
    """A breaker for each target. Every process has its own: what one of them learns costs the others a few requests."""

    def __init__(
        self,
        targets: Iterable[str],
        clock: Clock,
        metrics: Metrics | None = None,
        policy: BreakerPolicy | None = None,
    ) -> None:
        series = _Series(metrics or Metrics())
        self._circuits = {target: Circuit(target, policy or BreakerPolicy(), clock, series) for target in targets}

    def of(self, target: str) -> "Circuit | None":
        """The breaker of a target, if it has one."""
        return self._circuits.get(target)


class Circuit:
    """The breaker of one target, with its metrics and its log lines."""

    def __init__(self, target: str, policy: BreakerPolicy, clock: Clock, series: "_Series") -> None:
        self._target = target
        self._breaker = Breaker(policy, clock, self._changed)
        self._opens = series.opens.labels(target)
        self._refusals = series.refusals.labels(target)
        self._results = {result: series.results.labels(target, result) for result in _RESULTS}
        series.state.labels(target).set_function(lambda: self._breaker.state.value)

    @property
    def state(self) -> State:
        """The state as the last request or result left it."""
        return self._breaker.state

    def enter(self) -> int:
        """A ticket for one request; raises CircuitOpen where the target is to be left alone."""
        ticket = self._breaker.allow()
        if ticket is None:
            raise self._refuse()
        return ticket

    def lend(self, ticket: int) -> None:
        """Let others go first while a probe's client keeps us waiting."""
        self._breaker.undecided(ticket)

    def go_on(self, ticket: int) -> int:
        """The ticket of a probe whose client has sent something; raises CircuitOpen where another one is the probe."""
        renewed = self._breaker.go_on(ticket)
        if renewed is None:
            raise self._refuse()
        return renewed

    def refusal(self) -> CircuitOpen | None:
        """The error that `enter` would raise now, counted as one; otherwise nothing happens."""
        return self._refuse() if self._breaker.retry_after() > 0 else None

    def settle(self, ticket: int, result: Result) -> None:
        """Hand in how the request of a ticket went."""
        if result == "success":
            counted = self._breaker.succeeded(ticket)
        elif result == "failure":
            counted = self._breaker.failed(ticket)
        else:
            counted = True
            self._breaker.undecided(ticket)
        self._results[result if counted else "late"].inc()

    def _refuse(self) -> CircuitOpen:
        self._refusals.inc()
        return CircuitOpen(self._breaker.retry_after())

    def _changed(self, state: State) -> None:
        if state is State.OPEN:
            self._opens.inc()
        logger.log(_LEVELS[state], "circuit breaker is %s", _WORDS[state], extra={"target": self._target})


class Guard:
    """Stands between the table and the services; without breakers it only hands over."""

    def __init__(self, services: Services, breakers: Breakers | None) -> None:
        self._services = services
        self._breakers = breakers

    async def forward(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the row's target answer. Raises what `Services.forward` raises, and CircuitOpen."""
        circuit = self.circuit(route)
        witness = _Witness(circuit, 0 if circuit is None else circuit.enter(), receive, send)
        answering = self._services.forward(route.target, scope, witness.receive, witness.send)
        await self._watch(route, witness, scope, answering)

    def send_out(self, route: Route, method: bytes, path: bytes, lines: bytes, asker: Asker) -> Errand | None:
        """For the hot path: ask the row's target without waiting; whoever does has a ticket, and hands it in."""
        return self._services.send_out(route.target, method, path, lines, asker)

    async def finish(
        self, route: Route, ticket: int, errand: Errand, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Go on with what was sent out under this ticket, which is handed in here. Raises what `forward` raises."""
        witness = _Witness(self.circuit(route), ticket, receive, send)
        answering = self._services.finish(errand, scope, witness.receive, witness.send)
        await self._watch(route, witness, scope, answering)

    async def ask(self, target: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Ask a target something of our own: the status and the body of its answer.

        Raises UnknownUpstream, UpstreamFailed or, where its breaker is open, CircuitOpen. The result counts there, too.
        That we are Overstretched ourselves says nothing about the target, and decides nothing.
        """
        circuit = None if self._breakers is None else self._breakers.of(target)
        ticket = 0 if circuit is None else circuit.enter()
        result: Result = "undecided"
        try:
            status, answer = await self._services.post(target, path, body)
            result = "success" if status < 500 else "failure"
        except UpstreamFailed:
            result = "failure"
            raise
        finally:
            if circuit is not None:
                circuit.settle(ticket, result)
        return status, answer

    async def _watch(self, route: Route, witness: "_Witness", scope: Scope, answering: Awaitable[None]) -> None:
        try:
            await answering
        except UpstreamFailed:
            witness.settle("failure")
            raise
        except BaseException:
            witness.settle("undecided")  # the client's fault, or our own
            raise
        finally:
            if witness.trouble:
                # Here, and not where the answer passes: in one process that is in the target's name.
                _answers.warning("downstream error", extra={"target": route.target, "status": witness.trouble})
        witness.conclude(scope)

    def refusal(self, route: Route) -> CircuitOpen | None:
        """For the hot path: the error that `forward` would raise now; None where a request may go the usual way."""
        circuit = self.circuit(route)
        return None if circuit is None else circuit.refusal()

    def is_closed(self, route: Route) -> bool:
        """For the hot path: whether there is nothing here that could refuse."""
        circuit = self.circuit(route)
        return circuit is None or circuit.state is State.CLOSED

    def circuit(self, route: Route) -> Circuit | None:
        """The breaker that a row minds."""
        return self._breakers.of(route.target) if self._breakers is not None and route.breaker else None


class _Witness:
    """Sees one request and its answer pass, and says once how it went, to the target's breaker if it has one."""

    __slots__ = ("_answered", "_circuit", "_client_left", "_receive", "_send", "_ticket", "_waits", "trouble")

    def __init__(self, circuit: Circuit | None, ticket: int, receive: Receive, send: Send) -> None:
        self._ticket = ticket
        self._circuit = circuit
        # The slot of a probe is for whoever has said everything. Who withholds a body would keep everybody out.
        self._waits = circuit is not None and circuit.state is State.HALF_OPEN
        self._receive = receive
        self._send = send
        self._answered = False
        self._client_left = False
        self.trouble = 0
        """The status with which the target said that it is in trouble, if it did."""

    async def receive(self) -> Message:
        """The client's next message."""
        if self._waits and self._circuit is not None:
            self._circuit.lend(self._ticket)
        try:
            message: Message = await self._receive()
            if self._waits and self._circuit is not None and message["type"] == "http.request":
                self._ticket = self._circuit.go_on(self._ticket)
                self._waits = bool(message.get("more_body", False))
        except RefractError:
            self._client_left = True  # what it sends is refused, and whatever comes of that is not the target's fault
            raise
        if message["type"] == "http.disconnect":
            self._client_left = True
        return message

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on. A 5xx is known by its head, anything else when it is whole."""
        if message["type"] == "http.response.start":
            self._answered = True
            if message["status"] >= 500:
                self._fail(message["status"])
            elif _is_stream(message["headers"]):
                self.settle("success")  # it may last for hours
        elif not message.get("more_body", False):
            self.settle("success")
        await self._send(message)

    def settle(self, result: Result) -> None:
        """Hand in the result, if that was not done yet."""
        if self._circuit is not None:
            self._circuit.settle(self._ticket, result)
            self._circuit = None
            self._waits = False

    def conclude(self, scope: Scope) -> None:
        """It is over: judge an answer that did not come, or not whole."""
        if self._circuit is None:
            return
        if self._answered:
            # The client lost interest in an answer that was good so far, or the target broke it off.
            self.settle("success" if self._client_left else "failure")
        elif ended_with(scope) == 503:
            self.settle("failure")  # our server ran out of patience
        else:
            self.settle("undecided")

    def _fail(self, status: int) -> None:
        """The target answers with a 5xx: if it was us who refused the rest of the request, it only passes that on."""
        if self._client_left:
            self.settle("undecided")
        else:
            self.trouble = status
            self.settle("failure")


def _is_stream(headers: Iterable[Header]) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


class _Series:
    """What is counted of breakers."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry
        self.state = Gauge("gateway_breaker_state", "0 is closed, 1 open, 2 half-open", ("target",), registry=registry)
        self.opens = Counter("gateway_breaker_opens", "How often a breaker opened", ("target",), registry=registry)
        self.refusals = Counter(
            "gateway_breaker_refusals", "Requests that an open breaker refused", ("target",), registry=registry
        )
        self.results = Counter(
            "gateway_breaker_results", "How requests went, as breakers see it", ("target", "result"), registry=registry
        )
