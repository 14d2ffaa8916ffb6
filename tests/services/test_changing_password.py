"""A new password for whoever knows the old one: tokens of before are dead, and a found token leads to no password."""

import asyncio
from typing import Any

import pytest

from refract.runtime.statements import Statement
from refract.runtime.tokens import TokenVerifier
from refract.services.gateway.domain.revocations import Revocation, Revocations
from refract.services.identity.commands.revoking import revoke_all
from refract.services.identity.domain.accounts import User
from refract.services.identity.http.cookies import SESSION_COOKIE
from tests.support.clocks import START
from tests.support.databases import empty_location
from tests.support.http import Answer
from tests.support.identity import EMAIL, ON_SQLITE, PASSWORD, SECRET, IdentityWorld, identity, identity_location
from tests.support.waiting import eventually

__all__ = ["empty_location", "identity", "identity_location"]

NEW = "another one, as quiet"

# What has nothing to do with the engine is shown on the one that is made faster.
on_one_mode = pytest.mark.parametrize("empty_location", ["embedded"], indirect=True)

SUSPEND = Statement("suspend", "Suspends everybody.", "UPDATE users SET status = 'suspended'")
FORGET_PASSWORD = Statement("forget_password", "Leaves nobody a password.", "UPDATE users SET password_hash = NULL")
MAIL = Statement(
    "mail",
    "Keeps a mailed token.",
    """
    INSERT INTO one_time_tokens (token_hash, user_id, purpose, expires_at, created_at)
    VALUES (:name, :user_id, :purpose, :expires_at, :expires_at)
    """,
)
UNUSED = Statement("unused", "Reads what can be used.", "SELECT token_hash FROM one_time_tokens WHERE used_at IS NULL")


def signed(identity: IdentityWorld, user: User, generation: int = 0) -> str:
    return identity.signer.sign(user.id, user.email, generation=generation).token


async def change(identity: IdentityWorld, token: str, current: str = PASSWORD, new: str = NEW, *headers: str) -> Answer:
    return await identity.call("POST", "/password", {"current": current, "new": new}, *headers, token=token)


def said(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.json.get("error") if answer.body else None


async def dead(identity: IdentityWorld, token: str) -> bool:
    """Whether a gateway that has read the list takes a token for dead."""
    known = Revocations()
    for row in (await identity.call("GET", "/revocations")).json["revocations"]:
        known.apply(Revocation(row["user_id"], START, row.get("token_id", ""), row.get("generation", 0)))
    return known.is_revoked(TokenVerifier([SECRET], identity.clock).verify(token))


async def test_the_new_password_counts_and_tokens_of_before_are_dead(identity: IdentityWorld) -> None:
    user = await identity.add()
    mine, elsewhere = signed(identity, user), (await identity.login()).json["token"]
    assert not await dead(identity, mine)
    answer = await change(identity, mine)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["set-cookie"].startswith(f"{SESSION_COOKIE}=; ")
    assert await dead(identity, mine)
    assert await dead(identity, elsewhere)
    assert said(await identity.login()) == (401, "invalid credentials")
    fresh = (await identity.login(EMAIL, NEW)).json["token"]
    assert not await dead(identity, fresh)
    [event] = [event for event in await identity.announced() if event["event_type"] == "user.revoked"]
    assert event["payload"]["payload"]["generation"] == 1
    assert (await identity.users())[0]["updated_at"] == identity.clock.now()


@ON_SQLITE
async def test_a_flood_of_registrations_is_no_matter(identity: IdentityWorld) -> None:
    user = await identity.add()
    identity.hasher._strangers._most = 0
    assert said(await identity.register("bob@example.com")) == (503, "service unavailable")
    assert (await change(identity, signed(identity, user))).status == 204
    assert (await identity.login(EMAIL, NEW)).status == 200


async def test_the_second_change_needs_a_token_of_after_the_first(identity: IdentityWorld) -> None:
    token = signed(identity, await identity.add())
    assert (await change(identity, token)).status == 204
    assert said(await change(identity, token, NEW, "and a third sentence")) == (401, "unauthorized")
    fresh = (await identity.login(EMAIL, NEW)).json["token"]
    assert (await change(identity, fresh, NEW, "and a third sentence")).status == 204
    assert await dead(identity, fresh)


@on_one_mode
async def test_without_the_old_password_nothing_changes(identity: IdentityWorld) -> None:
    token = signed(identity, await identity.add())
    for wrong in ("wrong password", "", PASSWORD.upper(), NEW):
        assert said(await change(identity, token, wrong)) == (403, "current password is wrong")
    assert not await dead(identity, token)
    assert (await identity.login()).status == 200


async def test_after_ten_wrong_ones_no_other_is_tried(identity: IdentityWorld) -> None:
    token = signed(identity, await identity.add())
    for _ in range(10):
        assert (await change(identity, token, "wrong password")).status == 403
    refused = await change(identity, token)
    assert said(refused) == (429, "rate limit exceeded")
    assert int(refused.headers["retry-after"]) > 0
    assert identity.hasher.calls.count("compare") == 10
    assert (await identity.login()).status == 200  # who found a token does not shut its owner out


@ON_SQLITE
async def test_strangers_who_fail_to_sign_in_keep_the_owner_from_nothing(identity: IdentityWorld) -> None:
    user = await identity.add()
    token = signed(identity, user)
    for name in (EMAIL, user.id, f"{user.id}\0", f"\0{user.id}"):  # whatever they call the account
        for number in range(10):
            assert (await identity.login(name, "a guess", f"X-Forwarded-For: 198.51.100.{number}")).status == 401
    assert (await identity.login()).status == 429
    assert (await change(identity, token)).status == 204


@on_one_mode
async def test_a_wrong_request_is_told_so_and_costs_no_bcrypt(identity: IdentityWorld) -> None:
    token = signed(identity, await identity.add())
    for body, message in (
        ({"current": PASSWORD, "new": "7 signs"}, "password must be at least 8 characters"),
        ({"current": PASSWORD}, "password must be at least 8 characters"),
        ({"current": 7, "new": NEW}, "invalid request body: current: expected string, got integer"),
        ({"current": PASSWORD, "new": "x" * 1024}, "request body too large"),
        (b"{", "invalid request body"),
    ):
        assert said(await identity.call("POST", "/password", body, token=token)) == (400, message)
    assert identity.hasher.calls == []


@on_one_mode
async def test_the_policy_holds_here_too(identity: IdentityWorld) -> None:
    await identity.serve(password_policy="strict")
    token = signed(identity, await identity.add())
    assert said(await change(identity, token, PASSWORD, "password123")) == (400, "password is too common")


async def test_a_stranger_is_refused_before_anything_is_read(identity: IdentityWorld) -> None:
    assert said(await identity.call("POST", "/password", b"[")) == (401, "unauthorized")
    assert said(await identity.call("POST", "/password", b"x" * 4096)) == (401, "unauthorized")
    nobody = identity.signer.sign("00000000-0000-4000-8000-000000000000", EMAIL).token
    assert said(await change(identity, nobody)) == (401, "unauthorized")
    somebody = identity.signer.sign("somebody", EMAIL).token
    assert said(await change(identity, somebody)) == (401, "unauthorized")
    assert identity.hasher.calls == []


@on_one_mode
async def test_the_suspended_change_nothing(identity: IdentityWorld) -> None:
    token = signed(identity, await identity.add())
    async with identity.database.transaction() as tx:
        await tx.execute(SUSPEND)
    assert said(await change(identity, token)) == (401, "unauthorized")


@on_one_mode
async def test_who_has_no_password_has_none_to_change_and_costs_the_same(identity: IdentityWorld) -> None:
    token = signed(identity, await identity.add())
    async with identity.database.transaction() as tx:
        await tx.execute(FORGET_PASSWORD)
    assert said(await change(identity, token)) == (403, "current password is wrong")
    assert identity.hasher.calls == ["compare_nothing"]


async def test_of_two_changes_at_once_one_counts(identity: IdentityWorld) -> None:
    token = signed(identity, await identity.add())
    both = asyncio.Barrier(2)
    identity.hasher.before = both.wait
    answers = await asyncio.gather(
        change(identity, token, PASSWORD, "one of the two"), change(identity, token, PASSWORD, "the other one")
    )
    identity.hasher.before = None
    assert sorted(map(said, answers)) == [(204, None), (401, "unauthorized")]
    assert (await identity.users())[0]["token_generation"] == 1
    winner = ("one of the two", "the other one")[[answer.status for answer in answers].index(204)]
    assert (await identity.login(EMAIL, winner)).status == 200


async def test_whoever_is_just_signing_in_with_the_old_password_gets_a_dead_token(identity: IdentityWorld) -> None:
    user = await identity.add()
    changed = asyncio.Event()
    identity.hasher.before = changed.wait
    signing_in = asyncio.create_task(identity.login())
    await eventually(lambda: identity.hasher.calls == ["compare"])
    async with identity.database.transaction() as tx:
        await revoke_all(tx, user.id, START)
    changed.set()
    answer = await signing_in
    assert answer.status == 200
    assert await dead(identity, answer.json["token"])


async def test_reset_links_that_are_on_their_way_are_over(identity: IdentityWorld) -> None:
    user, other = await identity.add(), await identity.add("bob@example.com")
    soon = identity.clock.now().replace(year=2030)
    async with identity.database.transaction() as tx:
        for name, owner, purpose in (("r", user, "reset"), ("v", user, "verify"), ("o", other, "reset")):
            await tx.execute(MAIL, name=name, user_id=owner.id, purpose=purpose, expires_at=soon)
    assert (await change(identity, signed(identity, user))).status == 204
    assert {row["token_hash"] for row in await identity.database.fetch(UNUSED)} == {"v", "o"}


@on_one_mode
async def test_no_password_is_logged(identity: IdentityWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    token = signed(identity, await identity.add())
    await change(identity, token, "a wrong old one", NEW)
    await change(identity, token)
    assert "password changed" in caplog.messages
    logged = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    for secret in ("a wrong old one", NEW, PASSWORD, token):
        assert secret not in logged
