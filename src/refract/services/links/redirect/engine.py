"""The redirect itself, the same for both paths: which answer a code has now, and which click a visit makes."""

import logging
from collections.abc import Mapping
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.kernel.ids import new_event_id
from refract.services.links.domain.link import REDIRECT_STATUSES, Status
from refract.services.links.redirect.answers import (
    MAX_AGE,
    Answer,
    accepts_pages,
    redirect_fields,
    refusal,
    status_line,
    unavailable,
    unkept,
)
from refract.services.links.redirect.clicks import ClickWriter
from refract.services.links.redirect.lookup import LONGEST_CODE, Found, Lookup
from refract.services.links.redirect.memory import FRESH_SECONDS, Memory
from refract.services.links.redirect.records import LinkRecord
from refract.services.links.redirect.renewing import Renewals
from refract.services.links.redirect.visitors import Visitor, Visitors
from refract.services.links.redirect.visits import (
    OPENING,
    ClientWords,
    Moment,
    click_id,
    is_prefetch,
    owner_part,
    query_part,
)
from refract.services.links.settings import Durability

log = logging.getLogger(__name__)

LINKS_IN_MEMORY = 120_000
"""Some 600 bytes each in all, where a destination has a hundred."""

BYTES_IN_MEMORY = 48_000_000
"""Of codes, answers and owners. Usual links have 250 each, so that their number is what ends them; but a `Location` may
have 8,000, and 120,000 of those would be a gigabyte in a process that is to stay under 250 MB."""

SAME_ANSWER = MAX_AGE + FRESH_SECONDS
"""Seconds: a link that expires sooner has another `max-age` in every answer, and is not kept as bytes."""


_LONGEST = b"\r\ncache-control: private, max-age=%d\r\n" % MAX_AGE
_ACTIVE = Status.ACTIVE.value
_FIRST_LINES = {status: status_line(status) for status in REDIRECT_STATUSES}


class Prepared(Struct, gc=False, frozen=True):
    """An active link: its answer as bytes, what its clicks say of it, and how long both may be used.

    `code` is the very key under which it is remembered: whoever has found it has that at hand. The garbage collector
    need not look at it: there are a hundred thousand, and none leads back to itself.
    """

    status: int
    first_line: bytes
    fields: bytes
    code: bytes
    owner: bytes
    order: int
    renew_at: float
    fresh_until: float
    stale_until: float

    @classmethod
    def of(
        cls, code: bytes, record: LinkRecord, seconds_left: float | None, lifetimes: tuple[float, float, float]
    ) -> Self:
        """The link with its answer."""
        status, fields = record.redirect_status, redirect_fields(record, seconds_left)
        owner = owner_part(record.user_id, record.user_email)
        return cls(status, _FIRST_LINES[status], fields, code, owner, record.order, *lifetimes)

    @property
    def size(self) -> int:
        """Bytes of what was made for it. An owner's part may be shared with other links, and counts as if it were not:
        it need not be, where there are many owners."""
        return len(self.code) + len(self.fields) + len(self.owner)

    def renewed(self, lifetimes: tuple[float, float, float]) -> Self:
        """The same for longer."""
        return type(self)(self.status, self.first_line, self.fields, self.code, self.owner, self.order, *lifetimes)

    def aged(self, now: float) -> Self:
        """The same for when it is past its freshness: what ends soon may not be kept beyond its end."""
        left = self.stale_until - now
        if left >= MAX_AGE:
            return self
        return replace(self, fields=self.fields.replace(_LONGEST, b"\r\ncache-control: private, max-age=%d\r\n" % left))

    def uncounted(self, method: bytes) -> Self:
        """The same for a request that is no click. What a browser has fetched ahead it would follow by itself once
        somebody clicks, and nobody would hear of that; a HEAD is told what a click would be."""
        return self if method == b"HEAD" else replace(self, fields=unkept(self.fields))

    def answer(self) -> Answer:
        """The same as a value, for the slow path."""
        lines = self.fields.split(b"\r\n")[:-1]
        return Answer(self.status, tuple((name, value) for name, _, value in (line.partition(b": ") for line in lines)))


class Redirects:
    """Finds links, answers for them and records their clicks."""

    def __init__(
        self,
        lookup: Lookup,
        memory: Memory[Prepared],
        clicks: ClickWriter,
        visitors: Visitors,
        clock: Clock,
        durability: Durability,
    ) -> None:
        self.lookup = lookup
        self.memory = memory
        self.clicks = clicks
        self.visitors = visitors
        self.clock = clock
        self.waits = durability == "commit"
        self._renewals = Renewals(lookup, memory, self._renewed)
        self._words = ClientWords()
        self.moment = Moment(clock.milliseconds)

    async def answer(
        self, method: bytes, code: str, fields: Mapping[bytes, bytes], query: bytes, *, client: str, correlation_id: str
    ) -> Answer:
        """The answer to a request, once its click is safe: the slow twin of the fast path."""
        ticket = self.memory.ticket
        try:
            found: Found = await self.lookup.find(code)
        except Unavailable as error:
            found = error
        decided = self.decide(code, found, fields, ticket)
        if isinstance(decided, Answer):
            return decided
        if not counts(method, fields):
            return decided.uncounted(method).answer()
        self.moment.look()
        visit = self.visit_part(fields, query, self.visitors.of(client))
        click, _ = self.click(decided, visit, correlation_id.encode(), click_id(fields))
        if self.waits:
            await self.clicks.recorded(click)
        else:
            self.clicks.record_later(click)
        return decided.answer()

    def decide(self, code: str, found: Found, fields: Mapping[bytes, bytes], ticket: int) -> Prepared | Answer:
        """What a look-up came to: a link to follow, which is remembered, or the answer that there is none."""
        name = code.encode()
        if isinstance(found, Unavailable):
            stale = self.memory.stale(name)
            if stale is None:
                log.warning("a link cannot be looked up: %s", found)
                return unavailable(wants_page=_wants_page(fields))
            return stale.aged(self.clock.monotonic())
        now = self.clock.now()
        if found is None:
            if len(name) <= LONGEST_CODE:  # of what is longer, ten thousand are a lot of memory
                self.memory.keep_absent(name, ticket)
        elif found.effective_status(now) is Status.ACTIVE:
            return self._prepare(name, found, found.seconds_left(now), ticket)
        else:
            self.memory.forget(name)  # or it could be followed again while the database is away
        return refusal(found, now, wants_page=_wants_page(fields))

    def renew(self, link: Prepared) -> None:
        """Ask for a link again that is in use and will soon be too old; until the answer comes it is used as it is."""
        self._renewals.soon(link.code, link)

    def _renewed(self, code: bytes, link: Prepared, ticket: int, found: Found) -> None:
        if isinstance(found, Unavailable):
            return  # whoever comes when its time is over will be told
        if found is not None and found.order == link.order and found.expires_at is None and found.status == _ACTIVE:
            self.memory.keep(code, link.renewed(self.memory.lifetimes(None)), ticket)
        else:
            self.decide(code.decode("ascii"), found, {}, ticket)

    def absent(self, fields: Mapping[bytes, bytes]) -> Answer:
        """The answer that there is no such code."""
        return refusal(None, self.clock.now(), wants_page=_wants_page(fields))

    def _prepare(self, code: bytes, record: LinkRecord, left: float | None, ticket: int) -> Prepared:
        """The answer as bytes, kept for the next who asks unless it would be another one by then."""
        prepared = Prepared.of(code, record, left, self.memory.lifetimes(left))
        if left is None or left >= SAME_ANSWER:
            self.memory.keep(code, prepared, ticket)
        else:
            known = self.memory.stale(code)
            if known is not None and known.order != record.order:
                self.memory.forget(code)  # it may say another end, or none, and outlive the link
        return prepared

    def visit_part(self, fields: Mapping[bytes, bytes], query: bytes, visitor: Visitor) -> bytes:
        """What a click says of whoever made it."""
        words = self._words.of(fields)
        return b"%b,%b%b" % (visitor.fragment, words, query_part(query) if query else b"")

    def click(
        self, link: Prepared, visit: bytes, correlation_id: bytes | None, event_id: bytes | None = None
    ) -> tuple[bytes, bytes]:
        """The event as JSON, at `moment`, and its correlation id: the event's own where the caller has none."""
        if event_id is None:
            event_id = new_event_id().encode()
        if correlation_id is None:
            correlation_id = event_id
        return b'%b%b%b%b%b%b","correlation_id":"%b"}' % (
            OPENING,
            link.code,
            link.owner,
            visit,
            self.moment.part,
            event_id,
            correlation_id,
        ), correlation_id


def counts(method: bytes, fields: Mapping[bytes, bytes]) -> bool:
    """Whether a request is a click: a GET that somebody made, and no browser by itself."""
    return method == b"GET" and not is_prefetch(fields)


def _wants_page(fields: Mapping[bytes, bytes]) -> bool:
    return accepts_pages(fields.get(b"accept", b""))
