"""Plays identity where API keys are concerned, and every other service as a mirror; what it was asked is noted."""

import asyncio
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Any

import msgspec

from refract.kernel.clock import SystemClock
from refract.runtime.edge import Receive, Scope, Send
from refract.runtime.tokens import TokenSigner
from tests.support.fronts import SECRET, mirror, read_body, send_answer

BASE62 = string.digits + string.ascii_letters
ALL_SCOPES = ("links:read", "links:write", "stats:read", "notifications:read", "sms:send")
REFUSED = (401, {"error": "invalid api key"})
LACKING = (403, {"error": "api key lacks scope"})


def new_key() -> str:
    """A text that could be a key."""
    return "refract_" + "".join(secrets.choice(BASE62) for _ in range(40))


def hash_of(key: str) -> str:
    """As it is stored."""
    return blake2b(key.encode(), digest_size=32).hexdigest()


@dataclass
class Desk:
    """Keys that were issued, and what became of the gateway's questions."""

    clock: Any = field(default_factory=SystemClock)
    issued: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is said of each key."""
    questions: list[dict[str, Any]] = field(default_factory=list)
    correlation_ids: list[str] = field(default_factory=list)
    told: list[dict[str, int]] = field(default_factory=list)
    """The uses that came by themselves."""
    reached: list[str] = field(default_factory=list)
    """Paths of what was passed on."""
    instead: tuple[int, bytes] | None = None
    """What is answered in the place of anything about keys."""
    gate: asyncio.Event | None = None
    """While there is one that is not set, questions wait."""

    def issue(self, *scopes: str, user: str = "u-1", sms_user_id: int | None = None, seconds: float = 60.0) -> str:
        """A new key, of which the gateway may be sure for so long."""
        key, number = new_key(), len(self.issued) + 1
        self.issued[key] = {
            "key_id": number,
            "key_hash": hash_of(key),
            "user_id": user,
            "scopes": list(scopes or ALL_SCOPES),
            "sms_user_id": sms_user_id,
            "token": "",
            "seconds": seconds,
        }
        return key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["path"] not in {"/keys/resolve", "/keys/uses"}:
            self.reached.append(scope["path"])
            await mirror(scope, receive, send)
            return
        headers = dict(scope["headers"])
        assert (scope["method"], headers[b"content-type"]) == ("POST", b"application/json")
        self.correlation_ids.append(headers[b"x-correlation-id"].decode())
        said = msgspec.json.decode(await read_body(receive))
        is_question = scope["path"] == "/keys/resolve"
        if is_question:
            self.questions.append(said)
        if self.gate is not None:
            await self.gate.wait()
        if self.instead is not None:
            await send_answer(send, *self.instead)
        elif is_question:
            await self._resolve(said["key"], send)
        else:
            self.told.append(said["uses"])
            await send_answer(send, 204, b"")

    def asked(self, key: str) -> Sequence[int]:
        """The uses that came with each question about a key."""
        return [question["uses"] for question in self.questions if question["key"] == key]

    async def _resolve(self, key: str, send: Send) -> None:
        if key not in self.issued:
            await send_answer(send, 401, b'{"error":"invalid api key"}')
            return
        said = dict(self.issued[key])
        until = self.clock.now() + timedelta(seconds=said.pop("seconds"))
        said["expires_at"] = until.isoformat().replace("+00:00", "Z")
        said["token"] = said["token"] or self.token(said["user_id"], said["key_id"])
        await send_answer(send, 200, msgspec.json.encode(said))

    def token(self, user: str, key_id: int) -> str:
        """The owner's token, as identity signs it for services."""
        signer = TokenSigner(SECRET, self.clock)
        return signer.sign(user, f"{user}@example.com", api_key=key_id, lifetime=timedelta(minutes=2)).token
