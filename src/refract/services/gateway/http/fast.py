"""Refusals in the parser's callback: a flood that gets nowhere must cost less than what gets through."""

import asyncio
import time
from collections.abc import Mapping

from refract.kernel.errors import RefractError, Unauthenticated
from refract.kernel.ids import new_correlation_id, new_event_ids
from refract.runtime.client_address import ClientAddresses
from refract.runtime.exchange import error_body
from refract.runtime.fast_path import FastPath, Headers, HeldAnswer, PassedOn
from refract.runtime.heads import LAST_FIELD, STATUS_LINES, Dates
from refract.runtime.metrics import Metrics
from refract.runtime.request_log import EVERY_LINE, RequestLog
from refract.services.gateway.api import WIRE_NAME, Route
from refract.services.gateway.domain.callers import NOBODY, PROOFS, Asked, Caller
from refract.services.gateway.http.dispatch import Checks
from refract.services.gateway.http.guests import Guest, offered_correlation_id
from refract.services.gateway.http.passing import Carrier
from refract.services.gateway.http.refusing import Busy, fields_of, status_of
from refract.services.gateway.http.rows import find_plain_row

BUSY_PAUSE = 0.05
"""Seconds for which the answers are collected that say that there is no place."""

_DEMANDING = frozenset({"required", "administrator"})
_READING = frozenset({b"GET", b"HEAD"})
_LAST_FIELDS = LAST_FIELD + b"\r\n"
_BUSY = Busy()
_BUSY_STATUS = status_of(_BUSY)
_BUSY_BODY = error_body(_BUSY.message)


class FastRefusals(FastPath):
    """Says no where that is certain at once, and leaves the rest to the application, which says the same.

    `redirects` are asked first, where the links are in the same process.
    """

    def __init__(
        self,
        checks: Checks,
        addresses: ClientAddresses,
        metrics: Metrics | None = None,
        redirects: FastPath | None = None,
        log_samples: Mapping[str, float] = EVERY_LINE,
    ) -> None:
        self._checks = checks
        self._addresses = addresses
        self._metrics = metrics
        self._redirects = redirects
        self._samples = log_samples
        self._logs: dict[str, RequestLog] = {}
        self._heads = _Heads()
        self._later = _Later(self._heads)
        self._carrier = Carrier(checks, self._log_of)
        self._guest: Guest | None = None  # the last one
        if redirects is not None:
            # Whatever repeats itself is theirs, as if we were not here.
            self.remember = redirects.remember  # type: ignore[method-assign]
            self.answer_again = redirects.answer_again  # type: ignore[method-assign]

    def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> bytes | HeldAnswer | None:
        """Answer what is refused for sure; None lets the application do it."""
        if self._redirects is not None:
            answer = self._redirects(method, target, headers, peer)
            if answer is not None:
                return answer
        row = find_plain_row(method, target)
        if row is None:
            return None
        route, path = row.route, row.path
        if self._checks.places.are_spoken_for(route):
            return self._later.hold(self._log_of(route), method, path, offered_correlation_id(headers))
        begun = time.monotonic()
        error = self._refusal(route, method, headers, peer)
        if error is None:
            self._checks.places.expect(route)
            return None
        correlation_id = offered_correlation_id(headers) or new_correlation_id().encode()
        status = status_of(error)
        log = self._log_of(route)
        if log.is_on:
            log.completed(method, path, status, begun, correlation_id)
        return b"".join(
            (
                self._heads.of(status, error),
                b"x-correlation-id: ",
                correlation_id,
                _LAST_FIELDS,
                error_body(error.message) if method != b"HEAD" else b"",
            )
        )

    def remember(self, headers: Headers, peer: str) -> object | None:
        """Whose fields they are, if they bring no id of their own."""
        guest = self._guest_of(headers, peer)
        return None if guest.correlation_id else guest

    def answer_again(self, target: bytes, remembered: object) -> bytes | HeldAnswer | None:  # noqa: ARG002
        """Refuse a GET for which there is no place, before it is parsed."""
        row = find_plain_row(b"GET", target)
        if row is None or not self._checks.places.are_spoken_for(row.route):
            return None
        return self._later.hold(self._log_of(row.route), b"GET", row.path, b"")

    def pass_on(self, method: bytes, target: bytes, headers: Headers, peer: str) -> PassedOn | None:
        """Ask the service for what was let through by `__call__`, where nothing is in the way."""
        row = None if self._redirects is not None else find_plain_row(method, target)
        if row is None:
            return None
        passing = self._carrier.take(method, target, row, self._guest_of(headers, peer))
        if passing is not None:
            self._checks.places.arrive(row.route)
        return passing

    def pass_on_again(self, target: bytes, remembered: object) -> PassedOn | None:
        """The same for a GET from somebody who repeats himself, for which there is a place."""
        row = find_plain_row(b"GET", target)
        if row is None or not isinstance(remembered, Guest):
            return None
        passing = self._carrier.take(b"GET", target, row, remembered)
        if passing is not None:
            self._checks.places.take(row.route)
        return passing

    def flush(self) -> None:
        """Count and log what was refused lately: at the end nobody else does."""
        for log in self._logs.values():
            log.flush()

    def _refusal(self, route: Route, method: bytes, headers: Headers, peer: str) -> RefractError | None:
        """In the order of the application; where something cannot be told from here, what comes after it cannot."""
        if route.own_origin:
            return None
        if route.token != "none" and any(name in PROOFS for name, _ in headers):  # noqa: S105  # a word of the table
            caller = self._caller(route, method, headers)
            return None if caller is None else self._refusal_to(caller, route, headers, peer)
        if route.token in _DEMANDING:
            return _STRANGER
        return self._refusal_to(NOBODY, route, headers, peer)

    def _caller(self, route: Route, method: bytes, headers: Headers) -> Caller | None:
        """Who calls, if it matters and can be told: where nothing is closed, the token would be looked at once more."""
        if self._checks.guard.is_closed(route) or method not in _READING:
            return None
        try:
            return self._checks.callers.identify(route, "GET", Asked.of(headers, "http"))
        except RefractError:
            return None

    def _refusal_to(self, caller: Caller, route: Route, headers: Headers, peer: str) -> RefractError | None:
        counting = self._checks.counting
        if counting.policy(route, caller) is None:
            return self._checks.guard.refusal(route)
        return counting.refusal(route, self._address(headers, peer)) if caller is NOBODY else None

    def _address(self, headers: Headers, peer: str) -> str:
        return self._addresses.find(peer, [value for name, value in headers if name == b"x-forwarded-for"])

    def _guest_of(self, headers: Headers, peer: str) -> Guest:
        guest = self._guest
        if guest is None or guest.headers is not headers:
            guest = self._guest = Guest.of(headers, peer, self._addresses)
        return guest

    def _log_of(self, route: Route) -> RequestLog:
        log = self._logs.get(route.path)
        if log is None:
            sample = self._samples.get(route.path, 1.0)
            log = self._logs[route.path] = RequestLog(WIRE_NAME, sample, metrics=self._metrics, route=route.path)
        return log


class _TurnedAway(HeldAnswer, kw_only=True, eq=False, gc=False):
    """A refusal that waits a little."""

    path: bytes
    begun: float
    correlation_id: bytes
    status: int = _BUSY_STATUS


class _Later:
    """Refusals for want of a place. Who is told so at once asks again at once, and takes the time of those who have
    one. They are answered together, which takes half the time of answering each."""

    def __init__(self, heads: "_Heads") -> None:
        self._heads = heads
        self._waiting: dict[tuple[RequestLog, bytes], list[_TurnedAway]] = {}

    def hold(self, log: RequestLog, method: bytes, path: bytes, correlation_id: bytes) -> HeldAnswer:
        """An answer for the next moment at which some leave; without an id it is given one."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(BUSY_PAUSE, self._release)
        held = _TurnedAway(path=path, begun=time.monotonic(), correlation_id=correlation_id)
        self._waiting.setdefault((log, method), []).append(held)
        return held

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, {}
        head = self._heads.of(_BUSY_STATUS, _BUSY) + b"x-correlation-id: "
        for (log, method), together in waiting.items():
            rest = _LAST_FIELDS if method == b"HEAD" else _LAST_FIELDS + _BUSY_BODY
            for held, new_id in zip(together, new_event_ids(len(together)), strict=True):
                held.correlation_id = held.correlation_id or new_id
                held.release(b"".join((head, held.correlation_id, rest)))
            if log.is_on:
                log.completed_together(method, _BUSY_STATUS, together)


class _Heads:
    """The beginnings of answers."""

    def __init__(self) -> None:
        self._dates = Dates()

    def of(self, status: int, error: RefractError) -> bytes:
        """All fields but the last ones, which differ from one answer to the next."""
        body = error_body(error.message)
        content = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        fields = [b"%b: %b\r\n" % field for field in fields_of(error)]
        return b"".join((STATUS_LINES[status], self._dates.line(), content, *fields))


_STRANGER = Unauthenticated()
