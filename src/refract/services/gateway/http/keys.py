"""Who calls with an API key: identity is asked once for all who ask, and believed for a minute (decision 28)."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from refract.kernel.errors import RefractError
from refract.kernel.events import Moment
from refract.runtime.tokens import TokenRefused, TokenVerifier
from refract.services.gateway.api import Route
from refract.services.gateway.domain.callers import NOBODY, Asked, Caller
from refract.services.gateway.domain.headers import Overstretched, UnknownUpstream, UpstreamFailed
from refract.services.gateway.domain.keys import (
    KeyRefused,
    KnownKey,
    KnownKeys,
    NotForKeys,
    ScopeLacking,
    TwoProofs,
    Unresolved,
    key_hash,
)
from refract.services.gateway.http.counting import Counting
from refract.services.gateway.http.guarding import Guard
from refract.services.gateway.http.places import CAPACITY
from refract.services.gateway.http.refusing import Busy
from refract.services.identity.api import NAME as IDENTITY
from refract.services.identity.api import KeyHash, KeyId

logger = logging.getLogger("refract.gateway.keys")

TELL_SECONDS = 60.0
"""How long identity waits at most to hear of a use, and longer only while it is away."""

MOST_TOLD = 1000
"""Keys in one message."""

LAST_WORD_SECONDS = 2.0
"""For what is left when we stop."""


_REFUSED = 401
_HEARD = frozenset({200, _REFUSED})
"""With these identity has noted the uses that it was told of."""


class _Resolved(Struct, frozen=True):
    key_id: KeyId
    key_hash: KeyHash
    user_id: str
    scopes: frozenset[str]
    token: str
    expires_at: Moment
    sms_user_id: Annotated[int, Meta(ge=0)] | None = None


class _Odd(Exception):
    """An answer of identity that cannot be right; the text says why, and holds nothing of it."""


@dataclass(slots=True)
class _Question:
    """What identity is asked about one key, and how many wait for the answer."""

    answer: asyncio.Task[KnownKey]
    waiting: int = 0


_resolved = msgspec.json.Decoder(_Resolved)


class Keys:
    """Lets in whom a key stands for, as far as it goes.

    So many questions are asked at once, however many wait for each. A quarter of them is for keys that were good
    lately: whoever makes keys up has no part in it.
    """

    def __init__(
        self,
        guard: Guard,
        counting: Counting,
        known: KnownKeys,
        tokens: TokenVerifier,
        most_questions: int = CAPACITY,
    ) -> None:
        self._guard = guard
        self._counting = counting
        self._known = known
        self._tokens = tokens
        self._most_questions = most_questions
        self._questions: dict[str, _Question] = {}
        self._looked_at = 0

    async def identify(self, route: Route, asked: Asked, address: str) -> Caller:
        """Whose key it is, NOBODY where a row is for everybody and the key is for something else. It is used once more.

        Raises TwoProofs, NotForKeys, KeyRefused, ScopeLacking, TooMany where the address has guessed too often, and
        Unresolved, CircuitOpen or Busy where identity cannot be asked.
        """
        key = await self.check(route, asked, address)
        if key is None:
            return NOBODY
        self._known.count_use(key)
        return key.caller

    async def check(self, route: Route, asked: Asked, address: str) -> KnownKey | None:
        """The same without a use."""
        offer = asked.offer()
        assert offer is not None, "it was seen by whoever sends us here"
        if not offer.token:
            raise TwoProofs
        if route.scope is None:
            raise NotForKeys
        hashed = key_hash(offer.token)
        key = self._known.find(hashed) or await self._find_out(hashed, offer.token, address)
        if route.scope in key.scopes:
            return key
        if route.token == "optional":  # noqa: S105  # a word of the table
            return None
        raise ScopeLacking

    async def run(self) -> None:
        """Tell identity of uses once a minute: of keys that are not asked for again, it would never hear."""
        while True:
            await asyncio.sleep(TELL_SECONDS)
            await self.tell()

    async def tell(self) -> None:
        """Tell identity of all uses that it has not heard of."""
        uses = list(self._known.take_uses().items())
        while uses:
            told, status = uses[:MOST_TOLD], 0
            message = {"uses": {str(key_id): count for _, (key_id, count) in told}}
            try:
                status, _ = await self._guard.ask(IDENTITY, "/keys/uses", msgspec.json.encode(message))
            except RefractError as error:
                logger.warning("identity cannot be told of the uses of api keys", extra={"reason": str(error)})
            finally:
                if not 200 <= status < 500:
                    self._known.give_back(dict(uses))
            if not 200 <= status < 500:
                return
            if status >= 300:
                logger.error("identity will not hear of the uses of api keys", extra={"status": status})
            del uses[:MOST_TOLD]

    async def stop(self) -> None:
        """Say the last word, if identity listens."""
        try:
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await self.tell()
        except TimeoutError:
            logger.warning("identity was not told of the last uses of api keys")

    async def _find_out(self, hashed: str, key: str, address: str) -> KnownKey:
        """Whose a key is that is not known. One that was good lately is no guess, whoever else is at its address."""
        if hashed in self._questions or self._known.was_good_lately(hashed):
            return await self._ask(hashed, key, address)
        if self._looked_at >= self._most_questions:
            raise Busy
        self._looked_at += 1
        try:
            await self._counting.check_guesses(address)
        finally:
            self._looked_at -= 1
        return self._known.find(hashed) or await self._ask(hashed, key, address)

    async def _ask(self, hashed: str, key: str, address: str) -> KnownKey:
        """What identity says of a key. Whoever asks for the same one meanwhile waits for the same answer."""
        question = self._questions.get(hashed)
        if question is None:
            reserve = 0 if self._known.was_good_lately(hashed) else self._most_questions // 4
            if len(self._questions) >= self._most_questions - reserve:
                raise Busy
            asking = asyncio.get_running_loop().create_task(self._resolve(hashed, key, address))
            asking.add_done_callback(lambda ended: self._answered(hashed, ended))
            question = self._questions[hashed] = _Question(asking)
        elif question.waiting >= self._most_questions:
            raise Busy
        question.waiting += 1
        try:
            return await asyncio.shield(question.answer)  # the others wait on when one of them leaves
        finally:
            question.waiting -= 1

    def _answered(self, hashed: str, question: asyncio.Task[KnownKey]) -> None:
        del self._questions[hashed]
        if not question.cancelled():
            question.exception()  # also where nobody waits for it any more

    async def _resolve(self, hashed: str, key: str, address: str) -> KnownKey:
        try:
            while True:
                inquiry = self._known.begin(hashed)
                try:
                    answer = await self._question(hashed, key)
                finally:
                    self._known.end(inquiry)
                if answer is None:
                    if self._known.refuse(hashed):  # one that is shown again and again is a single guess
                        await self._counting.count_guess(address)
                    raise KeyRefused
                vouched, until = answer
                if not inquiry.is_overtaken(vouched.caller.user_id):
                    self._known.learn(vouched, until)
                    return vouched
        except (UpstreamFailed, UnknownUpstream, Overstretched, _Odd) as error:
            logger.warning("identity cannot say whose an api key is", extra={"reason": str(error)})
            raise Unresolved from error

    async def _question(self, hashed: str, key: str) -> tuple[KnownKey, datetime] | None:
        """Ask once: the key, and until when that is true; None where it is good for nothing."""
        uses = self._known.take_uses(hashed)
        question = {"key": key, "uses": sum(count for _, count in uses.values())}
        status = 0
        try:
            status, body = await self._guard.ask(IDENTITY, "/keys/resolve", msgspec.json.encode(question))
        finally:
            if status not in _HEARD:
                self._known.give_back(uses)
        if status not in _HEARD:
            raise _Odd(f"status {status}")
        return None if status == _REFUSED else self._vouched_for(hashed, body)

    def _vouched_for(self, hashed: str, body: bytes) -> tuple[KnownKey, datetime]:
        """What identity says, if that can be: services will check the token themselves, and refuse where we must."""
        try:
            said = _resolved.decode(body)
            claims = self._tokens.verify(said.token)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _Odd("an answer that cannot be read") from error
        except TokenRefused as error:
            raise _Odd(f"a token that is refused: {error}") from error
        vouched = hashed, claims.subject, claims.api_key
        if (said.key_hash, said.user_id, said.key_id) != vouched or claims.is_administrator:
            raise _Odd("an answer about something else")
        bound = "" if said.sms_user_id is None else str(said.sms_user_id)
        # Without a user it is bound to, a key would send in the name of any.
        scopes = said.scopes if bound else said.scopes - {"sms:send"}
        caller = Caller(claims.subject, claims.email, str(said.key_id), said.token, bound)
        return KnownKey(hashed, said.key_id, scopes, caller), said.expires_at
