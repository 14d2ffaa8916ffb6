"""Users in their table and how they get there, in both modes (M2 §9.2)."""

import asyncio
import logging
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.errors import Invalid, NotFound, RefractError, Unavailable, UniqueViolation
from refract.runtime.statements import Statement
from refract.services.identity.adapters.hashing import AT_A_TIME, Hasher
from refract.services.identity.commands import registering as module
from refract.services.identity.commands.mailing import MailLimits, Mails
from refract.services.identity.commands.registering import Registering
from refract.services.identity.domain.accounts import EmailTaken, User
from refract.services.identity.settings import Policy
from refract.services.identity.store import COLUMNS, Users, find_by_email, parameters_of
from tests.support.clocks import START
from tests.support.identity import BASE_URL, EMAIL, ON_SQLITE, PASSWORD, IdentityWorld, identity, identity_location
from tests.support.patience import patient
from tests.support.waiting import eventually

__all__ = ["identity", "identity_location", "patient"]

ADDRESS = "203.0.113.7"
VERIFY = "email.verification.requested"

INSERT_ANY = Statement(
    "insert_any",
    "Keeps any user.",
    f"INSERT INTO users ({', '.join(COLUMNS)}) VALUES ({', '.join(f':{column}' for column in COLUMNS)})",
)


def some_user(email: str = EMAIL, **changes: Any) -> User:
    return replace(User.local(email, "$2a$12$hash", START), **changes)


def registering(identity: IdentityWorld, policy: Policy = "length") -> Registering:
    return Registering(
        identity.database,
        identity.clock,
        identity.hasher,
        Mails(identity.clock, BASE_URL, dual_publish=False),
        MailLimits(identity.limiter, "salt"),
        policy,
    )


async def insert(identity: IdentityWorld, user: User) -> None:
    async with identity.database.transaction() as tx:
        await tx.execute(INSERT_ANY, **parameters_of(user))


# The table.


async def test_a_user_is_kept_as_given(identity: IdentityWorld) -> None:
    user = some_user(
        role="administrator",
        status="suspended",
        email_verified_at=START + timedelta(microseconds=1),
        token_generation=7,
        updated_at=START + timedelta(days=1),
    )
    async with identity.database.transaction() as tx:
        await Users().add(tx, user)
    assert await find_by_email(identity.database, EMAIL) == user
    async with identity.database.transaction() as tx:
        assert await Users().get(tx, user.id) == user
        assert await Users().find_locked(tx, EMAIL) == user


async def test_an_unknown_user_is_not_found(identity: IdentityWorld) -> None:
    await identity.add()
    assert await find_by_email(identity.database, "bob@example.com") is None
    async with identity.database.transaction() as tx:
        assert await Users().find_locked(tx, "bob@example.com") is None
        for user_id in (str(uuid.uuid4()), "alice", "", "550E8400-E29B-41D4-A716-446655440000", "\0"):
            with pytest.raises(NotFound):
                await Users().get(tx, user_id)


async def test_the_table_knows_upper_from_lower_case(identity: IdentityWorld) -> None:
    await identity.add()
    assert await find_by_email(identity.database, EMAIL.upper()) is None


async def test_an_address_has_one_local_account(identity: IdentityWorld) -> None:
    user = await identity.add()
    with pytest.raises(EmailTaken):
        await identity.add()
    with pytest.raises(UniqueViolation):  # the index itself, whoever writes
        await insert(identity, some_user())
    assert [row["id"] for row in await identity.users()] == [user.id]


async def test_accounts_of_issuers_are_told_apart_by_subject_and_not_by_address(identity: IdentityWorld) -> None:
    local = await identity.add()
    issuer = "https://issuer.example"
    foreign = some_user(password_hash=None, oidc_issuer=issuer, oidc_subject="1")
    await insert(identity, foreign)
    await insert(identity, some_user(password_hash=None, oidc_issuer=issuer, oidc_subject="2"))
    await insert(identity, some_user(password_hash=None, oidc_issuer="https://other.example", oidc_subject="1"))
    with pytest.raises(UniqueViolation):
        await insert(identity, some_user("bob@example.com", password_hash=None, oidc_issuer=issuer, oidc_subject="1"))
    assert await find_by_email(identity.database, EMAIL) == local
    async with identity.database.transaction() as tx:
        assert await Users().find_locked(tx, EMAIL) == local
        assert await Users().get(tx, foreign.id) == foreign


async def test_what_a_user_cannot_be(identity: IdentityWorld) -> None:
    issuer: dict[str, Any] = {"oidc_issuer": "https://issuer.example"}
    for changes in (
        {"role": "root"},
        {"status": "gone"},
        {**issuer, "password_hash": None},
        {"oidc_subject": "1", "password_hash": None},
        {**issuer, "oidc_subject": "1"},  # and a password
    ):
        with pytest.raises(RefractError):
            await insert(identity, some_user(**changes))
    assert await identity.users() == []


async def test_what_changes_is_saved_but_not_the_generation(identity: IdentityWorld) -> None:
    user = await identity.add(token_generation=3)
    later = START + timedelta(hours=1)
    changed = user.with_password("other", later).with_role("administrator", later).with_status("suspended", later)
    changed = replace(changed.verified(later), token_generation=1)
    async with identity.database.transaction() as tx:
        await Users().save(tx, changed)
    assert await find_by_email(identity.database, EMAIL) == replace(changed, token_generation=3)


# Registering.


async def test_a_registered_user_is_there_with_a_hash_of_the_password(identity: IdentityWorld) -> None:
    user = await registering(identity).register(" Alice@Example.com ", PASSWORD, ADDRESS)
    [row] = await identity.users()
    assert (row["id"], row["email"], row["created_at"]) == (user.id, EMAIL, START)
    assert uuid.UUID(row["id"]).version == 4
    assert (row["role"], row["status"], row["email_verified_at"], row["token_generation"]) == (
        "user",
        "active",
        None,
        0,
    )
    assert await Hasher.compare(identity.hasher, PASSWORD, row["password_hash"])
    assert PASSWORD not in str(row)


async def test_registering_asks_for_the_mail_in_the_same_transaction(
    identity: IdentityWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await registering(identity).register(EMAIL, PASSWORD, ADDRESS)
    [announced] = await identity.announced()
    assert announced["event_type"] == VERIFY
    assert announced["payload"]["payload"]["data"]["recipient"] == EMAIL

    async def fail(*_: object, **__: object) -> None:
        raise Unavailable("mail", "it broke")

    monkeypatch.setattr(module, "ask_for_verification", fail)
    with pytest.raises(Unavailable):
        await registering(identity).register("bob@example.com", PASSWORD, ADDRESS)
    assert len(await identity.users()) == 1


@ON_SQLITE
async def test_a_flood_of_mails_ends_and_registering_goes_on(identity: IdentityWorld) -> None:
    registrations = registering(identity)
    for number in range(22):
        await registrations.register(f"user{number}@example.com", PASSWORD, ADDRESS)
    assert len(await identity.users()) == 22
    assert len(await identity.announced()) == 20


async def test_a_taken_address_is_refused_and_costs_no_bcrypt_and_no_mail(identity: IdentityWorld) -> None:
    user = await identity.add()
    for email in (EMAIL, "ALICE@example.com"):
        with pytest.raises(EmailTaken, match=r"^email already registered$"):
            await registering(identity).register(email, "another password", ADDRESS)
    assert identity.hasher.calls == []
    assert await identity.announced() == []
    assert [row["password_hash"] for row in await identity.users()] == [user.password_hash]


@pytest.mark.usefixtures("patient")
async def test_of_many_at_once_one_gets_the_address(identity: IdentityWorld) -> None:
    identity.hasher.before = asyncio.Barrier(12).wait  # all of them have seen that the address is free
    outcomes = await asyncio.gather(
        *(registering(identity).register(EMAIL, f"{PASSWORD} {number}", ADDRESS) for number in range(12)),
        return_exceptions=True,
    )
    [winner] = [outcome for outcome in outcomes if isinstance(outcome, User)]
    assert sum(isinstance(outcome, EmailTaken) for outcome in outcomes) == 11
    assert [row["id"] for row in await identity.users()] == [winner.id]
    assert len(await identity.announced()) == 1


@ON_SQLITE
async def test_no_client_fills_the_line_alone(identity: IdentityWorld) -> None:
    go_on = asyncio.Event()
    identity.hasher.before = go_on.wait
    service = registering(identity)

    def begin(number: int, address: str) -> asyncio.Task[User]:
        return asyncio.create_task(service.register(f"user{number}@example.com", PASSWORD, address))

    tasks = [begin(number, ADDRESS) for number in range(30)]
    await eventually(lambda: len(identity.hasher.calls) >= AT_A_TIME)
    tasks.append(begin(30, "198.51.100.1"))
    await eventually(lambda: len(identity.hasher.calls) > AT_A_TIME)
    assert len(identity.hasher.calls) == AT_A_TIME + 1
    go_on.set()
    assert len({user.id for user in await asyncio.gather(*tasks)}) == 31


@ON_SQLITE
async def test_what_is_wrong_is_told_and_nothing_is_kept(identity: IdentityWorld) -> None:
    for email, password, message in (
        ("", PASSWORD, "email is required"),
        ("notanemail", PASSWORD, "email format is invalid"),
        ("Alice <alice@example.com>", PASSWORD, "email format is invalid"),
        (EMAIL, "1234567", "password must be at least 8 characters"),
        ("notanemail", "1234567", "email format is invalid"),
        (EMAIL, "Password1", "password is too common"),
    ):
        with pytest.raises(Invalid) as wrong:
            await registering(identity, "strict").register(email, password, ADDRESS)
        assert wrong.value.message == message
    assert (identity.hasher.calls, await identity.users(), await identity.announced()) == ([], [], [])


@ON_SQLITE
async def test_no_password_and_no_address_is_logged(identity: IdentityWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await registering(identity).register(EMAIL, PASSWORD, ADDRESS)
    logged = " ".join(str(vars(record)) for record in caplog.records)
    assert "user registered" in logged
    for secret in (PASSWORD, EMAIL, ADDRESS, "$2a$"):
        assert secret not in logged
