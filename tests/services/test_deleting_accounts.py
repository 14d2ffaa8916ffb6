"""The end of an account: by its owner with the password, or by an operator; nothing of the user stays in identity."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from refract.kernel.errors import NotFound
from refract.runtime import migrations
from refract.runtime.statements import Statement
from refract.runtime.tokens import TokenVerifier
from refract.runtime.transactions import StatementFailed
from refract.services.gateway.domain.revocations import Revocation, Revocations
from refract.services.identity.commands.administering import Administering
from refract.services.identity.commands.deleting import LastAdministrator, erase, hold_administrators
from refract.services.identity.commands.mailing import KEEP_TOKEN, MailLimits, Mails
from refract.services.identity.commands.resetting import AskingForReset
from refract.services.identity.commands.verifying import Verifying
from refract.services.identity.domain.accounts import EmailTaken, User
from refract.services.identity.domain.one_time import InvalidToken, OneTimeToken, Purpose, ResetAsked, token_hash
from refract.services.identity.http.cookies import SESSION_COOKIE
from refract.services.identity.store import Users
from tests.support.clocks import START
from tests.support.databases import Location, empty_location, open_database
from tests.support.http import Answer
from tests.support.identity import (
    BASE_URL,
    EMAIL,
    ON_SQLITE,
    PASSWORD,
    SECRET,
    IdentityWorld,
    identity,
    identity_location,
)
from tests.support.upgrades import migrate_before
from tests.support.waiting import eventually

__all__ = ["empty_location", "identity", "identity_location"]

pytestmark = pytest.mark.usefixtures("patient_locks")

TABLES = ("users", "one_time_tokens", "revocations")
FOREIGN = Statement(
    "foreign",
    "Makes an account one of another issuer.",
    "UPDATE users SET oidc_issuer = 'https://issuer.example', oidc_subject = 'ann-there' WHERE id = :id",
)
WAITING = Statement(
    "waiting",
    "Finds who waits.",
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
)


def signed(identity: IdentityWorld, user: User, generation: int = 0) -> str:
    return identity.signer.sign(user.id, user.email, generation=generation).token


async def leave(identity: IdentityWorld, token: str, password: str = PASSWORD, *headers: str) -> Answer:
    return await identity.call("DELETE", "/me", {"password": password}, *headers, token=token)


def said(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.json.get("error") if answer.body else None


def administering(identity: IdentityWorld) -> Administering:
    return Administering(identity.database, identity.hasher, "length", identity.clock)


async def everything(identity: IdentityWorld) -> str:
    """What identity knows of its users, as one text."""
    statements = [Statement("all", "Reads all.", f"SELECT * FROM {table}") for table in TABLES]
    return "\n".join([str(dict(row)) for one in statements for row in await identity.database.fetch(one)])


async def mailed(identity: IdentityWorld, user: User, purpose: Purpose) -> str:
    """A token as it came by mail."""
    token = OneTimeToken.issue(purpose, user.id, identity.clock.now())
    values = {"token_hash": token_hash(token.text), "purpose": purpose.value, "expires_at": token.expires_at}
    async with identity.database.transaction() as tx:
        await tx.execute(KEEP_TOKEN, **values, user_id=user.id, created_at=token.created_at)
    return token.text


async def farewells(identity: IdentityWorld) -> list[dict[str, Any]]:
    return [event for event in await identity.announced() if event["event_type"] == "user.deleted"]


async def dead(identity: IdentityWorld, token: str) -> bool:
    """Whether a gateway that has read the list takes a token for dead."""
    known = Revocations()
    for row in (await identity.call("GET", "/revocations")).json["revocations"]:
        known.apply(Revocation(row["user_id"], START, row.get("token_id", ""), row.get("generation", 0)))
    return known.is_revoked(TokenVerifier([SECRET], identity.clock).verify(token))


async def test_nothing_of_the_user_stays_and_others_are_told(identity: IdentityWorld) -> None:
    user = await identity.add(email_verified_at=identity.clock.now())
    mine, elsewhere = signed(identity, user), (await identity.login()).json["token"]
    reset = await mailed(identity, user, Purpose.RESET)
    verification = await mailed(identity, user, Purpose.VERIFY)
    answer = await leave(identity, mine)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["set-cookie"].startswith(f"{SESSION_COOKIE}=; ")
    [row] = await identity.users()
    assert (row["email"], row["password_hash"], row["status"]) == (f"deleted_{user.id}", None, "deleted")
    assert (row["role"], row["email_verified_at"]) == ("user", None)
    assert EMAIL not in await everything(identity)
    [event] = await farewells(identity)
    assert event["payload"]["payload"] == {"user_id": user.id}
    assert event["exchange"] == "smap.events"
    assert await dead(identity, mine)
    assert await dead(identity, elsewhere)
    assert said(await identity.login()) == (401, "invalid credentials")
    assert said(await identity.login(f"deleted_{user.id}", "")) == (401, "invalid credentials")
    assert said(await identity.call("POST", "/verify", {"token": verification})) == (400, "invalid or expired token")
    confirmed = await identity.call("POST", "/reset/confirm", {"token": reset, "password": PASSWORD})
    assert said(confirmed) == (400, "invalid or expired token")


async def test_the_address_may_register_anew_and_is_somebody_else(identity: IdentityWorld) -> None:
    user = await identity.add()
    assert (await leave(identity, signed(identity, user))).status == 204
    again = await identity.register()
    assert again.status == 201
    assert again.json["user_id"] != user.id
    assert (await identity.login()).status == 200
    assert (await leave(identity, (await identity.login()).json["token"])).status == 204
    assert [row["status"] for row in await identity.users()] == ["deleted", "deleted"]


async def test_the_second_time_finds_the_token_dead(identity: IdentityWorld) -> None:
    token = signed(identity, await identity.add())
    first, second = await asyncio.gather(leave(identity, token), leave(identity, token))
    assert sorted([first.status, second.status]) == [204, 401]
    assert said(await leave(identity, token)) == (401, "unauthorized")
    assert len(await farewells(identity)) == 1


async def test_without_the_password_nothing_happens_and_ten_are_enough(identity: IdentityWorld) -> None:
    token = signed(identity, await identity.add())
    assert said(await leave(identity, token, "")) == (403, "current password is wrong")
    for _ in range(9):
        assert said(await leave(identity, token, "a guess")) == (403, "current password is wrong")
    refused = await leave(identity, token)
    assert said(refused) == (429, "rate limit exceeded")
    assert int(refused.headers["retry-after"]) > 0
    changed = await identity.call("POST", "/password", {"current": PASSWORD, "new": "another one"}, token=token)
    assert changed.status == 429, "they are one counter: who found a token must not try twice as many"
    assert await farewells(identity) == []
    assert (await identity.login()).status == 200


@ON_SQLITE
async def test_a_wrong_request_is_told_so(identity: IdentityWorld) -> None:
    token = signed(identity, await identity.add())
    for body, message in (
        ({"password": 7}, "invalid request body: password: expected string, got integer"),
        ({"password": "x" * 1024}, "request body too large"),
        (b"{", "invalid request body"),
        (b"", "invalid request body"),
        (b"[]", "invalid request body: expected object, got array"),
    ):
        assert said(await identity.call("DELETE", "/me", body, token=token)) == (400, message), body
    assert (await identity.call("DELETE", "/me", token=token)).status == 400
    assert said(await identity.call("DELETE", "/me", {"password": PASSWORD})) == (401, "unauthorized")
    assert identity.hasher.calls == []
    assert (await identity.users())[0]["status"] == "active"


# The last administrator.


async def test_the_last_administrator_stays(identity: IdentityWorld) -> None:
    await identity.add("suspended@example.com", role="administrator", status="suspended")
    last = await identity.add(role="administrator")
    message = "the last administrator cannot be deleted: make another one first"
    assert said(await leave(identity, signed(identity, last))) == (409, message)
    with pytest.raises(LastAdministrator):
        await administering(identity).delete(EMAIL)
    assert (await identity.login()).status == 200, "nothing was ended"
    other = await identity.add("other@example.com", role="administrator")
    assert (await leave(identity, signed(identity, last))).status == 204
    with pytest.raises(LastAdministrator):
        await administering(identity).delete(other.id)


async def test_of_two_last_administrators_who_leave_at_once_one_stays(identity: IdentityWorld) -> None:
    for turn in range(3):
        users = [await identity.add(f"{turn}-{name}@example.com", role="administrator") for name in ("a", "b")]
        answers = await asyncio.gather(*(leave(identity, signed(identity, user)) for user in users))
        assert sorted(answer.status for answer in answers) == [204, 409]
        [left] = [user for user, answer in zip(users, answers, strict=True) if answer.status == 409]
        await administering(identity).change_role(left.id, "user")  # whoever means it can
        assert (await administering(identity).delete(left.id))[1]


# By an operator.


async def test_an_operator_deletes_by_address_or_id_also_who_is_suspended(identity: IdentityWorld) -> None:
    user = await identity.add(status="suspended")
    foreign = await identity.add("there@example.com", None)
    async with identity.database.transaction() as tx:
        await tx.execute(FOREIGN, id=foreign.id)
    for who in (EMAIL, foreign.id):
        left, changed = await administering(identity).delete(who)
        assert (left.status, changed) == ("deleted", True)
    assert (await administering(identity).delete(user.id))[1] is False
    with pytest.raises(NotFound):
        await administering(identity).delete(EMAIL)
    known = await everything(identity)
    assert [word for word in (EMAIL, "there@example.com", "ann-there", "issuer.example") if word in known] == []
    assert len(await farewells(identity)) == 2


async def test_who_is_deleted_is_not_brought_back(identity: IdentityWorld) -> None:
    user = await identity.add()
    await administering(identity).delete(EMAIL)
    with pytest.raises(NotFound, match="the account is deleted"):
        await administering(identity).change_status(user.id, "active")
    with pytest.raises(NotFound, match="the account is deleted"):
        await administering(identity).change_role(user.id, "administrator")


# What is on its way.


@pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)
async def test_a_reset_that_is_answered_meanwhile_sends_no_mail(identity: IdentityWorld) -> None:
    await identity.add()
    mails = Mails(identity.clock, BASE_URL, dual_publish=False)
    asking = AskingForReset(identity.database, identity.clock, MailLimits(identity.limiter, "salt"), mails)

    async def answer() -> None:
        async with identity.database.transaction() as tx:
            await asking.answer(tx, ResetAsked(occurred_at=identity.clock.now(), email=EMAIL))

    async with asyncio.timeout(60):
        async with identity.database.transaction() as tx:
            administrators = await hold_administrators(tx)
            user = await Users().find_locked(tx, EMAIL)
            assert user is not None
            await erase(tx, user, administrators, identity.clock.now())
            answering = asyncio.create_task(answer())
            await eventually(lambda: identity.database.fetch(WAITING))
        await answering
    assert [event["event_type"] for event in await identity.announced()] == ["user.revoked", "user.deleted"]


@pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)
async def test_a_verification_meanwhile_waits_and_finds_nothing(identity: IdentityWorld) -> None:
    user = await identity.add()
    token = await mailed(identity, user, Purpose.VERIFY)

    async with asyncio.timeout(60):
        async with identity.database.transaction() as tx:
            administrators = await hold_administrators(tx)
            locked = await Users().get(tx, user.id)
            verifying = asyncio.create_task(Verifying(identity.database, identity.clock).verify(token))
            await eventually(lambda: identity.database.fetch(WAITING))
            await erase(tx, locked, administrators, identity.clock.now())
        with pytest.raises(InvalidToken):
            await verifying
    assert (await identity.users())[0]["email_verified_at"] is None


# The schema of before.


async def test_accounts_of_before_are_kept_with_their_tokens_and_rules(
    empty_database: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate_before("0004", "identity", empty_database, tmp_path, monkeypatch)
    database = await open_database(empty_database)
    alice, foreign = User.local(EMAIL, "hash", START, role="administrator"), User.local("b@example.com", "", START)
    async with database.transaction() as tx:
        await Users().add(tx, alice)
        await Users().add(tx, replace(foreign, password_hash=None, oidc_issuer="https://i.example", oidc_subject="b"))
        values = {"token_hash": "hash", "purpose": "verify", "expires_at": START, "created_at": START}
        await tx.execute(KEEP_TOKEN, user_id=alice.id, **values)
    kept = [await database.fetch(Statement("all", "Reads all.", f"SELECT * FROM {table}")) for table in TABLES]
    await database.close()
    await migrations.migrate("identity", empty_database)
    database = await open_database(empty_database)
    try:
        assert [
            await database.fetch(Statement("all", "Reads all.", f"SELECT * FROM {table}")) for table in TABLES
        ] == kept
        with pytest.raises(EmailTaken):
            async with database.transaction() as tx:
                await Users().add(tx, User.local(EMAIL, "hash", START))
        for wrong in ("status = 'gone'", "role = 'king'", "oidc_issuer = 'https://i.example'"):
            with pytest.raises(StatementFailed):
                async with database.transaction() as tx:
                    await tx.execute(Statement("break", "Breaks a rule.", f"UPDATE users SET {wrong}"))
        async with database.transaction() as tx:
            await tx.execute(Statement("drop", "Removes everybody.", "DELETE FROM users"))
        assert await database.fetch(Statement("all", "Reads all.", "SELECT * FROM one_time_tokens")) == []
    finally:
        await database.close()
