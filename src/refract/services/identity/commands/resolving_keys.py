"""Tells the gateway who an API key speaks for (decision 28), and takes the uses of it that it has not told yet."""

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from refract.kernel.clock import Clock
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.runtime.tokens import TokenSigner
from refract.services.identity.commands.key_uses import KeyUses
from refract.services.identity.domain.keys import SMS_SCOPE, InvalidKey, granted_scopes, key_hash

log = logging.getLogger(__name__)

REMEMBERED_FOR = timedelta(seconds=60)
"""How long an answer may be believed where nothing is heard of the key (decision 27)."""

TOKEN_LIFETIME = timedelta(minutes=2)
"""Longer than an answer is believed: what is sent on in its last moment arrives with a good token."""

RESOLVE_KEY = Statement(
    "resolve_key",
    "Reads a key by its hash, and its owner.",
    """
    SELECT api_keys.id, api_keys.user_id, api_keys.scopes, api_keys.sms_user_id, api_keys.status, api_keys.expires_at,
        users.email, users.role, users.status AS owner_status, users.token_generation
    FROM api_keys JOIN users ON users.id = api_keys.user_id WHERE api_keys.key_hash = :key_hash
    """,
)


@dataclass(frozen=True, slots=True)
class ResolvedKey:
    """Whom a key speaks for and what for; the gateway asks again at `expires_at`. The token is for the inside."""

    key_id: int
    key_hash: str
    user_id: str
    scopes: list[str]
    sms_user_id: int | None
    token: str = field(repr=False)
    expires_at: datetime


class ResolvingKeys:
    """Answers for keys."""

    def __init__(self, database: Database, clock: Clock, signer: TokenSigner, uses: KeyUses) -> None:
        self._database = database
        self._clock = clock
        self._signer = signer
        self._uses = uses

    async def resolve(self, text: str, uses: int) -> ResolvedKey:
        """Whom a key speaks for; raises InvalidKey, after one query whatever is wrong with it.

        Uses count also where it is refused: they were made while it was good.
        """
        hashed, now = key_hash(text), self._clock.now()
        row = await self._database.fetch_one(RESOLVE_KEY, key_hash=hashed)
        if row is not None:
            await self._uses.count({row["id"]: uses})
        reason = _refusal(row, now)
        if row is None or reason:
            # Anybody can make keys up; one of ours that is used after its end is worth a look.
            level, extra = (logging.INFO, {}) if row is None else (logging.WARNING, {"key_id": row["id"]})
            log.log(level, "api key refused: %s", reason, extra=extra)
            raise InvalidKey
        return self._resolved(row, hashed, now)

    def _resolved(self, row: Row, hashed: str, now: datetime) -> ResolvedKey:
        until = now + REMEMBERED_FOR
        scopes = granted_scopes(row["scopes"], row["role"])
        # A user's, whoever made the key: what it may do is in its scopes, and no role adds to them.
        signed = self._signer.sign(
            row["user_id"],
            row["email"],
            generation=row["token_generation"],
            api_key=row["id"],
            lifetime=TOKEN_LIFETIME,
        )
        return ResolvedKey(
            key_id=row["id"],
            key_hash=hashed,
            user_id=row["user_id"],
            scopes=scopes,
            sms_user_id=row["sms_user_id"] if SMS_SCOPE in scopes else None,
            token=signed.token,
            expires_at=until if row["expires_at"] is None else min(until, row["expires_at"]),
        )


def _refusal(row: Row | None, now: datetime) -> str:
    """What is wrong with a key, for the log; nothing, if it is good."""
    if row is None:
        return "unknown"
    if row["status"] != "active":
        return "revoked"
    if row["expires_at"] is not None and row["expires_at"] <= now:
        return "expired"
    return "" if row["owner_status"] == "active" else "the account is not active"
