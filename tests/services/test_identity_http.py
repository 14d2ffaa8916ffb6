"""The HTTP face of M2: every status, body and message, in both modes (M2 §9.6)."""

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from refract.kernel.clock import SystemClock
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.metrics import Metrics
from refract.runtime.migrations import migrate
from refract.runtime.service import Foundation
from refract.runtime.statements import Statement
from refract.runtime.tokens import TokenSigner, TokenVerifier
from refract.services.identity.domain import passwords
from refract.services.identity.service import build_identity
from refract.services.identity.settings import IdentitySettings
from tests.support.http import Answer, Client, head, running
from tests.support.identity import EMAIL, ON_SQLITE, PASSWORD, SECRET, IdentityWorld, identity, identity_location

__all__ = ["identity", "identity_location"]

HASHES = Statement("hashes", "Reads the hashes.", "SELECT password_hash FROM users")

EXPIRES_AT = "2026-03-02T12:00:00Z"


def said(answer: Answer) -> tuple[int, Any]:
    """The status and the body."""
    return answer.status, answer.json


async def test_register_log_in_and_who_am_i(identity: IdentityWorld) -> None:
    registered = await identity.register(" Alice@Example.com ")
    assert registered.status == 201
    assert set(registered.json) == {"user_id", "email"}
    assert registered.json["email"] == EMAIL
    assert uuid.UUID(registered.json["user_id"]).version == 4

    signed_in = await identity.login()
    assert signed_in.status == 200
    assert set(signed_in.json) == {"token", "expires_at"}
    assert signed_in.json["expires_at"] == EXPIRES_AT
    assert re.fullmatch(r"[\w-]+\.[\w-]+\.[\w-]+", signed_in.json["token"])
    assert "set-cookie" not in signed_in.headers

    me = await identity.call("GET", "/me", token=signed_in.json["token"])
    assert said(me) == (200, registered.json)
    for answer in (registered, signed_in, me):
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"

    identity.clock.advance(timedelta(hours=24).total_seconds())
    expired = await identity.call("GET", "/me", token=signed_in.json["token"])
    assert said(expired) == (401, {"error": "unauthorized"})


async def test_who_am_i_needs_a_token_and_no_database(identity: IdentityWorld) -> None:
    token = identity.signer.sign("550e8400-e29b-41d4-a716-446655440000", EMAIL).token
    assert (await identity.call("GET", "/me", token=token)).status == 200
    without_body = await identity.call("HEAD", "/me", token=token)
    assert (without_body.status, without_body.body) == (200, b"")
    forged = TokenSigner("another secret of at least 32 bytes", identity.clock).sign("u", EMAIL).token
    for header in (
        "X-Nothing: here",
        "Authorization: Bearer ",
        f"Authorization: bearer {token}",
        f"Authorization: Token {token}",
        f"Authorization: Bearer {token}x",
        f"Authorization: Bearer {forged}",
        "Authorization: Bearer invalidtoken",
    ):
        assert said(await identity.call("GET", "/me", None, header)) == (401, {"error": "unauthorized"})
    await identity.database.close()
    answer = await identity.call("GET", "/me", token=token)
    assert said(answer) == (200, {"user_id": "550e8400-e29b-41d4-a716-446655440000", "email": EMAIL})


async def test_a_taken_address(identity: IdentityWorld) -> None:
    assert (await identity.register()).status == 201
    for email in (EMAIL, EMAIL.upper()):
        assert said(await identity.register(email)) == (409, {"error": "email already registered"})


@ON_SQLITE
async def test_what_cannot_be_registered(identity: IdentityWorld) -> None:
    good = {"email": EMAIL, "password": PASSWORD}
    cases: list[tuple[Any, str]] = [
        ({**good, "email": "notanemail"}, "email format is invalid"),
        ({**good, "email": "Alice <alice@example.com>"}, "email format is invalid"),
        ({**good, "email": "alice\0@example.com"}, "email format is invalid"),
        ({**good, "email": "  "}, "email is required"),
        ({"password": PASSWORD}, "email is required"),
        ({**good, "password": "1234567"}, "password must be at least 8 characters"),
        ({"email": EMAIL}, "password must be at least 8 characters"),
        ({}, "email is required"),
        (b"", "invalid request body"),
        (b"{", "invalid request body"),
        (b"not json", "invalid request body"),
        (b'{"email":"\xff"}', "invalid request body"),
        (b'{"email":5}', "invalid request body: email: expected string, got integer"),
        (b"[]", "invalid request body: expected object, got array"),
        (b'{"email":"' + b"a" * 1_024 + b'"}', "request body too large"),
    ]
    for body, message in cases:
        assert said(await identity.call("POST", "/register", body)) == (400, {"error": message})
    assert await identity.users() == []


@ON_SQLITE
@pytest.mark.parametrize("path", ["/register", "/login"])
async def test_a_body_of_1024_bytes_is_read_and_one_more_is_not(identity: IdentityWorld, path: str) -> None:
    empty = b'{"email":"alice@example.com","password":""}'
    body = empty[:-2] + b"x" * (1_024 - len(empty)) + empty[-2:]
    assert len(body) == 1_024
    assert (await identity.call("POST", path, body)).status == (201 if path == "/register" else 401)
    refused = await identity.call("POST", path, body + b" ")
    assert said(refused) == (400, {"error": "request body too large"})
    async with await Client.connect(identity.port) as client:  # and one that does not say how long it is
        await client.send(
            head("POST", path, "Transfer-Encoding: chunked") + b"401\r\n" + b" " * 1_025 + b"\r\n0\r\n\r\n"
        )
        assert said(await client.answer()) == (400, {"error": "request body too large"})


async def test_every_failed_login_has_the_same_answer(identity: IdentityWorld) -> None:
    await identity.add()
    await identity.add("suspended@example.com", status="suspended")
    answers = [
        await identity.login(password="wrong password"),
        await identity.login("nobody@example.com"),
        await identity.login("suspended@example.com"),
        await identity.login("not an address"),
        await identity.login("nul\0@example.com"),
        await identity.call("POST", "/login", {}),
    ]
    assert {(answer.status, answer.body) for answer in answers} == {(401, b'{"error":"invalid credentials"}')}
    ours = {"date", "x-correlation-id"}
    headers = [{name: value for name, value in answer.headers.items() if name not in ours} for answer in answers]
    assert all(one == headers[0] for one in headers)


@ON_SQLITE
async def test_what_is_no_login(identity: IdentityWorld) -> None:
    for body in (b"", b"{", b"not json"):
        assert said(await identity.call("POST", "/login", body)) == (400, {"error": "invalid request body"})
    wrong = await identity.login(session="yes")
    assert said(wrong) == (400, {"error": "invalid request body: session: expected boolean, got string"})
    assert (await identity.call("GET", "/login")).status == 405
    assert identity.hasher.calls == []


async def test_too_many_failures_are_told_when_to_come_back(identity: IdentityWorld) -> None:
    await identity.add()
    for _ in range(10):
        assert (await identity.login(password="wrong password")).status == 401
    refused = await identity.login()
    assert said(refused) == (429, {"error": "rate limit exceeded"})
    assert 0 < int(refused.headers["retry-after"]) <= 945
    # By the account, from wherever it is tried, and by the address that the gateway names.
    assert (await identity.login(EMAIL, PASSWORD, "X-Forwarded-For: 198.51.100.1")).status == 429
    assert (await identity.login("bob@example.com")).status == 401


@ON_SQLITE
async def test_failures_are_counted_by_the_address_behind_the_gateway(identity: IdentityWorld) -> None:
    await identity.add()
    for number in range(50):
        answer = await identity.login(f"user{number}@example.com", PASSWORD, "X-Forwarded-For: 203.0.113.7")
        assert answer.status == 401
    assert (await identity.login(EMAIL, PASSWORD, "X-Forwarded-For: 203.0.113.7")).status == 429
    assert (await identity.login(EMAIL, PASSWORD, "X-Forwarded-For: 203.0.113.8")).status == 200


async def test_parallel_guesses_do_not_slip_past(identity: IdentityWorld) -> None:
    await identity.add()
    await identity.serve()
    answers = await asyncio.gather(*(identity.login(password=f"wrong password {number}") for number in range(40)))
    assert sorted(answer.status for answer in answers) == [401] * 10 + [429] * 30
    assert identity.hasher.calls == ["compare"] * 10


async def test_fifty_at_once_are_served_in_turn(identity: IdentityWorld) -> None:
    await identity.add()
    await identity.serve()
    answers = await asyncio.gather(*(identity.login() for _ in range(50)))
    assert [answer.status for answer in answers] == [200] * 50
    assert len({answer.json["token"] for answer in answers}) == 50


@ON_SQLITE
async def test_a_browser_gets_its_token_in_a_cookie(identity: IdentityWorld) -> None:
    user = await identity.add()
    await identity.serve(base_url="http://localhost:8080")
    answer = await identity.login(session=True)
    assert said(answer) == (200, {"expires_at": EXPIRES_AT})
    found = re.fullmatch(
        r"refract_session=([\w.-]+); Path=/; HttpOnly; SameSite=Lax; Max-Age=86400", answer.headers["set-cookie"]
    )
    assert found is not None
    assert TokenVerifier([SECRET], identity.clock).verify(found[1]).subject == user.id
    assert "set-cookie" not in (await identity.login(session=False)).headers
    assert "set-cookie" not in (await identity.login(EMAIL, "wrong password", session=True)).headers


@ON_SQLITE
async def test_the_cookie_is_secure_where_the_browser_came_by_https(identity: IdentityWorld) -> None:
    await identity.add()
    for base_url, header, secure in (
        ("http://localhost:8080", "X-Forwarded-Proto: http", False),
        ("http://localhost:8080", "X-Forwarded-Proto: https", True),
        ("https://sho.rt", "X-Forwarded-Proto: http", True),
        ("HTTPS://sho.rt", "X-Forwarded-Proto: http", True),
    ):
        await identity.serve(base_url=base_url)
        cookie = (await identity.login(EMAIL, PASSWORD, header, session=True)).headers["set-cookie"]
        assert cookie.endswith("; Secure") is secure


@ON_SQLITE
async def test_an_unverified_address_may_be_kept_out(identity: IdentityWorld) -> None:
    await identity.serve(require_verified_email=True)
    assert (await identity.register()).status == 201
    assert said(await identity.login()) == (403, {"error": "email address is not verified"})
    assert said(await identity.login(password="wrong password")) == (401, {"error": "invalid credentials"})


@ON_SQLITE
async def test_the_strict_policy_is_ready_before_the_first_request(identity: IdentityWorld) -> None:
    passwords.common_passwords.cache_clear()
    await identity.serve()
    assert passwords.common_passwords.cache_info().currsize == 0
    assert (await identity.register(password="password1")).status == 201
    await identity.serve(password_policy="strict")
    assert passwords.common_passwords.cache_info().currsize == 1
    refused = await identity.register("bob@example.com", "Password1")
    assert said(refused) == (400, {"error": "password is too common"})


async def test_a_database_that_is_away_is_no_wrong_password(identity: IdentityWorld) -> None:
    await identity.serve()
    await identity.database.close()
    for path in ("/register", "/login"):
        answer = await identity.call("POST", path, {"email": EMAIL, "password": PASSWORD})
        assert said(answer) == (503, {"error": "service unavailable"})


@ON_SQLITE
async def test_what_is_logged_of_refusals_is_what_may_be_an_attack(
    identity: IdentityWorld, caplog: pytest.LogCaptureFixture
) -> None:
    expired = identity.signer.sign("u", EMAIL).token
    identity.clock.advance(timedelta(days=1).total_seconds())

    async def warnings(answer: Awaitable[Answer], status: int) -> list[tuple[str, Any]]:
        caplog.clear()
        assert (await answer).status == status
        ours = [record for record in caplog.records if record.name.startswith("refract")]
        bad = [record for record in ours if record.levelno >= logging.WARNING]
        return [(record.getMessage(), vars(record).get("path")) for record in bad]

    assert await warnings(identity.call("GET", "/me", token=expired), 401) == [("token refused: expired", "/me")]
    forged = await warnings(identity.call("GET", "/me", token="forged"), 401)
    assert forged == [("token refused: not a compact token", "/me")]
    for what, status in (
        (identity.call("GET", "/me"), 401),
        (identity.login(), 401),
        (identity.register("notanemail"), 400),
        (identity.register(), 201),
        (identity.register(), 409),
    ):
        assert await warnings(what, status) == []


@ON_SQLITE
async def test_a_hash_that_is_none_is_an_error_of_ours(
    identity: IdentityWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await identity.add(password=None)
    async with identity.database.transaction() as tx:
        await tx.execute(Statement("spoil", "Spoils hashes.", "UPDATE users SET password_hash = 'spoilt'"))
    assert said(await identity.login()) == (500, {"error": "internal server error"})
    ours = [record for record in caplog.records if record.name.startswith("refract")]
    [failure] = [record for record in ours if record.levelno == logging.ERROR]
    assert failure.exc_info is not None
    assert PASSWORD not in caplog.text


@ON_SQLITE
async def test_the_document_gives_errors_as_they_are(identity: IdentityWorld) -> None:
    paths = (await identity.call("GET", "/docs/openapi.json")).json["paths"]

    def example(path: str, answer: Answer) -> Any:
        content = paths[path]["post"]["responses"][str(answer.status)]["content"]["application/json"]
        return next(iter(content["examples"].values()))["value"]

    refused = {
        "/register": await identity.call("POST", "/register", b"{"),
        "/login": await identity.login(),
        "/password": await identity.call("POST", "/password", {}),
        "/verify": await identity.call("POST", "/verify", {"token": "none"}),
        "/reset/confirm": await identity.call("POST", "/reset/confirm", {"token": "none", "password": PASSWORD}),
    }
    for path, answer in refused.items():
        assert example(path, answer) == answer.json, path


@ON_SQLITE
async def test_nothing_secret_is_logged(identity: IdentityWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await identity.register()
    signed_in = await identity.login()
    await identity.login(password="wrong password")
    await identity.call("GET", "/me", token=signed_in.json["token"] + "x")
    logged = " ".join(str(vars(record)) for record in caplog.records if not record.name.startswith("asyncio"))
    assert sum(record.getMessage() == "request completed" for record in caplog.records) == 4
    for secret in (PASSWORD, "wrong password", EMAIL, "$2a$", "eyJ"):
        assert secret not in logged


async def test_the_service_as_built_hashes_at_cost_12(tmp_path: Path) -> None:
    """Without a hasher of the tests: the one that the service makes for itself."""
    path, clock = tmp_path / "identity.db", SystemClock()
    await migrate("identity", path)
    database, bus = await EmbeddedDatabase.open(path), await EmbeddedBus.open(tmp_path / "bus.db")
    tokens = TokenVerifier([SECRET], clock)
    foundation = Foundation(database, bus, clock, Metrics(), tokens, timedelta(days=7))
    settings = IdentitySettings("https://sho.rt", hashing_threads=1)
    service = await build_identity(foundation, settings, EmbeddedRateLimiter(), SECRET)
    async with running(service.application) as server, await Client.connect(server.port) as client:
        body = b'{"email":"alice@example.com","password":"correct horse"}'
        assert (await client.post("/register", body)).status == 201
        assert (await client.post("/login", body)).status == 200
    async with database.transaction() as tx:
        [row] = await tx.fetch(HASHES)
    assert row["password_hash"].startswith("$2a$12$")
    for task in service.tasks:
        if task.drain is not None:
            await task.drain()
    await bus.close()
    await database.close()
