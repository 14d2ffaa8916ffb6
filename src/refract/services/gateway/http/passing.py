"""Plain requests on their way to a service and back without a task: checked, sent out and answered in callbacks.

All that the application promises holds here, too. Whatever is not a whole answer, at once, is handed over to the
application, which goes on where this has come to: there is one way to stream, to fail and to try again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from refract.kernel.errors import RefractError
from refract.kernel.ids import new_correlation_id, new_event_id
from refract.runtime.correlation import correlated
from refract.runtime.edge import Receive, Scope, Send, answer
from refract.runtime.exchange import ended_with, error_body
from refract.runtime.fast_path import PassedOn
from refract.runtime.heads import LAST_FIELD, STATUS_LINES, Dates
from refract.runtime.request_log import RequestLog
from refract.runtime.telemetry import serving
from refract.services.gateway.api import WIRE_NAME, Route
from refract.services.gateway.domain.callers import NOBODY, Caller
from refract.services.gateway.domain.headers import Header, caller_fields, lines_of, token_fields
from refract.services.gateway.http.dispatch import Checks, adding, inner_scope, refuse_with
from refract.services.gateway.http.guarding import Circuit, Result
from refract.services.gateway.http.guests import Guest
from refract.services.gateway.http.rows import PlainRow
from refract.services.gateway.http.writing import NO_SNIFFING, OURS, chunk, passed_head
from refract.services.gateway.ports import Errand

logger = logging.getLogger("refract.gateway")

_READING = frozenset({b"GET", b"HEAD"})
_OUT_OF_PATIENCE = 503


class Passing(PassedOn, kw_only=True, eq=False):
    """One request on its way. It has a place, and from when it is sent out a ticket of the target's breaker."""

    carrier: "Carrier"
    row: PlainRow
    guest: Guest
    caller: Caller
    correlation_id: bytes
    begun: float
    fields: Sequence[Header] = ()
    circuit: Circuit | None = None
    ticket: int = 0
    errand: Errand | None = None
    trouble: Exception | None = None

    def heard(self) -> None:
        """Something has happened to the errand."""
        self.carrier.heard(self)


class Carrier:
    """Takes plain requests to services, and their answers back."""

    def __init__(self, checks: Checks, log_of: Callable[[Route], RequestLog]) -> None:
        self._checks = checks
        self._log_of = log_of
        self._dates = Dates()
        self._counting: set[asyncio.Task[None]] = set()

    def take(self, method: bytes, target: bytes, row: PlainRow, guest: Guest) -> Passing | None:
        """Begin to pass a request on, for which there is a place; None where the application has to."""
        route, checks = row.route, self._checks
        if method not in _READING or route.streams or not checks.guard.is_closed(route):
            return None
        caller = checks.callers.recognize(route, guest.offer)
        if caller is None:
            return None
        is_counted = checks.counting.policy(route, caller) is not None
        if is_counted and checks.counting.refusal(route, guest.address) is not None:
            return None
        passing = Passing(
            method=method,
            target=target,
            headers=guest.headers,
            carrier=self,
            row=row,
            guest=guest,
            caller=caller,
            correlation_id=guest.correlation_id or new_correlation_id().encode(),
            begun=time.monotonic(),
        )
        if not is_counted:
            return passing if self._send_out(passing) else None
        task = asyncio.get_running_loop().create_task(self._count(passing))
        self._counting.add(task)
        task.add_done_callback(self._counting.discard)
        return passing

    def heard(self, passing: Passing) -> None:
        """Answer, if the answer is here and can be passed on as it is; or leave it to the application."""
        errand = passing.errand
        if errand is None or not (errand.status or errand.error):
            return
        if passing.application is not None:
            return  # it is the application's, which has not begun yet
        try:
            if passing.ended_with:
                self._give_up(passing)
            elif not errand.whole or errand.error or passing.closes or not self._answer(passing, errand):
                self._hand_over(passing)
        except Exception:
            correlation_id = passing.correlation_id.decode("ascii")
            logger.exception("passing on failed", extra={"correlation_id": correlation_id})
            self._hand_over(passing)

    async def _count(self, passing: Passing) -> None:
        """Go on with a request once it is counted."""
        try:
            passing.fields = await self._checks.counting.count(passing.row.route, passing.caller, passing.guest.address)
            if not self._send_out(passing):
                self._hand_over(passing)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is said where everything is said
            passing.trouble = error
            self._hand_over(passing)

    def _send_out(self, passing: Passing) -> bool:
        """Ask the service; False where nothing was sent."""
        row, guest, caller, guard = passing.row, passing.guest, passing.caller, self._checks.guard
        if not guard.is_closed(row.route) or passing.ended_with:
            return False
        ids = b"x-correlation-id: %b\r\n" % passing.correlation_id
        if row.route.makes_clicks:
            ids = b"%bx-click-id: %b\r\n" % (ids, new_event_id().encode())
        if caller is NOBODY:
            lines = b"".join((guest.own, ids, guest.way))
        else:
            who, token = lines_of(caller_fields(caller)), lines_of(token_fields(caller))
            lines = b"".join((guest.own, token, ids, guest.way, who))
        passing.errand = guard.send_out(row.route, passing.method, row.target, lines, passing)
        if passing.errand is None:
            return False
        passing.circuit = guard.circuit(row.route)
        if passing.circuit is not None:
            passing.ticket = passing.circuit.enter()
        return True

    def _answer(self, passing: Passing, errand: Errand) -> bool:
        """Let the whole answer of a service that is well go as it is; False where it needs a closer look."""
        status = errand.status
        if status >= 500:
            return False  # a warning is due, which belongs to the request
        more = b"%bx-correlation-id: %b%b" % (
            b"".join([b"%b: %b\r\n" % field for field in passing.fields]),
            passing.correlation_id,
            LAST_FIELD,
        )
        head = passed_head(status, errand.headers, has_body=passing.method != b"HEAD", more=more)
        if head is None:
            return False
        body = errand.take()
        if head[1]:
            body = chunk(body)
        self._settle(passing, status, "success")
        passing.release(b"".join((STATUS_LINES[status], self._dates.line(), head[0], body)))
        return True

    def _give_up(self, passing: Passing) -> None:
        """Nobody waits any more: end what is under way, and judge it as it would be judged there."""
        errand = passing.errand
        result: Result = "undecided"
        if errand is not None:
            if errand.whole:
                result = "success" if errand.status < 500 else "failure"
            elif passing.ended_with == _OUT_OF_PATIENCE:
                result = "failure"
            errand.give_up()
        self._settle(passing, passing.ended_with, result)

    def _settle(self, passing: Passing, status: int, result: Result) -> None:
        """It is over."""
        if passing.circuit is not None:
            passing.circuit.settle(passing.ticket, result)
        self._leave(passing, status)

    def _leave(self, passing: Passing, status: int) -> None:
        route = passing.row.route
        self._checks.places.give_back(route)
        log = self._log_of(route)
        if log.is_on:
            log.completed(passing.method, passing.row.path, status, passing.begun, passing.correlation_id)

    def _hand_over(self, passing: Passing) -> None:
        """Let the application go on with it, if anybody still waits."""
        if passing.ended_with:
            self._give_up(passing)
        else:
            passing.hand_over(partial(self._finish, passing))

    async def _finish(self, passing: Passing, scope: Scope, receive: Receive, send: Send) -> None:
        """The rest of a request, as an application: all that the edge does for one that began there."""
        status = 0
        correlation_id = passing.correlation_id.decode("ascii")
        scope["state"] |= {"correlation_id": correlation_id, "client_address": passing.guest.address}

        async def send_marked(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = ended_with(scope) or message["status"]
                kept = [field for field in message.get("headers", ()) if field[0] not in OURS]
                message["headers"] = [*kept, (b"x-correlation-id", passing.correlation_id), NO_SNIFFING]
            await send(message)

        with correlated(correlation_id), serving(WIRE_NAME):
            try:
                await self._go_on(passing, scope, receive, send_marked)
            except Exception:
                if status:
                    raise  # half an answer has left: only the server can still do something, which is to cut it
                logger.exception("request failed", extra={"method": scope["method"], "path": scope["path"]})
                await answer(send_marked, 500, error_body("internal server error"))
            finally:
                self._leave(passing, status or ended_with(scope) or 500)

    async def _go_on(self, passing: Passing, scope: Scope, receive: Receive, send: Send) -> None:
        match, asked, guard = passing.row.match, passing.guest.asked, self._checks.guard
        send = adding(passing.fields, send)
        try:
            if passing.trouble is not None:
                raise passing.trouble
            inner = inner_scope(scope, match, asked, passing.caller)
            if passing.errand is None:
                await guard.forward(match.route, inner, receive, send)
            else:
                await guard.finish(match.route, passing.ticket, passing.errand, inner, receive, send)
        except RefractError as error:
            await refuse_with(scope, asked, error, send)
