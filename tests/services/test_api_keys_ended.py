"""API keys that ended: kept for a while, for their owners to see, and then forgotten; on both modes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from refract.runtime import migrations
from refract.runtime.statements import Statement
from refract.services.identity.commands.sweeping import FORGET, Sweeper
from refract.services.identity.domain.accounts import User
from refract.services.identity.store import Users
from tests.support.api_keys import ROWS, kept, owner, resolve, signed
from tests.support.clocks import START
from tests.support.databases import Location, empty_location, open_database
from tests.support.identity import EMAIL, ON_SQLITE, IdentityWorld, identity, identity_location
from tests.support.upgrades import migrate_before

__all__ = ["empty_location", "identity", "identity_location"]

pytestmark = pytest.mark.usefixtures("patient_locks")

DAY = 86_400.0
A_DAY_LATER = "2026-03-02T12:00:00Z"
OLD_KEY = Statement(
    "old_key",
    "Keeps a key as it was kept before.",
    """
    INSERT INTO api_keys (user_id, key_hash, key_prefix, name, scopes, status, created_at)
    VALUES (:user_id, :key_hash, 'refract_', 'old', :scopes, :status, :created_at)
    """,
)


async def names(identity: IdentityWorld) -> list[str]:
    return [row["name"] for row in await kept(identity)]


async def test_what_ended_90_days_ago_is_forgotten_and_nothing_else(identity: IdentityWorld) -> None:
    alice, sweeper = await owner(identity), Sweeper(identity.database, identity.clock)
    made = {}
    for name, end in (("used", None), ("over", A_DAY_LATER), ("revoked", None), ("both", A_DAY_LATER), ("late", None)):
        made[name] = await alice.makes(name=name, expires_at=end)
    await alice.revokes(made["revoked"]["id"])
    identity.clock.advance(2 * DAY)
    for name in ("late", "late", "both"):
        answer = await identity.call("DELETE", f"/keys/{made[name]['id']}", token=signed(identity, alice.user))
        assert answer.status == 204
    identity.clock.advance(88 * DAY - 1)
    assert await sweeper.sweep() == 0
    identity.clock.advance(1)
    assert await sweeper.sweep() == 1
    assert await names(identity) == ["used", "over", "both", "late"]
    identity.clock.advance(DAY)
    assert await sweeper.sweep() == 2, "one that was over when it was revoked counts from its end"
    assert await names(identity) == ["used", "late"]
    # As if it had never been: not found, and nobody's.
    today = signed(identity, alice.user)
    assert (await identity.call("DELETE", f"/keys/{made['over']['id']}", token=today)).status == 404
    assert (await resolve(identity, made["over"]["key"])).status == 401
    identity.clock.advance(DAY)
    assert await sweeper.sweep() == 1
    identity.clock.advance(1_000 * DAY)
    assert await sweeper.sweep() == 0
    assert await names(identity) == ["used"], "a key without an end has none"
    assert (await resolve(identity, made["used"]["key"])).status == 200


@ON_SQLITE
async def test_nothing_is_looked_for_among_all_keys(identity: IdentityWorld) -> None:
    found = {}
    for statement, _ in FORGET:
        explained = Statement("explained", "Asks how.", f"EXPLAIN QUERY PLAN {statement.for_sqlite()}")
        steps = [row["detail"] for row in await identity.database.fetch(explained, over=START, batch=1)]
        found[statement.name] = [step for step in steps if "api_keys_" in step]
    assert "INDEX api_keys_expires_at " in str(found["forget_expired_keys"])
    assert "INDEX api_keys_revoked_at " in str(found["forget_revoked_keys"])


async def test_keys_revoked_before_that_was_noted_count_from_the_upgrade(
    empty_database: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate_before("0006", "identity", empty_database, tmp_path, monkeypatch)
    database, alice = await open_database(empty_database), User.local(EMAIL, "hash", START)
    async with database.transaction() as tx:
        await Users().add(tx, alice)
        for number, status in enumerate(("active", "revoked")):
            key = {"key_hash": str(number) * 64, "scopes": [], "status": status, "created_at": START}
            await tx.execute(OLD_KEY, user_id=alice.id, **key)
    await database.close()
    begun = datetime.now(UTC)
    await migrations.migrate("identity", empty_database)
    database = await open_database(empty_database)
    try:
        active, revoked = await database.fetch(ROWS)
    finally:
        await database.close()
    assert active["revoked_at"] is None
    assert begun - timedelta(seconds=1) <= revoked["revoked_at"] <= datetime.now(UTC) + timedelta(seconds=1)
