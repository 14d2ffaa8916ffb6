"""Makes and revokes API keys; only the owner of an account does, and never by a key."""

import logging
from dataclasses import dataclass
from datetime import datetime

from refract.kernel.clock import Clock
from refract.kernel.errors import NotFound
from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.runtime.tokens import Claims
from refract.services.identity.api import ApiKeyCreated, ApiKeyRevoked
from refract.services.identity.commands.confirming import owner_of
from refract.services.identity.domain.keys import FreshKey, KeyWish

log = logging.getLogger(__name__)

INSERT_KEY = Statement(
    "insert_key",
    "Keeps what is kept of a new key.",
    """
    INSERT INTO api_keys (user_id, key_hash, key_prefix, name, scopes, sms_user_id, created_at, expires_at)
    VALUES (:user_id, :key_hash, :key_prefix, :name, :scopes, :sms_user_id, :created_at, :expires_at)
    RETURNING id
    """,
)
REVOKE_KEY = Statement(
    "revoke_key",
    "Ends a key of a user, if it is not ended yet.",
    """
    UPDATE api_keys SET status = 'revoked', revoked_at = :now
    WHERE id = :id AND user_id = :user_id AND status = 'active'
    RETURNING key_hash
    """,
)
FIND_KEY = Statement(
    "find_key",
    "Tells whether a user has, or had, a key.",
    "SELECT id FROM api_keys WHERE id = :id AND user_id = :user_id",
)
FORGET_KEYS = Statement(
    "forget_keys",
    "Removes the keys of a user, in the order in which whoever counts uses takes them.",
    """
    DELETE FROM api_keys
    WHERE id = ANY(ARRAY(SELECT id FROM api_keys WHERE user_id = :user_id ORDER BY id FOR UPDATE))
    """,
    sqlite="DELETE FROM api_keys WHERE user_id = :user_id",
)


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A new key, as its owner is told of it."""

    id: int
    key: FreshKey
    wish: KeyWish
    created_at: datetime


class Keys:
    """What the owner of an account does about keys."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def make(self, claims: Claims, wish: KeyWish) -> MadeKey:
        """A new key; raises NotForSms, Unauthenticated for a token that is dead."""
        key, now = FreshKey.make(), self._clock.now()
        async with self._database.transaction() as tx:
            # Locked: whoever ends the account meanwhile must find this key, or keep it from being made.
            owner = await owner_of(tx, claims)
            wish.check_allowed_to(owner.role)
            key_id = await _insert(tx, owner.id, key, wish, now)
            await tx.announce(ApiKeyCreated(occurred_at=now, key_id=key_id, user_id=owner.id, key_hash=key.hash))
        log.info("api key made", extra={"user_id": owner.id, "key_id": key_id})
        return MadeKey(key_id, key, wish, now)

    async def revoke(self, claims: Claims, key_id: int) -> None:
        """End a key; again is no error, and is not told again. Raises NotFound where it is not theirs."""
        async with self._database.transaction() as tx:
            owner, now = await owner_of(tx, claims), self._clock.now()
            row = await tx.fetch_one(REVOKE_KEY, id=key_id, user_id=owner.id, now=now)
            if row is None:
                if await tx.fetch_one(FIND_KEY, id=key_id, user_id=owner.id) is None:
                    raise NotFound
                return
            key_hash = row["key_hash"]
            await tx.announce(ApiKeyRevoked(occurred_at=now, key_id=key_id, user_id=owner.id, key_hash=key_hash))
        log.info("api key revoked", extra={"user_id": owner.id, "key_id": key_id})


async def forget_keys(tx: Transaction, user_id: str) -> None:
    """Remove every key of a user whose account ends. That their tokens are ended says it to those who remember one."""
    await tx.execute(FORGET_KEYS, user_id=user_id)


async def _insert(tx: Transaction, user_id: str, key: FreshKey, wish: KeyWish, now: datetime) -> int:
    row = await tx.fetch_one(
        INSERT_KEY,
        user_id=user_id,
        key_hash=key.hash,
        key_prefix=key.prefix,
        name=wish.name,
        scopes=list(wish.scopes),
        sms_user_id=wish.sms_user_id,
        created_at=now,
        expires_at=wish.expires_at,
    )
    assert row is not None, "INSERT … RETURNING always returns its row"
    return int(row["id"])
