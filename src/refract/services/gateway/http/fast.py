"""Refusals in the parser's callback: a flood that gets nowhere must cost less than what gets through."""

import asyncio
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from http import HTTPStatus

from refract.kernel.errors import RefractError, Unauthenticated
from refract.runtime.client_address import ClientAddresses
from refract.runtime.correlation import accept_correlation_id
from refract.runtime.exchange import error_body
from refract.runtime.fast_path import FastPath, Headers, HeldAnswer
from refract.runtime.metrics import Metrics
from refract.runtime.request_log import RequestLog
from refract.services.gateway.api import WIRE_NAME, Match, Route, resolve
from refract.services.gateway.domain.callers import NOBODY, Asked, Caller
from refract.services.gateway.domain.headers import Header
from refract.services.gateway.http.dispatch import Checks
from refract.services.gateway.http.refusing import Busy, fields_of, status_of

BUSY_PAUSE = 0.05
"""Seconds for which the answers are collected that say that there is no place."""

# A path that is logged as it stands, and a query in which nothing can be wrong.
_TARGET = re.compile(rb"(/[A-Za-z0-9._~/-]*)(?:\?[A-Za-z0-9._~!$&'()*+,;=:@/?%-]*)?\Z")
_PROOFS = frozenset({b"authorization", b"cookie"})
_DEMANDING = frozenset({"required", "administrator"})
_READING = frozenset({b"GET", b"HEAD"})
_METHODS = _READING | {b"POST", b"PUT", b"PATCH", b"DELETE"}


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
    ) -> None:
        self._checks = checks
        self._addresses = addresses
        self._metrics = metrics
        self._redirects = redirects
        self._logs: dict[str, RequestLog] = {}
        self._date = _Date()
        self._later = _Later()
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
        plain = _TARGET.match(target)
        if plain is None or method not in _METHODS:
            return None
        match = resolve(method.decode("ascii"), plain[1].decode("ascii"))
        if not isinstance(match, Match):
            return None
        begun = time.monotonic()
        error = self._refusal(match.route, method, headers, peer)
        if error is None:
            self._checks.places.expect(match.route)
            return None
        correlation_id = _correlation_id(headers)
        status = status_of(error)
        answer = self._answer(status, error, correlation_id, with_body=method != b"HEAD")
        log = self._logs.get(match.route.path) or self._log_of(match.route)
        if error is _BUSY:
            return self._later.hold(answer, partial(log.completed, method, plain[1], status, begun, correlation_id))
        if log.is_on:
            log.completed(method, plain[1], status, begun, correlation_id)
        return answer

    def flush(self) -> None:
        """Count and log what was refused lately: at the end nobody else does."""
        for log in self._logs.values():
            log.flush()

    def _refusal(self, route: Route, method: bytes, headers: Headers, peer: str) -> RefractError | None:
        """In the order of the application; where something cannot be told from here, what comes after it cannot."""
        if self._checks.places.are_spoken_for(route):
            return _BUSY
        if route.own_origin:
            return None
        if route.token != "none" and any(name in _PROOFS for name, _ in headers):  # noqa: S105  # a word of the table
            caller = self._caller(route, method, headers)
            return None if caller is None else self._refusal_to(caller, route, headers, peer)
        if route.token in _DEMANDING:
            return _STRANGER
        return self._refusal_to(NOBODY, route, headers, peer)

    def _caller(self, route: Route, method: bytes, headers: Headers) -> Caller | None:
        """Who calls, if it matters: where nothing is closed, the token would be looked at once more."""
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

    def _log_of(self, route: Route) -> RequestLog:
        log = self._logs[route.path] = RequestLog(WIRE_NAME, metrics=self._metrics, route=route.path)
        return log

    def _answer(self, status: int, error: RefractError, correlation_id: bytes, *, with_body: bool) -> bytes:
        body = error_body(error.message)
        head = b"HTTP/1.1 %d %b\r\ndate: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
            status,
            _PHRASES[status],
            self._date.now(),
            len(body),
        )
        more = b"".join(b"%b: %b\r\n" % field for field in fields_of(error))
        ours = b"x-correlation-id: %b\r\nx-content-type-options: nosniff\r\n\r\n" % correlation_id
        return b"".join((head, more, ours, body if with_body else b""))


class _Later:
    """Answers that wait a little. Who is told at once that there is no place asks again at once, and takes the time of
    those who have one."""

    def __init__(self) -> None:
        self._waiting: list[tuple[HeldAnswer, bytes, Callable[[], None]]] = []

    def hold(self, answer: bytes, completed: Callable[[], None]) -> HeldAnswer:
        """An answer for the next moment at which some leave."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(BUSY_PAUSE, self._release)
        held = HeldAnswer()
        self._waiting.append((held, answer, completed))
        return held

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for held, answer, completed in waiting:
            held.release(answer)
            completed()


class _Date:
    """The value of the Date field, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def now(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True).encode()
        return self._text


_BUSY = Busy()
_STRANGER = Unauthenticated()
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


def _correlation_id(headers: list[Header]) -> bytes:
    offered = next((value for name, value in headers if name == b"x-correlation-id"), None)
    return accept_correlation_id(None if offered is None else offered.decode("latin-1")).encode()
