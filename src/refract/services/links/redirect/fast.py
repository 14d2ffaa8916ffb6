"""The fast path: a code is answered inside the parser's callback, from bytes, once its click is safe."""

import logging
import re
from collections import OrderedDict
from functools import partial
from time import monotonic
from typing import cast

from refract.kernel.ids import new_correlation_id
from refract.runtime.client_address import ClientAddresses
from refract.runtime.correlation import accept_correlation_id
from refract.runtime.fast_path import Admission, FastPath, Headers, HeldAnswer
from refract.runtime.request_log import RequestLog
from refract.services.links.domain.codes import is_reserved
from refract.services.links.redirect.answers import Answer, failed, limited, status_line
from refract.services.links.redirect.engine import Prepared, Redirects, counts
from refract.services.links.redirect.gathering import Gathering, Guest, Visit
from refract.services.links.redirect.lookup import Found
from refract.services.links.redirect.visitors import Visitor
from refract.services.links.redirect.visits import CLICK_ID, click_id, is_prefetch

log = logging.getLogger(__name__)

_CODE = re.compile(rb"[A-Za-z0-9-]{1,50}\Z")
_VISITORS = 65_536
_LONGEST_REMEMBERED = 256
_LIMITED = limited()
_NAMING_NOTHING = frozenset({b"keep-alive", b"close"})


class HeldRedirect(HeldAnswer, kw_only=True, eq=False, gc=False):
    """An answer that waits for its click to be safe, or for its link to be found; released, it is logged."""

    log: RequestLog
    method: bytes
    path: bytes
    begun: float
    status: int = 0
    correlation_id: bytes = b""

    def release(self, payload: bytes) -> None:
        """Let the answer go."""
        HeldAnswer.release(self, payload)
        if self.log.is_on:
            self.log.completed(self.method, self.path, self.status, self.begun, self.correlation_id)


class FastRedirect(FastPath):
    """Answers short links at the door of a server: of links' own, or of the gateway in the same process.

    At the gateway a link has two addresses, and requests are counted: `admission` says how. Whatever is out of the
    ordinary goes to the application, which gives the same answers.
    """

    def __init__(
        self,
        redirects: Redirects,
        log: RequestLog,
        addresses: ClientAddresses,
        *,
        at_gateway: bool = False,
        admission: Admission | None = None,
    ) -> None:
        self._redirects = redirects
        self._log = log
        self._addresses = addresses
        self._at_gateway = at_gateway
        self._admission = admission
        self._entries = redirects.memory.entries
        self._moment = redirects.moment
        self._visitors: OrderedDict[str | tuple[str, bytes], Visitor] = OrderedDict()
        self._gathering = Gathering(redirects, log, admission)

    def at_gateway(self, admission: Admission | None) -> "FastRedirect":
        """The same at the door of the gateway."""
        return FastRedirect(self._redirects, self._log, self._addresses, at_gateway=True, admission=admission)

    def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> bytes | HeldAnswer | None:
        """Answer a request for a code; None lets the application do it."""
        if method != b"GET" and method != b"HEAD":  # noqa: PLR1714  # cheaper than a set
            return None
        fields = dict(headers)
        if len(fields) != len(headers) or not target.startswith(b"/") or self._takes_away(fields):
            return None  # a field that came twice is for somebody with more time
        if CLICK_ID in fields and (self._at_gateway or not self._addresses.trusts(peer)):
            del fields[CLICK_ID]
        path, query, code = target, b"", target[1:]
        link = self._entries.get(code)
        if link is None:
            found = self._parse(target)
            if found is None:
                return None
            path, query, code = found
            link = self._entries.get(code)
        visitor = self._visitors.get(peer) if b"x-forwarded-for" not in fields else None
        if visitor is None:
            visitor = self._meet(peer, fields)
        begun = monotonic()
        held = HeldRedirect(log=self._log, method=method, path=path, begun=begun)
        limits = b""
        if self._admission is not None:
            admitted, limits = self._admission(visitor.counted)
            if not admitted:
                self._fail(held, _LIMITED, fields, limits)
                return held
        if link is not None and (begun < link.renew_at or self._is_fresh(link, begun)):
            self._answer(held, link, fields, query, visitor, limits)
        else:
            self._look_up(held, code, (fields, query, visitor, limits))
        return held

    def remember(self, headers: Headers, peer: str) -> object | None:
        """Who asks, and what a click of theirs says; not where a field differs from one request to the next."""
        fields = dict(headers)
        if len(fields) != len(headers) or b"x-correlation-id" in fields or is_prefetch(fields):
            return None
        if CLICK_ID in fields:
            return None  # it is for one request
        if self._takes_away(fields):
            return None
        visitor = self._meet(peer, fields)
        return Guest(visitor, self._redirects.visit_part(fields, b"", visitor), fields.get(b"accept", b""))

    def answer_again(self, target: bytes, remembered: object) -> HeldAnswer | None:
        """Answer a GET whose header fields are known, if its target can be nothing but a code."""
        code = target[1:]
        link = self._entries.get(code)
        begun = monotonic()
        if not target.startswith(b"/"):
            return None
        guest = cast("Guest", remembered)  # what `remember` made
        if link is not None and (begun < link.renew_at or self._is_fresh(link, begun)):
            return self._gathering.add(target, link, guest, begun)
        if _CODE.match(code) is None or is_reserved(code.decode("ascii")):
            return None
        return self._look_up_again(target, code, guest, begun)

    def _is_fresh(self, link: Prepared, now: float) -> bool:
        """Whether a link that is due for renewal can still be used; it is renewed meanwhile."""
        if now >= link.fresh_until:
            return False
        self._redirects.renew(link)
        return True

    def _look_up_again(self, target: bytes, code: bytes, guest: Guest, begun: float) -> HeldAnswer:
        memory = self._redirects.memory
        if self._admission is None and not memory.is_absent(code):
            # Nobody is to be counted before the look-up, so that it is answered together with all the others.
            visit = Visit(None, False, None, target, None, guest, begun)  # noqa: FBT003  # see `Gathering.add`
            name = code.decode("ascii")
            self._redirects.lookup.soon(name, partial(self._found_for, visit, name, guest, memory.ticket))
            return visit
        held = HeldRedirect(log=self._log, method=b"GET", path=target, begun=begun)
        fields = {b"accept": guest.accept}
        limits = b""
        if self._admission is not None:
            admitted, limits = self._admission(guest.visitor.counted)
            if not admitted:
                self._fail(held, _LIMITED, fields, limits)
                return held
        self._look_up(held, code, (fields, b"", guest.visitor, limits), guest.words)
        return held

    def _parse(self, target: bytes) -> tuple[bytes, bytes, bytes] | None:
        """The path, the query and the code, where it can be one."""
        path, _, query = target.partition(b"?")
        code = path[3:] if self._at_gateway and path.startswith(b"/r/") else path[1:]
        if _CODE.match(code) is None or is_reserved(code.decode("ascii")) or b"#" in query:
            return None
        return path, query, code

    def _takes_away(self, fields: dict[bytes, bytes]) -> bool:
        """Whether `Connection` names fields, which the gateway would not pass on."""
        if not self._at_gateway or b"connection" not in fields:
            return False
        return fields[b"connection"].lower() not in _NAMING_NOTHING

    def _answer(
        self,
        held: HeldRedirect,
        link: Prepared,
        fields: dict[bytes, bytes],
        query: bytes,
        visitor: Visitor,
        limits: bytes,
    ) -> None:
        redirects = self._redirects
        self._moment.look()
        correlation_id = None if b"x-correlation-id" not in fields else _correlation_id(fields)
        click = None
        if counts(held.method, fields):
            visit = redirects.visit_part(fields, query, visitor)
            click, correlation_id = redirects.click(link, visit, correlation_id, click_id(fields))
        else:
            link = link.uncounted(held.method)
            if correlation_id is None:
                correlation_id = new_correlation_id().encode()
        self._send(held, link, click, correlation_id, limits)

    def _send(
        self, held: HeldRedirect, link: Prepared, click: bytes | None, correlation_id: bytes, limits: bytes
    ) -> None:
        """Let the answer leave: once its click is safe, where it has one."""
        redirects = self._redirects
        payload = b"%b%b%b%bx-correlation-id: %b\r\nx-content-type-options: nosniff\r\n\r\n" % (
            link.first_line,
            self._moment.date,
            link.fields,
            limits,
            correlation_id,
        )
        held.status = link.status
        held.correlation_id = correlation_id
        if click is None:
            held.release(payload)
        elif redirects.waits:
            redirects.clicks.record(click, held, payload)
        else:
            redirects.clicks.record_later(click)
            held.release(payload)

    def _look_up(self, held: HeldRedirect, code: bytes, asked: "Asked", words: bytes | None = None) -> None:
        """Find the link; `words` are what a click of this visitor says, where that is known."""
        memory = self._redirects.memory
        name = code.decode("ascii")
        if memory.is_absent(code):
            # Not by way of `_found`, which would remember it anew: a code that is asked for all the time would never
            # come to be.
            fields, _, _, limits = asked
            self._fail(held, self._redirects.absent(fields), fields, limits)
        else:
            self._redirects.lookup.soon(name, partial(self._found, held, name, asked, words, memory.ticket))

    def _found(
        self, held: HeldRedirect, code: str, asked: "Asked", words: bytes | None, ticket: int, found: Found
    ) -> None:
        """Go on with what the look-up came to."""
        redirects = self._redirects
        fields, query, visitor, limits = asked
        try:
            decided = redirects.decide(code, found, fields, ticket)
            if isinstance(decided, Prepared):
                if words is None:
                    self._answer(held, decided, fields, query, visitor, limits)
                else:
                    self._moment.look()
                    self._send(held, decided, *redirects.click(decided, words, None), limits)
                return
        except Exception:
            log.exception("a redirect failed")
            decided = failed(wants_page=False)
        self._fail(held, decided, fields, limits)

    def _found_for(self, visit: Visit, code: str, guest: Guest, ticket: int, found: Found) -> None:
        """The same for somebody who is answered together with others."""
        try:
            decided = self._redirects.decide(code, found, {b"accept": guest.accept}, ticket)
        except Exception:
            log.exception("a redirect failed")
            decided = failed(wants_page=False)
        if isinstance(decided, Prepared):
            self._gathering.join(visit, decided)
        else:
            self._moment.look()
            self._gathering.refuse(visit, decided, b"")

    def _fail(self, held: HeldRedirect, answer: Answer, fields: dict[bytes, bytes], limits: bytes) -> None:
        """Answer without a click."""
        self._moment.look()
        held.status = answer.status
        held.correlation_id = _correlation_id(fields)
        head = b"%b%b%b%bx-correlation-id: %b\r\nx-content-type-options: nosniff\r\n\r\n" % (
            status_line(answer.status),
            self._moment.date,
            answer.fields(),
            limits,
            held.correlation_id,
        )
        held.release(head if held.method == b"HEAD" else head + answer.body)

    def _meet(self, peer: str, fields: dict[bytes, bytes]) -> Visitor:
        """Find out who stands behind a connection, and remember it."""
        forwarded = fields.get(b"x-forwarded-for")
        if forwarded is not None:
            visitor = self._visitors.get((peer, forwarded))
            if visitor is not None:
                return visitor  # under both words, only those are known whom a proxy of ours brought
            if not self._addresses.trusts(peer):
                forwarded = None
        key = peer if forwarded is None else (peer, forwarded)
        visitor = self._visitors.get(key)
        if visitor is None:
            address = self._addresses.find(peer, () if forwarded is None else (forwarded,))
            visitor = self._redirects.visitors.of(address)
            if forwarded is None or len(forwarded) <= _LONGEST_REMEMBERED:
                if len(self._visitors) >= _VISITORS:
                    self._visitors.popitem(last=False)
                self._visitors[key] = visitor
        return visitor


Asked = tuple[dict[bytes, bytes], bytes, Visitor, bytes]
"""Header fields, query, visitor, and what is to be said of the limit."""


def _correlation_id(fields: dict[bytes, bytes]) -> bytes:
    offered = fields.get(b"x-correlation-id")
    return accept_correlation_id(None if offered is None else offered.decode("latin-1")).encode()
