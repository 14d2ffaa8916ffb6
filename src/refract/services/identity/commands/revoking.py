"""Takes tokens back before their time: one, or all of a user; the gateway hears of it by event."""

from datetime import datetime, timedelta

from refract.kernel.errors import NotFound
from refract.kernel.ids import new_event_id
from refract.runtime.ports import Transaction
from refract.runtime.statements import Statement
from refract.runtime.tokens import CLOCK_SKEW_SECONDS, LIFETIME, Claims
from refract.services.identity.api import UserRevoked
from refract.services.identity.store import Users

TOKENS_OF_ONE_USER = 100
"""Whoever signs out more often than that in a day is signed out everywhere: one row for all, and lists stay short."""

MARGIN = timedelta(hours=1)
"""For clocks that differ, and for a sign-in that began before and is signed after it, with the old generation."""

RAISE_GENERATION = Statement(
    "raise_generation",
    "Makes the tokens of a user that were signed until now old.",
    "UPDATE users SET token_generation = :generation, updated_at = :now WHERE id = :id",
)
COUNT_REVOCATIONS = Statement(
    "count_revocations",
    "Counts what was taken back from a user.",
    "SELECT count(*) AS revocations FROM revocations WHERE user_id = :user_id",
)
FORGET_OLDER = Statement(
    "forget_older_revocations",
    "Removes what a newer revocation says as well.",
    "DELETE FROM revocations WHERE user_id = :user_id AND generation < :generation",
)
INSERT_REVOCATION = Statement(
    "insert_revocation",
    "Keeps a revocation unless it is known.",
    """
    INSERT INTO revocations (id, user_id, token_id, generation, until, created_at)
    VALUES (:id, :user_id, :token_id, :generation, :until, :created_at)
    ON CONFLICT (user_id, token_id, generation) DO NOTHING
    """,
)


async def revoke_all(tx: Transaction, user_id: str, now: datetime) -> int:
    """End every token that was signed for a user until now; returns the new generation. Raises NotFound."""
    generation = (await Users().get(tx, user_id)).token_generation + 1
    await tx.execute(RAISE_GENERATION, id=user_id, generation=generation, now=now)
    # Every token that was taken back alone is of an older generation.
    await tx.execute(FORGET_OLDER, user_id=user_id, generation=generation)
    await _revoke(tx, user_id, now, generation=generation, until=now + LIFETIME + MARGIN)
    return generation


async def revoke_token(tx: Transaction, claims: Claims, now: datetime) -> None:
    """End one token; where it has no id, or its user has a long list of dead ones, all of that user."""
    row = await tx.fetch_one(COUNT_REVOCATIONS, user_id=claims.subject)
    if claims.token_id and row is not None and row["revocations"] < TOKENS_OF_ONE_USER:
        until = claims.expires_at + timedelta(seconds=CLOCK_SKEW_SECONDS)
        await _revoke(tx, claims.subject, now, token_id=claims.token_id, until=until)
        return
    try:
        await revoke_all(tx, claims.subject, now)
    except NotFound:  # a token may outlive its user
        until = max(claims.expires_at, now + LIFETIME) + MARGIN
        await _revoke(tx, claims.subject, now, generation=claims.generation + 1, until=until)


async def _revoke(
    tx: Transaction, user_id: str, now: datetime, *, until: datetime, token_id: str = "", generation: int = 0
) -> None:
    added = await tx.execute(
        INSERT_REVOCATION,
        id=new_event_id(),
        user_id=user_id,
        token_id=token_id,
        generation=generation,
        until=until,
        created_at=now,
    )
    if added:
        await tx.announce(
            UserRevoked(occurred_at=now, user_id=user_id, token_id=token_id, generation=generation, until=until)
        )
