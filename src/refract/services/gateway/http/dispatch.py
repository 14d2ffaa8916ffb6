"""The way of a request through the gateway: its row, its caller, its limit, and then to the service (M5's order)."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from refract.kernel.errors import Kind, NotFound, RefractError
from refract.kernel.ids import new_event_id
from refract.runtime.client_address import ClientAddresses
from refract.runtime.edge import Receive, Scope, Send
from refract.runtime.web import STATUSES
from refract.services.gateway.api import Match, Route, WrongMethod
from refract.services.gateway.domain.callers import NOBODY, Asked, Caller
from refract.services.gateway.domain.headers import Header, UnknownUpstream, forwarded_headers
from refract.services.gateway.http.counting import Counting
from refract.services.gateway.http.guarding import Guard
from refract.services.gateway.http.identifying import Callers, oddity
from refract.services.gateway.http.keys import Keys
from refract.services.gateway.http.lasting import Lasting
from refract.services.gateway.http.places import Place, Places
from refract.services.gateway.http.refusing import fields_of, refuse, status_of
from refract.services.gateway.http.rows import find_row

logger = logging.getLogger("refract.gateway")


@dataclass(frozen=True, slots=True)
class Checks:
    """What stands between a row and its target, in the order in which it is asked."""

    places: Places
    callers: Callers
    keys: Keys
    counting: Counting
    guard: Guard


class Dispatch:
    """Answers a request by the row it has in the table, or says that it has none."""

    def __init__(self, checks: Checks, addresses: ClientAddresses) -> None:
        self._checks = checks
        self._addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        found = find_row(scope["method"], scope["raw_path"].decode("latin-1"))
        if found is None:
            await refuse(send, STATUSES[Kind.NOT_FOUND], NotFound.message)
        elif isinstance(found, WrongMethod):
            allow = (b"allow", ", ".join(found.allow).encode())
            await refuse(send, STATUSES[Kind.NOT_ALLOWED], "method not allowed", [allow])
        else:
            scope["path_template"] = found.route.path
            asked = self._read(scope)
            try:
                await self._serve(found, scope, asked, receive, send)
            except RefractError as error:
                await refuse_with(scope, asked, error, send)

    async def _serve(self, match: Match, scope: Scope, asked: Asked, receive: Receive, send: Send) -> None:
        route, checks = match.route, self._checks
        place = Place(checks.places, route)
        place.look_for()
        caller = checks.callers.identify(route, scope["method"], asked)
        if caller is None:
            # Who waits for identity takes no place of the target.
            caller = await checks.keys.identify(route, asked, scope["state"]["client_address"])
        if not asked.has_body:
            place.take()
        try:
            fields = await checks.counting.count(route, caller, scope["state"]["client_address"])
            send = adding(fields, send)
            try:
                receiving = await place.begun(receive) if asked.has_body else receive
                if receiving is not None and route.streams and caller is not NOBODY:
                    lasting = Lasting(receiving, send, partial(self._may_go_on, route, scope, asked))
                    receiving, send = lasting.receive, lasting.send
                if receiving is not None:
                    await checks.guard.forward(route, inner_scope(scope, match, asked, caller), receiving, send)
            except RefractError as error:
                await refuse_with(scope, asked, error, send)  # here, because this was counted, too
        finally:
            place.leave()

    async def _may_go_on(self, route: Route, scope: Scope, asked: Asked) -> bool:
        """Whether whoever began to read an answer would still be let in."""
        checks = self._checks
        try:
            if checks.callers.identify(route, scope["method"], asked) is None:
                await checks.keys.check(route, asked, scope["state"]["client_address"])
        except RefractError as error:
            return error.kind not in {Kind.UNAUTHENTICATED, Kind.FORBIDDEN}  # that nobody can tell now ends nothing
        return True

    def _read(self, scope: Scope) -> Asked:
        asked = Asked.of(scope["headers"], scope["scheme"])
        client = scope.get("client")
        if asked.says_how_it_came and client is not None and self._addresses.trusts(client[0]):
            asked.believe()
        return asked


async def refuse_with(scope: Scope, asked: Asked, error: RefractError, send: Send) -> None:
    """Send what an error of ours has to say, and log what is odd about it."""
    where = {"method": scope["method"], "path": scope["path"]}
    if reason := oddity(error):
        logger.warning("token refused: %s", reason, extra=where)
    elif isinstance(error, UnknownUpstream):
        logger.error("unknown upstream", extra=where)
    await refuse(send, status_of(error), error.message, fields_of(error, asked))


def adding(fields: Sequence[Header], send: Send) -> Send:
    """Send answers with these fields in addition; what a service says of a limit of its own stands."""
    if not fields:
        return send

    async def send_more(message: Any) -> None:
        if message["type"] == "http.response.start":
            said = [*message.get("headers", ())]
            names = {name for name, _ in said}
            message["headers"] = said + [field for field in fields if field[0] not in names]
        await send(message)

    return send_more


def inner_scope(scope: Scope, match: Match, asked: Asked, caller: Caller) -> Scope:
    """The request as the service sees it: nothing of what our own layers noted in the scope goes along."""
    state = scope["state"]
    address = state["client_address"]
    return {
        "type": "http",
        "asgi": scope["asgi"],
        "http_version": scope["http_version"],
        "method": scope["method"],
        "scheme": scope["scheme"],
        "path": unquote(match.path) if "%" in match.path else match.path,
        "raw_path": match.path.encode(),
        "query_string": scope["query_string"],
        "root_path": "",
        "headers": forwarded_headers(
            scope["headers"],
            correlation_id=state["correlation_id"],
            client=address,
            scheme=asked.scheme,
            host=asked.host,
            caller=caller,
            click_id=new_event_id() if match.route.makes_clicks else "",
        ),
        "client": (address, 0) if address else None,
        "server": scope.get("server"),
        "state": {},
        "extensions": scope.get("extensions", {}),
    }
