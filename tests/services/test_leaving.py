"""Signing out and what it leaves behind: one dead token, told once, in the transaction of the cause; on both modes."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from refract.kernel.errors import NotFound, Unavailable
from refract.runtime.statements import Statement
from refract.runtime.tokens import Claims, TokenVerifier
from refract.services.gateway.api import ROUTES
from refract.services.identity.commands.revoking import TOKENS_OF_ONE_USER, revoke_all, revoke_token
from refract.services.identity.commands.sweeping import SWEEP_BATCH, SWEEP_SECONDS, Sweeper
from refract.services.identity.domain.accounts import User
from refract.services.identity.http.cookies import SESSION_COOKIE
from refract.services.identity.queries.revocations import RevocationQueries
from tests.support.clocks import START
from tests.support.databases import empty_location
from tests.support.identity import SECRET, IdentityWorld, identity, identity_location
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["empty_location", "identity", "identity_location"]

ROWS = Statement("rows", "Reads every revocation.", "SELECT * FROM revocations ORDER BY id")
MAILED = Statement("mailed", "Reads what was mailed.", "SELECT token_hash FROM one_time_tokens ORDER BY token_hash")
NOBODY = "00000000-0000-4000-8000-000000000000"
DAY = timedelta(days=1)

# What has nothing to do with the engine is shown on the one that is made faster.
on_one_mode = pytest.mark.parametrize("empty_location", ["embedded"], indirect=True)


def claims_of(identity: IdentityWorld, token: str) -> Claims:
    return TokenVerifier([SECRET], identity.clock).verify(token)


def signed(identity: IdentityWorld, user: User) -> str:
    return identity.signer.sign(user.id, user.email, generation=user.token_generation).token


async def revoked(identity: IdentityWorld) -> list[dict[str, Any]]:
    """What was announced of revocations."""
    return [
        event["payload"]["payload"] for event in await identity.announced() if event["event_type"] == "user.revoked"
    ]


async def listed(identity: IdentityWorld) -> list[dict[str, Any]]:
    """The list as the gateway reads it."""
    answer = await identity.call("GET", "/revocations")
    assert answer.status == 200, answer.body
    assert "next_cursor" not in answer.json
    found: list[dict[str, Any]] = answer.json["revocations"]
    return found


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


# Signing out.


async def test_signing_out_ends_one_token_and_tells_of_it(identity: IdentityWorld) -> None:
    user = await identity.add()
    token, other = signed(identity, user), signed(identity, user)
    answer = await identity.call("POST", "/logout", token=token)
    assert (answer.status, answer.body) == (204, b"")
    ended = claims_of(identity, token)
    [row] = await listed(identity)
    assert (row["user_id"], row["token_id"]) == (user.id, ended.token_id)
    assert "generation" not in row
    assert moment(row["until"]) == ended.expires_at + timedelta(minutes=1)
    [event] = await revoked(identity)
    assert event == row
    assert claims_of(identity, other).token_id != row["token_id"]
    assert (await identity.users())[0]["token_generation"] == 0
    # Again is no error, and no second event.
    assert (await identity.call("POST", "/logout", token=token)).status == 204
    assert len(await listed(identity)) == len(await revoked(identity)) == 1


@on_one_mode
async def test_it_ends_the_session_of_a_browser(identity: IdentityWorld) -> None:
    token = signed(identity, await identity.add())
    answer = await identity.call("POST", "/logout", token=token)
    assert answer.headers["set-cookie"] == f"{SESSION_COOKIE}=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0; Secure"
    await identity.serve(base_url="http://sho.rt")
    answer = await identity.call("POST", "/logout", token=token)
    assert answer.headers["set-cookie"] == f"{SESSION_COOKIE}=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0"


@on_one_mode
async def test_a_stranger_ends_nothing(identity: IdentityWorld) -> None:
    for headers in ((), ("Authorization: Bearer x.y.z",), ("Cookie: refract_session=x.y.z",)):
        answer = await identity.call("POST", "/logout", None, *headers)
        assert (answer.status, answer.json) == (401, {"error": "unauthorized"})
    assert await listed(identity) == []


async def test_whoever_signs_out_all_day_is_signed_out_everywhere(identity: IdentityWorld) -> None:
    user = await identity.add()
    async with identity.database.transaction() as tx:
        for _ in range(TOKENS_OF_ONE_USER):
            await revoke_token(tx, claims_of(identity, signed(identity, user)), START)
    assert len(await listed(identity)) == TOKENS_OF_ONE_USER
    assert (await identity.call("POST", "/logout", token=signed(identity, user))).status == 204
    [row] = await listed(identity)
    assert (row["user_id"], row["generation"]) == (user.id, 1)
    assert "token_id" not in row
    assert (await revoked(identity))[-1] == row
    # From there on it begins anew.
    later = identity.signer.sign(user.id, user.email, generation=1)
    assert (await identity.call("POST", "/logout", token=later.token)).status == 204
    assert [row.get("token_id") for row in await listed(identity)] == [None, later.token_id]


async def test_a_token_without_an_id_dies_with_all_others(identity: IdentityWorld) -> None:
    user = await identity.add()
    nameless = replace(claims_of(identity, signed(identity, user)), token_id="")
    async with identity.database.transaction() as tx:
        await revoke_token(tx, nameless, START)
    [row] = await listed(identity)
    assert (row["user_id"], row["generation"]) == (user.id, 1)
    assert (await identity.users())[0]["token_generation"] == 1


async def test_a_token_may_outlive_its_user_and_be_ended(identity: IdentityWorld) -> None:
    for subject in (NOBODY, "somebody"):
        token = identity.signer.sign(subject, "gone@example.com", generation=4).token
        assert (await identity.call("POST", "/logout", token=token)).status == 204
        nameless = replace(claims_of(identity, token), token_id="")
        async with identity.database.transaction() as tx:
            await revoke_token(tx, nameless, START)
        by_id, by_generation = (await listed(identity))[-2:]
        assert (by_id["user_id"], by_id["token_id"]) == (subject, claims_of(identity, token).token_id)
        assert (by_generation["user_id"], by_generation["generation"]) == (subject, 5)


# All at once.


async def test_ending_all_raises_the_generation_and_replaces_what_was_said_before(identity: IdentityWorld) -> None:
    alice, bob = await identity.add(), await identity.add("bob@example.com")
    await identity.call("POST", "/logout", token=signed(identity, alice))
    await identity.call("POST", "/logout", token=signed(identity, bob))
    async with identity.database.transaction() as tx:
        assert await revoke_all(tx, alice.id, START) == 1
        assert await revoke_all(tx, alice.id, START) == 2
    rows = await listed(identity)
    assert [(row["user_id"], row.get("generation")) for row in rows] == [(bob.id, None), (alice.id, 2)]
    # Longer than any token that is being signed at this moment, with the old generation, can live.
    assert moment(rows[1]["until"]) > START + DAY
    generations = {row["id"]: row["token_generation"] for row in await identity.users()}
    assert generations == {alice.id: 2, bob.id: 0}
    async with identity.database.transaction() as tx:
        for nobody in (NOBODY, "somebody"):
            with pytest.raises(NotFound):
                await revoke_all(tx, nobody, START)


async def test_it_is_told_with_the_cause_or_not_at_all(identity: IdentityWorld) -> None:
    user = await identity.add()

    async def change_of_mind() -> None:
        async with identity.database.transaction() as tx:
            await revoke_all(tx, user.id, START)
            await revoke_token(tx, claims_of(identity, signed(identity, user)), START)
            raise RuntimeError("it did not come to that")

    with pytest.raises(RuntimeError):
        await change_of_mind()
    assert await listed(identity) == []
    assert await revoked(identity) == []
    assert (await identity.users())[0]["token_generation"] == 0


# The list.


async def test_the_list_has_the_living_only_and_pages(identity: IdentityWorld) -> None:
    user = await identity.add()
    tokens = [claims_of(identity, signed(identity, user)) for _ in range(5)]
    async with identity.database.transaction() as tx:
        for number, claims in enumerate(tokens):
            await revoke_token(tx, replace(claims, expires_at=START + timedelta(hours=number)), START)
    identity.clock.advance(60)  # the first is over now, to the second
    queries = RevocationQueries(identity.database, identity.clock, page=2)
    seen, after = [], ""
    for expected in (2, 2):
        page = await queries.page(after)
        assert len(page.revocations) == expected
        seen += [view.token_id for view in page.revocations]
        after = page.next_cursor or ""
    assert seen == [claims.token_id for claims in tokens[1:]]
    assert after == "", "a last page that is full has no other behind it"


async def test_a_cursor_that_is_none_is_refused(identity: IdentityWorld) -> None:
    for after in ("x", "%00", "1%27%20OR%201=1", "0190"):
        answer = await identity.call("GET", f"/revocations?after={after}")
        assert (answer.status, answer.json) == (400, {"error": "after is not a cursor"})


@on_one_mode
async def test_the_list_is_for_the_inside(identity: IdentityWorld) -> None:
    assert not [route for route in ROUTES if route.target == "identity" and "revocations" in route.forward]
    documents = await identity.call("GET", "/docs/openapi.json")
    assert "/logout" in documents.json["paths"]
    assert "/revocations" not in documents.json["paths"]


# Sweeping.

ADD_MAILED = Statement(
    "add_mailed",
    "Keeps a mailed token.",
    """
    INSERT INTO one_time_tokens (token_hash, user_id, purpose, expires_at, created_at)
    VALUES (:name, :user_id, 'reset', :expires_at, :expires_at)
    """,
)


async def test_the_sweep_forgets_what_is_over_and_nothing_else(identity: IdentityWorld) -> None:
    user = await identity.add()
    claims = claims_of(identity, signed(identity, user))
    async with identity.database.transaction() as tx:
        for number in range(3):
            expires_at = START + timedelta(hours=number)
            await revoke_token(tx, replace(claims, token_id=f"t{number}", expires_at=expires_at), START)
            await tx.execute(ADD_MAILED, name=f"m{number}", user_id=user.id, expires_at=expires_at)
    identity.clock.advance(3600)
    sweeper = Sweeper(identity.database, identity.clock)
    assert await sweeper.sweep() == 3  # the first revocation, and the first two mailed ones, to the second
    assert [row["token_id"] for row in await identity.database.fetch(ROWS)] == ["t1", "t2"]
    assert [row["token_hash"] for row in await identity.database.fetch(MAILED)] == ["m2"]
    # It goes on until nothing is left.
    columns = ("id", "user_id", "token_id", "until", "created_at")
    rows = [(f"{number:06}", NOBODY, f"t{number}", START, START) for number in range(2 * SWEEP_BATCH + 1)]
    async with identity.database.transaction() as tx:
        await tx.insert_many("revocations", columns, rows)
    assert await sweeper.sweep() == 2 * SWEEP_BATCH + 1
    assert await sweeper.sweep() == 0


@on_one_mode
async def test_it_sweeps_by_itself_and_a_database_that_is_away_does_not_end_it(
    identity: IdentityWorld, caplog: pytest.LogCaptureFixture
) -> None:
    rounds: list[float] = []

    class AwayAtFirst(Sweeper):
        async def sweep(self) -> int:
            if not rounds:
                raise Unavailable("database", "nobody answers")
            return await super().sweep()

    async def pause(seconds: float) -> None:
        rounds.append(seconds)
        await asyncio.sleep(0.01)

    async def swept() -> bool:
        return not await identity.database.fetch(ROWS)

    await identity.call("POST", "/logout", token=signed(identity, await identity.add()))
    assert "sweeper" in {task.name for task in identity.service.tasks}
    identity.clock.advance(2 * 86_400)
    async with running(AwayAtFirst(identity.database, identity.clock, pause=pause).run):
        await eventually(swept)
    assert set(rounds) == {SWEEP_SECONDS}
    assert caplog.messages.count("sweep failed; will retry") == 1
