"""Signing in: one query and one bcrypt whoever it is, one answer to every wrong one, and a token to the right one."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.errors import Limited, RefractError
from refract.runtime.ports import Row
from refract.runtime.statements import Statement
from refract.runtime.tokens import Signed, TokenVerifier
from refract.services.identity.adapters.hashing import AT_A_TIME
from refract.services.identity.commands.signing_in import SigningIn
from refract.services.identity.commands.throttling import BY_ACCOUNT, BY_ADDRESS, Throttle
from refract.services.identity.domain.accounts import EmailNotVerified, InvalidCredentials
from tests.support.clocks import START
from tests.support.identity import EMAIL, ON_SQLITE, PASSWORD, SECRET, IdentityWorld, identity, identity_location
from tests.support.waiting import eventually

__all__ = ["identity", "identity_location"]

ADDRESS = "203.0.113.7"


class Noting:
    """A database that notes which statements were asked of it."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def fetch_one(self, statement: Statement, **parameters: Any) -> Row | None:
        self.asked.append(statement.name)
        row: Row | None = await self._database.fetch_one(statement, **parameters)
        return row


def signing_in(identity: IdentityWorld, *, database: Any = None, **options: Any) -> SigningIn:
    throttle = Throttle(identity.limiter, "salt")
    return SigningIn(database or identity.database, identity.hasher, throttle, identity.signer, **options)


async def outcome(identity: IdentityWorld, email: str, password: str, **options: Any) -> tuple[str, str]:
    """What became of an attempt, as far as a caller can tell."""
    try:
        await signing_in(identity, **options).sign_in(email, password, ADDRESS)
    except RefractError as error:
        return type(error).__name__, error.message
    return "signed in", ""


WRONG = ("InvalidCredentials", "invalid credentials")


async def test_the_right_password_gets_a_token_for_24_hours(identity: IdentityWorld) -> None:
    user = await identity.add(role="administrator", token_generation=5)
    signed = await signing_in(identity).sign_in(f" {EMAIL.upper()}\n", PASSWORD, ADDRESS)
    assert signed.expires_at == START + timedelta(hours=24)
    claims = TokenVerifier([SECRET], identity.clock).verify(signed.token)
    assert (claims.subject, claims.email, claims.token_id) == (user.id, EMAIL, signed.token_id)
    assert (claims.issued_at, claims.expires_at) == (START, signed.expires_at)
    assert (claims.role, claims.generation) == ("administrator", 5)


async def test_every_wrong_one_gets_the_same_for_one_query_and_one_bcrypt(identity: IdentityWorld) -> None:
    await identity.add()
    await identity.add("suspended@example.com", status="suspended")
    await identity.add("without@example.com", password=None)
    attempts = {
        (EMAIL, "wrong password"): "compare",
        (EMAIL, ""): "compare",
        (EMAIL, "x" * 200): "compare",
        ("suspended@example.com", PASSWORD): "compare",
        ("suspended@example.com", "wrong password"): "compare",
        ("without@example.com", PASSWORD): "compare_nothing",
        ("nobody@example.com", PASSWORD): "compare_nothing",
        ("no address", PASSWORD): "compare_nothing",
        ("", ""): "compare_nothing",
        ("nul\0@example.com", PASSWORD): "compare_nothing",
    }
    for (email, password), work in attempts.items():
        database = Noting(identity.database)
        identity.hasher.calls.clear()
        assert await outcome(identity, email, password, database=database) == WRONG
        assert (identity.hasher.calls, database.asked) == ([work], ["find_by_email"])
    identity.hasher.calls.clear()
    database = Noting(identity.database)
    assert await outcome(identity, EMAIL, PASSWORD, database=database) == ("signed in", "")
    assert (identity.hasher.calls, database.asked) == (["compare"], ["find_by_email"])


async def test_no_connection_is_held_while_a_password_is_compared(identity: IdentityWorld) -> None:
    await identity.add()
    seen: list[int] = []

    async def write() -> None:
        async with identity.database.transaction() as tx:  # on SQLite there is one that writes
            seen.append(len(await tx.fetch(Statement("users", "Reads users.", "SELECT id FROM users"))))

    identity.hasher.before = write
    assert await outcome(identity, EMAIL, PASSWORD) == ("signed in", "")
    assert seen == [1]


async def test_an_unverified_address_is_no_matter_unless_it_is_required(identity: IdentityWorld) -> None:
    await identity.add()
    await identity.add("verified@example.com", email_verified_at=START)
    assert await outcome(identity, EMAIL, PASSWORD) == ("signed in", "")
    required = {"require_verified_email": True}
    unverified = ("EmailNotVerified", "email address is not verified")
    for _ in range(12):  # the password is right: it is no failure
        assert await outcome(identity, EMAIL, PASSWORD, **required) == unverified
    assert await outcome(identity, EMAIL, "wrong password", **required) == WRONG
    assert await outcome(identity, "verified@example.com", PASSWORD, **required) == ("signed in", "")
    with pytest.raises(EmailNotVerified):
        await signing_in(identity, **required).sign_in(EMAIL, PASSWORD, ADDRESS)


async def test_ten_failures_close_an_account_to_everybody(identity: IdentityWorld) -> None:
    await identity.add()
    await identity.add("bob@example.com")
    for email in (EMAIL, "nobody@example.com"):  # whether there is such an account or not
        outcomes = [await outcome(identity, email.upper(), "wrong password") for _ in range(BY_ACCOUNT.limit)]
        assert outcomes == [WRONG] * 10
        identity.hasher.calls.clear()
        with pytest.raises(Limited) as limited:
            await signing_in(identity).sign_in(email, PASSWORD, "198.51.100.1")
        assert 0 < limited.value.retry_after <= BY_ACCOUNT.window * 21 / 20
        assert identity.hasher.calls == []
    assert await outcome(identity, "bob@example.com", PASSWORD) == ("signed in", "")


async def test_fifty_failures_close_an_address(identity: IdentityWorld) -> None:
    await identity.add()
    for number in range(BY_ADDRESS.limit):
        assert await outcome(identity, f"user{number}@example.com", "wrong password") == WRONG
    with pytest.raises(Limited):
        await signing_in(identity).sign_in(EMAIL, PASSWORD, ADDRESS)
    await signing_in(identity).sign_in(EMAIL, PASSWORD, "198.51.100.1")


@ON_SQLITE
async def test_success_is_never_counted(identity: IdentityWorld) -> None:
    await identity.add()
    for _ in range(60):
        assert await outcome(identity, EMAIL, PASSWORD) == ("signed in", "")


@ON_SQLITE
async def test_no_client_fills_the_line_alone(identity: IdentityWorld) -> None:
    emails = [f"user{number}@example.com" for number in range(5)]
    for email in emails:
        await identity.add(email)
    go_on = asyncio.Event()
    identity.hasher.before = go_on.wait
    service = signing_in(identity)

    def begin(email: str, address: str) -> asyncio.Task[Signed]:
        return asyncio.create_task(service.sign_in(email, PASSWORD, address))

    tasks = [begin(email, f"2001:db8:1:2::{number}") for email in emails for number in range(10)]
    await eventually(lambda: len(identity.hasher.calls) >= AT_A_TIME)
    tasks.append(begin(emails[0], ADDRESS))
    await eventually(lambda: len(identity.hasher.calls) > AT_A_TIME)
    assert len(identity.hasher.calls) == AT_A_TIME + 1
    go_on.set()
    assert len(await asyncio.gather(*tasks)) == 51


@ON_SQLITE
async def test_neither_password_nor_address_is_logged(
    identity: IdentityWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    user = await identity.add()
    await outcome(identity, EMAIL, PASSWORD)
    with pytest.raises(InvalidCredentials):
        await signing_in(identity).sign_in(EMAIL, "wrong password", ADDRESS)
    logged = " ".join(str(vars(record)) for record in caplog.records)
    assert user.id in logged
    for secret in (PASSWORD, "wrong password", EMAIL, ADDRESS, "$2a$", "eyJ"):
        assert secret not in logged
