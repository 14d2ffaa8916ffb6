"""What sms keeps for a time is forgotten after it, and not a moment before."""

from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.statements import Statement
from refract.services.sms.commands import clearing as clearing_up
from refract.services.sms.commands.clearing import CLEAR_SECONDS, KEYS_KEPT, MARKS_KEPT, Clearing
from refract.services.sms.store.sent_messages import mark_sent
from tests.support.audit import ATTEMPTS, MINUTES, SENT, Audit, attempt, audit, sms_location

__all__ = ["audit", "sms_location"]

KEPT = timedelta(days=90)
ADD_KEY = Statement(
    "add_key",
    "Adds a key.",
    """
    INSERT INTO send_keys (user_id, key_hash, fingerprint, message_id, status, created_at)
    VALUES (:user_id, :key_hash, :key_hash, 'm', 'sent', :now)
    """,
)
KEYS = Statement("keys", "Reads the keys.", "SELECT user_id FROM send_keys ORDER BY user_id")


async def fill(audit: Audit, number: int) -> None:
    """A row in every table, of now."""
    now = audit.clock.now()
    await audit.keep(*(attempt(number, status, at=now) for status in ("sent", "limited", "failed", "invalid")))
    async with audit.database.transaction() as tx:
        await mark_sent(tx, [f"m-{number}"], now)
        await tx.execute(ADD_KEY, user_id=number, key_hash="k", now=now)


async def counts(audit: Audit) -> dict[str, int]:
    return {statement.name: len(await audit.rows(statement)) for statement in (ATTEMPTS, MINUTES, SENT, KEYS)}


async def test_each_kind_has_its_own_time(audit: Audit) -> None:
    clearing = Clearing(audit.database, audit.clock, KEPT)
    await fill(audit, 1)
    passed = timedelta()
    for kept, left in (
        (MARKS_KEPT, {"attempts": 4, "minutes": 1, "sent": 0, "keys": 1}),
        (KEYS_KEPT, {"attempts": 4, "minutes": 1, "sent": 0, "keys": 0}),
        (KEPT, {"attempts": 0, "minutes": 0, "sent": 0, "keys": 0}),
    ):
        audit.clock.advance((kept - passed).total_seconds())
        passed = kept
        before = await counts(audit)
        await clearing.clear()
        assert await counts(audit) == before, "not a moment before"
        audit.clock.advance(0.000001)
        passed += timedelta(microseconds=1)
        assert await clearing.clear() == sum(before.values()) - sum(left.values())
        assert await counts(audit) == left


async def test_what_is_young_stays(audit: Audit) -> None:
    await fill(audit, 1)
    audit.clock.advance((KEPT + timedelta(minutes=1)).total_seconds())
    await fill(audit, 2)
    await Clearing(audit.database, audit.clock, KEPT).clear()
    assert {row["user_id"] for row in await audit.rows(ATTEMPTS)} == {2}
    assert [row["user_id"] for row in await audit.rows(MINUTES)] == [2]
    assert [row["message_id"] for row in await audit.rows(SENT)] == ["m-2"]
    assert [row["user_id"] for row in await audit.rows(KEYS)] == [2]


async def test_much_goes_in_batches_with_a_rest_between(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clearing_up, "BATCH", 2)
    for number in range(5):
        await fill(audit, number)
    audit.clock.advance((KEPT + timedelta(minutes=1)).total_seconds())
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    assert await Clearing(audit.database, audit.clock, KEPT, pause=rest).clear() == 5 * 7
    assert sum((await counts(audit)).values()) == 0
    assert rests == [clearing_up.REST_SECONDS] * 2 * 7, "of five rows, after the second and the fourth"


async def test_a_database_that_is_away_is_tried_again_at_the_next_round(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[float] = []

    class Over(Exception):
        """Ends what goes on for ever."""

    async def pause(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 2:
            raise Over

    def away() -> Any:
        raise Unavailable("database", "it is closed")

    monkeypatch.setattr(audit.database, "transaction", away)
    with pytest.raises(Over):
        await Clearing(audit.database, audit.clock, KEPT, pause=pause).run()
    assert rounds == [CLEAR_SECONDS] * 2
