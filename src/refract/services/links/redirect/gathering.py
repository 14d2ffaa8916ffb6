"""Visits that are answered together: one look at the clock, the limits and the log for many, and few words for each."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from refract.kernel.ids import new_event_ids
from refract.runtime.fast_path import Admission, HeldAnswer
from refract.runtime.request_log import RequestLog
from refract.services.links.redirect.answers import Answer, failed, limited, status_line
from refract.services.links.redirect.engine import Prepared, Redirects
from refract.services.links.redirect.visitors import Visitor
from refract.services.links.redirect.visits import OPENING

log = logging.getLogger(__name__)

_LIMITED = limited()
_FAILED = failed(wants_page=False)
_CORRELATED = b"x-correlation-id: "
_LAST_FIELDS = b"\r\nx-content-type-options: nosniff\r\n\r\n"
_AND_CORRELATED = b'","correlation_id":"'


class Guest(Struct, frozen=True, gc=False):
    """What the words of a connection come to: who is behind it, what a click of theirs says, what they accept."""

    visitor: Visitor
    words: bytes
    accept: bytes


class Visit(HeldAnswer, eq=False, gc=False):
    """Somebody who asks for a link over a connection whose words are known, and waits for the answer; the link is known
    when it joins the others."""

    path: bytes = b""
    link: Prepared | None = None
    guest: Guest | None = None
    begun: float = 0.0
    status: int = 0
    correlation_id: bytes = b""
    remaining: int = -1
    """How many more are admitted after this one; below 0 where nobody counts."""


class Gathering:
    """Visits since the last time they were answered: before a flush of clicks or, where nobody waits for that, at once.

    Nothing about an answer depends on when in these few milliseconds it is made, and to make many at once costs less
    than half.
    """

    def __init__(self, redirects: Redirects, log: RequestLog, admission: Admission | None) -> None:
        self._redirects = redirects
        self._log = log
        self._admission = admission
        self._visits: list[Visit] = []
        self._clicks = redirects.clicks
        if redirects.waits:
            self._clicks.draw_from(self)

    def __len__(self) -> int:
        return len(self._visits)

    def add(self, path: bytes, link: Prepared, guest: Guest, begun: float) -> Visit:
        """One more."""
        visit = Visit(None, False, None, path, link, guest, begun)  # noqa: FBT003  # by name it takes twice as long
        self._visits.append(visit)
        if len(self._visits) == 1 or self._clicks.gathers:
            self._begin()
        return visit

    def join(self, visit: Visit, link: Prepared) -> None:
        """One more, whose link had to be looked up."""
        visit.link = link
        self._visits.append(visit)
        if len(self._visits) == 1 or self._clicks.gathers:
            self._begin()

    def _begin(self) -> None:
        """The first since the last time, or one that is waited for: see to it that there is a next time."""
        if self._redirects.waits:
            self._clicks.wake()
        else:
            asyncio.get_running_loop().call_soon(self._answer_now)

    def take(self) -> "Clicked | None":
        """Their clicks; those over a limit are refused now."""
        visits, self._visits = self._visits, []
        if not visits:
            return None
        self._redirects.moment.look()  # before anybody is refused, who is told the date, too
        try:
            if self._admission is not None:
                visits = self._admitted(self._admission, visits)
            return Clicked(self._clicks_of(visits), visits, self)
        except Exception:
            log.exception("redirects failed")
            for visit in visits:
                self.refuse(visit, _FAILED, b"")
            return None

    def answer(self, visits: list[Visit]) -> None:
        """Let the answers go. They are made one by one, each where the last one was in memory."""
        self._redirects.moment.look()
        date, fields = self._redirects.moment.date, None if self._admission is None else self._admission.fields
        for visit in visits:
            link = visit.link
            assert link is not None, "whoever gathers knows the link"
            said = b"" if fields is None or visit.remaining < 0 else fields(visit.remaining)
            try:
                visit.release(
                    b"".join(
                        (link.first_line, date, link.fields, said, _CORRELATED, visit.correlation_id, _LAST_FIELDS)
                    )
                )
            except Exception:
                log.exception("an answer could not be released")
        self._note(visits)

    def _answer_now(self) -> None:
        clicked = self.take()
        if clicked is not None:
            self._clicks.record_later(*clicked.clicks)
            clicked.release()

    def _clicks_of(self, visits: list[Visit]) -> list[bytes]:
        moment, clicks = self._redirects.moment.part, []
        for visit, event_id in zip(visits, new_event_ids(len(visits)), strict=True):
            link, guest = visit.link, visit.guest
            assert link is not None, "whoever gathers knows the link"
            assert guest is not None, "and the visitor"
            visit.status = link.status
            visit.correlation_id = event_id
            clicks.append(
                b"".join(
                    (OPENING, link.code, link.owner, guest.words, moment, event_id, _AND_CORRELATED, event_id, b'"}')
                )
            )
        return clicks

    def _admitted(self, admission: Admission, visits: list[Visit]) -> list[Visit]:
        """Those who are within their limits, each with what is left of it; the others are refused."""
        clients = [visit.guest.visitor.counted for visit in visits if visit.guest is not None]
        left = {}
        for client, count in Counter(clients).items():
            remaining = admission.all_of(client, count)
            if remaining is not None:
                left[client] = remaining + count
        admitted: list[Visit] = []
        for visit, client in zip(visits, clients, strict=True):
            if client in left:
                left[client] = visit.remaining = left[client] - 1
            elif not self._is_admitted(admission, visit, client):
                continue
            admitted.append(visit)
        return admitted

    def _is_admitted(self, admission: Admission, visit: Visit, client: str) -> bool:
        """One of those who are not all admitted."""
        remaining = admission.all_of(client, 1)
        if remaining is not None:
            visit.remaining = remaining
            return True
        welcome, said = admission(client)
        if not welcome:
            self.refuse(visit, _LIMITED, said)
        return welcome

    def refuse(self, visit: Visit, answer: Answer, said: bytes) -> None:
        """Answer without a click."""
        visit.status = answer.status
        [visit.correlation_id] = new_event_ids(1)
        visit.release(
            b"".join(
                (
                    status_line(answer.status),
                    self._redirects.moment.date,
                    answer.fields(),
                    said,
                    _CORRELATED,
                    visit.correlation_id,
                    _LAST_FIELDS,
                    answer.body,
                )
            )
        )
        self._note([visit])

    def _note(self, visits: Sequence[Visit]) -> None:
        if not self._log.is_on:
            return
        for status in {visit.status for visit in visits}:
            self._log.completed_together(b"GET", status, [visit for visit in visits if visit.status == status])


@dataclass(frozen=True, slots=True, eq=False)
class Clicked:
    """Visits whose clicks are made, and whose answers are made when they leave."""

    clicks: list[bytes]
    visits: list[Visit]
    gathering: Gathering

    def release(self) -> None:
        """Let the answers go."""
        self.gathering.answer(self.visits)
