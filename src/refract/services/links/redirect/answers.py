"""What a redirect answers: the answer as a value, its bytes on the wire, and its form for the application."""

import base64
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from html import escape
from http import HTTPStatus
from typing import Any

from refract.kernel.errors import Limited, NotFound, RefractError, Unavailable
from refract.runtime.exchange import error_body
from refract.runtime.web import STATUSES
from refract.services.links.domain.destinations import location_of
from refract.services.links.domain.link import GONE, Status
from refract.services.links.redirect.records import LinkRecord

MAX_AGE = 90
"""Seconds a browser may keep a redirect: clicks stay countable and destinations editable (decision 13)."""

_NOT_AT_ALL = re.compile(rb"\s*q=0(\.0*)?\s*")
_STYLE = "body{font:1rem/1.5 system-ui,sans-serif;margin:20vh auto;max-width:30rem;padding:0 1rem;text-align:center}"
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest())
_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1"><title>%s</title>'
    f"<style>{_STYLE}</style><h1>%s</h1><p>%s</p></html>\n"
)
_PAGE_POLICY = b"default-src 'none'; style-src 'sha256-" + _STYLE_HASH + b"'"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer without the fields that the server and the edge add. It is an ASGI application itself."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        await send({"type": "http.response.body", "body": self.body})

    def fields(self) -> bytes:
        """Its header fields as the server writes them."""
        return b"".join(b"%b: %b\r\n" % field for field in self.headers)


def status_line(status: int) -> bytes:
    """The first line of an answer, as the server writes it."""
    return b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())


def redirect_fields(record: LinkRecord, seconds_left: float | None) -> bytes:
    """Where an active link leads that has so long to live: the header fields as the server writes them."""
    max_age = MAX_AGE if seconds_left is None else max(0, min(MAX_AGE, int(seconds_left)))
    return b"location: %b\r\ncache-control: private, max-age=%d\r\ncontent-length: 0\r\n" % (
        location_of(record.original_url).encode("ascii"),
        max_age,
    )


def unkept(fields: bytes) -> bytes:
    """The same fields, with which no browser keeps the answer."""
    location, _, _ = fields.partition(b"\r\ncache-control: ")
    return b"%b\r\ncache-control: no-store\r\ncontent-length: 0\r\n" % location


def failed(*, wants_page: bool) -> Answer:
    """Something went wrong that nobody has thought of."""
    return _failing(RefractError(), wants_page=wants_page)


def limited() -> Answer:
    """Somebody comes too often; the fields that say when to come again are the caller's."""
    body = error_body(Limited.message)
    return Answer(STATUSES[Limited.kind], ((b"content-type", b"application/json"), *_length(body)), body)


def refusal(record: LinkRecord | None, now: datetime, *, wants_page: bool) -> Answer:
    """Why a code leads nowhere: it is absent, or its link is expired, disabled or deleted."""
    if record is None:
        return _failing(NotFound(), wants_page=wants_page)
    return _failing(GONE[Status(record.effective_status(now))](), wants_page=wants_page)


def unavailable(*, wants_page: bool) -> Answer:
    """Nobody can tell at the moment where the code leads."""
    return _failing(Unavailable("links", "neither database nor cache answers"), wants_page=wants_page)


def accepts_pages(accept: bytes) -> bool:
    """Whether a client asks for HTML by name, as browsers do and command lines do not; with `q=0` it asks for none."""
    if b"text/html" not in (accept := accept.lower()):
        return False  # the usual case of a flood
    for accepted in accept.split(b","):
        kind, *parameters = accepted.split(b";")
        if kind.strip() == b"text/html":
            return not any(_NOT_AT_ALL.fullmatch(parameter) for parameter in parameters)
    return False


def _failing(error: RefractError, *, wants_page: bool) -> Answer:
    status = STATUSES[error.kind]
    common: tuple[tuple[bytes, bytes], ...] = ((b"cache-control", b"no-store"), (b"vary", b"accept"))
    if not wants_page:
        body = error_body(error.message)
        return Answer(status, ((b"content-type", b"application/json"), *_length(body), *common), body)
    title = {404: "Not found", 410: "Gone"}.get(status, "Try again later")
    page = (_PAGE % (title, title, escape(_sentence(error.message)))).encode()
    kind = (b"content-type", b"text/html; charset=utf-8")
    return Answer(status, (kind, *_length(page), *common, (b"content-security-policy", _PAGE_POLICY)), page)


def _sentence(message: str) -> str:
    if message == NotFound.message:
        return "There is no link with this address."
    return f"{message[:1].upper()}{message[1:]}."


def _length(body: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"content-length", b"%d" % len(body)),)
