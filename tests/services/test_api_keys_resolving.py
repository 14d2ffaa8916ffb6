"""What the gateway is told of API keys, and what it tells of their uses."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.errors import Unauthenticated
from refract.runtime.ports import Row, Transaction
from refract.runtime.statements import Statement
from refract.runtime.tokens import Claims, TokenVerifier
from refract.services.gateway.api import ROUTES
from refract.services.identity.commands.administering import Administering
from refract.services.identity.commands.deleting import erase, hold_administrators
from refract.services.identity.commands.key_uses import COUNT_USES, KeyUses
from refract.services.identity.commands.keys import Keys
from refract.services.identity.domain.keys import KeyWish
from refract.services.identity.store import Users
from tests.support.api_keys import SENDER, kept, owner, resolve, told
from tests.support.clocks import START
from tests.support.databases import empty_location
from tests.support.http import Answer
from tests.support.identity import ON_SQLITE, SECRET, IdentityWorld, identity, identity_location
from tests.support.waiting import eventually

__all__ = ["empty_location", "identity", "identity_location"]

pytestmark = pytest.mark.usefixtures("patient_locks")

ON_POSTGRESQL = pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)
WAITING = Statement(
    "waiting",
    "Finds who waits.",
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
)
MOVE_BEHIND = Statement(
    "move_behind",
    "Changes what an index holds of a row, which so lies behind all others in the table and in every index by owner.",
    "UPDATE api_keys SET created_at = :created_at WHERE id = :id",
)
REFUSED = (401, {"error": "invalid api key"})


def said(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.json if answer.body else None


def claims_of(identity: IdentityWorld, token: str) -> Claims:
    return TokenVerifier([SECRET], identity.clock).verify(token)


def administering(identity: IdentityWorld) -> Administering:
    return Administering(identity.database, identity.hasher, "length", identity.clock)


async def tell(identity: IdentityWorld, uses: object) -> Answer:
    return await identity.call("POST", "/keys/uses", uses if isinstance(uses, bytes) else {"uses": uses})


class Noting:
    """A database that notes what is asked of it, and can hold transactions up."""

    def __init__(self, identity: IdentityWorld) -> None:
        self._database = identity.database
        self.asked: list[str] = []
        self.transactions = 0
        self.gate: asyncio.Event | None = None

    async def fetch_one(self, statement: Statement, **parameters: Any) -> Row | None:
        self.asked.append(statement.name)
        return await self._database.fetch_one(statement, **parameters)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self.transactions += 1
        if self.gate is not None:
            await self.gate.wait()
        async with self._database.transaction() as tx:
            yield tx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@pytest.fixture
def noting(identity: IdentityWorld) -> Noting:
    """The database of identity, for services that are built from now on."""
    noting = Noting(identity)
    identity.database = noting
    return noting


# Whom a key speaks for.


async def test_a_key_speaks_for_its_owner(identity: IdentityWorld) -> None:
    root = await owner(identity, role="administrator", token_generation=0)
    made = await root.makes(scopes=["stats:read", "links:read"])
    answer = await resolve(identity, made["key"], uses=0)
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    token = answer.json["token"]
    assert answer.json == {
        "key_id": made["id"],
        "key_hash": hashlib.blake2b(made["key"].encode(), digest_size=32).hexdigest(),
        "user_id": root.user.id,
        "scopes": ["links:read", "stats:read"],
        "sms_user_id": None,
        "token": token,
        "expires_at": "2026-03-01T12:01:00Z",
    }
    claims = claims_of(identity, token)
    assert (claims.subject, claims.email, claims.api_key) == (root.user.id, root.user.email, made["id"])
    assert claims.role == "user", "whoever made it"
    assert claims.expires_at == START + timedelta(minutes=2)
    assert claims.token_id


@ON_SQLITE
async def test_an_answer_is_never_good_for_longer_than_the_key(identity: IdentityWorld) -> None:
    alice = await owner(identity)
    made = await alice.makes(expires_at="2026-03-01T12:01:30Z")
    for seconds, until in ((0, "12:01:00"), (40, "12:01:30"), (49.999999, "12:01:30")):
        identity.clock.advance(seconds)
        assert (await resolve(identity, made["key"])).json["expires_at"] == f"2026-03-01T{until}Z"
    identity.clock.advance(0.000001)
    assert said(await resolve(identity, made["key"])) == REFUSED


async def test_whatever_is_wrong_the_answer_and_the_work_are_the_same(identity: IdentityWorld, noting: Noting) -> None:
    alice = await owner(identity)
    good, revoked, over = await alice.makes(), await alice.makes(), await alice.makes(expires_at="2026-03-01T12:00:01Z")
    suspended, deleted = await owner(identity, "bob@example.com"), await owner(identity, "carol@example.com")
    of_suspended, of_deleted = await suspended.makes(), await deleted.makes()
    await alice.revokes(revoked["id"])
    await administering(identity).change_status(suspended.user.id, "suspended")
    await administering(identity).delete(deleted.user.id)
    identity.clock.advance(1)
    key = good["key"]
    wrong = [bad["key"] for bad in (revoked, over, of_suspended, of_deleted)]
    wrong += [f"{key[:-1]}{'a' if key[-1] != 'a' else 'b'}", key.swapcase(), f"{key} ", key[:-1], key[8:], key[:16]]
    wrong += ["", "refract_", "refract_" + "0" * 40, "\0", "\N{OWL}", "' OR 1=1 --", "%", "x" * 3_000]
    wrong.append(hashlib.blake2b(key.encode(), digest_size=32).hexdigest())
    answers = set()
    for text in wrong:
        noting.asked.clear()
        noting.transactions = 0
        answer = await resolve(identity, text)
        assert said(answer) == REFUSED, text
        varying = ("date", "x-correlation-id")
        answers.add(tuple(field for field in sorted(answer.headers.items()) if field[0] not in varying))
        assert (noting.asked, noting.transactions) == (["resolve_key"], 0), text
    assert len(answers) == 1
    assert (await resolve(identity, key)).status == 200


async def test_who_is_let_in_again_has_their_keys_again(identity: IdentityWorld) -> None:
    alice = await owner(identity)
    made = await alice.makes()
    await administering(identity).change_status(alice.user.id, "suspended")
    assert said(await resolve(identity, made["key"])) == REFUSED
    await administering(identity).change_status(alice.user.id, "active")
    answer = await resolve(identity, made["key"])
    assert answer.status == 200
    # Of the generation that is alive: the gateway takes older ones for dead.
    [revoked] = await told(identity, "user.revoked")
    assert claims_of(identity, answer.json["token"]).generation == revoked["generation"] == 1


async def test_who_is_no_administrator_any_more_lets_nobody_send(identity: IdentityWorld) -> None:
    root = await owner(identity, role="administrator")
    made = await root.makes(**SENDER | {"scopes": ["sms:send", "links:read"]})
    answer = (await resolve(identity, made["key"])).json
    assert (answer["scopes"], answer["sms_user_id"]) == (["links:read", "sms:send"], 101)
    await administering(identity).change_role(root.user.id, "user")
    assert await told(identity, "user.revoked"), "by that the gateway asks again"
    answer = (await resolve(identity, made["key"])).json
    assert (answer["scopes"], answer["sms_user_id"]) == (["links:read"], None)
    await administering(identity).change_role(root.user.id, "administrator")
    answer = (await resolve(identity, made["key"])).json
    assert (answer["scopes"], answer["sms_user_id"]) == (["links:read", "sms:send"], 101)


@ON_SQLITE
async def test_wrong_questions_are_refused(identity: IdentityWorld) -> None:
    for body in (
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"key": 7}',
        b'{"key": null}',
        b'{"key": "\\ud800"}',
        b'{"key": "x", "uses": -1}',
        b'{"key": "x", "uses": "1"}',
        b'{"key": "x", "uses": 1.5}',
        b'{"key": "x", "uses": true}',
        b'{"key": "x", "uses": 2147483648}',
        b'{"key": "%b"}' % (b"x" * 4_096),
    ):
        answer = await identity.call("POST", "/keys/resolve", body)
        assert answer.status == 400, body
        assert "x" * 20 not in answer.body.decode()
    for body in (
        b"",
        b"{}",
        b'{"uses": []}',
        b'{"uses": {"x": 1}}',
        b'{"uses": {"0": 1}}',
        b'{"uses": {"+1": 1}}',
        b'{"uses": {" 1": 1}}',
        b'{"uses": {"1.0": 1}}',
        b'{"uses": {"9223372036854775808": 1}}',
        b'{"uses": {"1": -1}}',
        b'{"uses": {"1": null}}',
        b'{"uses": {"1": 2147483648}}',
        b'{"uses": {%b}}' % b",".join(b'"%d": 1' % number for number in range(1, 10_002)),
    ):
        assert (await tell(identity, body)).status == 400, body[:40]
    assert (await identity.call("GET", "/keys/resolve")).status == 405


@ON_SQLITE
async def test_they_are_for_the_inside(identity: IdentityWorld) -> None:
    inner = {"/keys/resolve", "/keys/uses"}
    public = {(method, row.forward) for row in ROUTES if row.target == "identity" for method in row.methods}
    assert not inner & {path for _, path in public}
    assert ("POST", "/keys/{id}") not in public
    assert not inner & (await identity.call("GET", "/docs/openapi.json")).json["paths"].keys()


async def test_a_database_that_is_away_is_no_wrong_key(identity: IdentityWorld) -> None:
    await identity.serve()
    await identity.database.close()
    away = (503, {"error": "service unavailable"})
    assert said(await resolve(identity, "refract_")) == away
    assert said(await tell(identity, {"1": 1})) == away


# How often a key was used.


async def test_uses_are_counted_as_they_are_told(identity: IdentityWorld, noting: Noting) -> None:
    alice = await owner(identity)
    first, second = await alice.makes(), await alice.makes()
    noting.transactions = 0
    await resolve(identity, first["key"])
    await resolve(identity, first["key"], uses=0)
    assert noting.transactions == 0, "nothing to count is nothing to write"
    assert [row["last_used_at"] for row in await kept(identity)] == [None, None]
    identity.clock.advance(60)
    assert (await resolve(identity, first["key"], uses=1_000)).status == 200
    assert noting.transactions == 1
    identity.clock.advance(60)
    answer = await tell(identity, {str(first["id"]): 20, str(second["id"]): 3, str(second["id"] + 1): 9})
    assert (answer.status, answer.body) == (204, b"")
    assert noting.transactions == 2
    newest, oldest = await alice.sees()
    assert (oldest["usage_count"], newest["usage_count"]) == (1_020, 3)
    assert oldest["last_used_at"] == newest["last_used_at"] == "2026-03-01T12:02:00Z"
    # A clock that is set back makes nothing younger; and what is told twice in nothing is not written.
    identity.clock.advance(-90)
    await tell(identity, {str(first["id"]): 1, str(second["id"]): 0})
    newest, oldest = await alice.sees()
    assert (oldest["usage_count"], oldest["last_used_at"]) == (1_021, "2026-03-01T12:02:00Z")
    assert (await tell(identity, {})).status == (await tell(identity, {"1": 0})).status == 204
    assert noting.transactions == 3


@ON_SQLITE
async def test_uses_of_a_key_that_is_refused_were_made_before(identity: IdentityWorld) -> None:
    alice = await owner(identity)
    made = await alice.makes()
    await alice.revokes(made["id"])
    assert said(await resolve(identity, made["key"], uses=7)) == REFUSED
    [seen] = await alice.sees("?status=all")
    assert seen["usage_count"] == 7


async def test_what_is_told_at_once_is_written_together_and_none_is_lost(
    identity: IdentityWorld, noting: Noting
) -> None:
    alice = await owner(identity)
    made = [await alice.makes() for _ in range(3)]
    noting.transactions, noting.gate = 0, asyncio.Event()
    uses = KeyUses(identity.database, identity.clock)
    counting = [asyncio.create_task(uses.count({made[0]["id"]: 1}))]
    await eventually(lambda: noting.transactions)
    counting += [asyncio.create_task(uses.count({made[number % 3]["id"]: 1})) for number in range(1, 60)]
    await asyncio.sleep(0)  # each has come as far as it can
    noting.gate.set()
    await asyncio.gather(*counting)
    assert noting.transactions == 2, "the first, and all that came while it was written"
    assert [row["usage_count"] for row in await kept(identity)] == [20, 20, 20]


# Nobody waits for ever.


@ON_POSTGRESQL
async def test_a_key_that_is_made_while_the_account_ends_is_not_made(identity: IdentityWorld) -> None:
    alice = await owner(identity)
    keys, wish = Keys(identity.database, identity.clock), KeyWish.of("Blog", ["links:read"], None, None, START)
    async with asyncio.timeout(60):
        async with identity.database.transaction() as tx:
            administrators = await hold_administrators(tx)
            locked = await Users().get(tx, alice.user.id)
            making = asyncio.create_task(keys.make(claims_of(identity, alice.token), wish))
            await eventually(lambda: identity.database.fetch(WAITING))
            await erase(tx, locked, administrators, identity.clock.now())
        with pytest.raises(Unauthenticated):
            await making
    assert await kept(identity) == []


@ON_POSTGRESQL
@pytest.mark.parametrize("meanwhile", ["uses", "the end of the account"])
async def test_whoever_takes_several_keys_takes_them_in_one_order(identity: IdentityWorld, meanwhile: str) -> None:
    """Otherwise two would hold what the other waits for, and PostgreSQL would end one of them."""
    alice = await owner(identity)
    first, second = [(await alice.makes())["id"] for _ in range(2)]
    at = {"now": identity.clock.now(), "uses": 1}
    async with identity.database.transaction() as tx:
        await tx.execute(MOVE_BEHIND, id=first, created_at=START - timedelta(days=1))

    async def count() -> None:
        await KeyUses(identity.database, identity.clock).count({second: 1, first: 1})

    async def end() -> None:
        async with identity.database.transaction() as tx:
            administrators = await hold_administrators(tx)
            await erase(tx, await Users().get(tx, alice.user.id), administrators, identity.clock.now())

    async with asyncio.timeout(60):
        async with identity.database.transaction() as tx:
            await tx.execute(COUNT_USES, id=first, **at)
            other = asyncio.create_task(count() if meanwhile == "uses" else end())
            await eventually(lambda: identity.database.fetch(WAITING))
            await tx.execute(COUNT_USES, id=second, **at)
        await other
    counts = [row["usage_count"] for row in await kept(identity)]
    assert counts == ([2, 2] if meanwhile == "uses" else [])
