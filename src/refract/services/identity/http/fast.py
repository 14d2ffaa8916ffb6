"""Who am I, answered in the parser's callback: nothing is looked up, and so nothing has to be waited for (M2)."""

import time
from typing import cast

import msgspec

from refract.runtime.correlation import accept_correlation_id
from refract.runtime.fast_path import FastPath, Headers
from refract.runtime.heads import LAST_FIELD, STATUS_LINES, Dates
from refract.runtime.request_log import RequestLog
from refract.runtime.tokens import TokenRefused, TokenVerifier, bearer_token
from refract.services.identity.http.accounts import Account

PATH = "/me"

_TARGET = PATH.encode()
_FIELDS = b"cache-control: no-store\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-correlation-id: "
_END = LAST_FIELD + b"\r\n"


class FastWhoAmI(FastPath):
    """Answers GET /me to whoever has a good token. The application does the rest, and says the same."""

    def __init__(self, tokens: TokenVerifier, log: RequestLog) -> None:
        self._tokens = tokens
        self._log = log
        self._dates = Dates()

    def __call__(self, method: bytes, target: bytes, headers: Headers, peer: str) -> bytes | None:  # noqa: ARG002  # anybody
        """The answer to a plain request; None lets the application give it."""
        if target != _TARGET or method != b"GET":
            return None
        fields = dict(headers)
        if len(fields) != len(headers):
            return None  # a field that came twice is for somebody with more time
        token = _token_of(fields)
        return None if token is None else self._answer(token, fields.get(b"x-correlation-id", b"").decode("latin-1"))

    def remember(self, headers: Headers, peer: str) -> object | None:  # noqa: ARG002
        """The token, if nothing else of the fields matters."""
        fields = dict(headers)
        return None if b"x-correlation-id" in fields or len(fields) != len(headers) else _token_of(fields)

    def answer_again(self, target: bytes, remembered: object) -> bytes | None:
        """The answer to somebody who asks with the same token."""
        return self._answer(cast("str", remembered)) if target == _TARGET else None

    def _answer(self, token: str, offered: str = "") -> bytes | None:
        begun = time.monotonic()
        try:
            claims = self._tokens.verify(token)
        except TokenRefused:
            return None  # the application says so, also to the log
        correlation_id = accept_correlation_id(offered).encode()
        body = msgspec.json.encode(Account(claims.subject, claims.email))
        if self._log.is_on:
            self._log.completed(b"GET", _TARGET, 200, begun, correlation_id)
        fields = _FIELDS % len(body)
        return b"".join((STATUS_LINES[200], self._dates.line(), fields, correlation_id, _END, body))


def _token_of(fields: dict[bytes, bytes]) -> str | None:
    return bearer_token(fields.get(b"authorization", b"").decode("latin-1"))
