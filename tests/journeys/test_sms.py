"""An administrator's messages, from the front door to the log line and the audit, in both modes."""

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refract.apps.directory import SERVICES
from tests.support.commands import logged_in, refract, running
from tests.support.http import Answer, Client
from tests.support.servers import Kafka, PostgreSQL, RabbitMQ, Redis
from tests.support.servers.places import free_port
from tests.support.servers.selection import started
from tests.support.stack import create_databases, drop_databases, variables
from tests.support.waiting import eventually

PASSWORD = "a password of some length"
TAKING_PART = ("identity", "sms", "gateway")
"""The services of this story; the gateway last, because it asks for the others when it starts."""


class Place:
    """An instance as its administrator and its operator know it."""

    def __init__(self, folder: Path, port: int, operator: tuple[tuple[str, ...], Mapping[str, str]]) -> None:
        self.folder = folder
        self.port = port
        self._operator = operator
        self._tokens: dict[tuple[str, ...], str] = {}

    async def call(self, method: str, target: str, body: Any = None, *headers: str, token: str = "") -> Answer:
        """One request at the front door."""
        lines = (*headers, f"Authorization: Bearer {token}") if token else headers
        async with await Client.connect(self.port) as client:
            if body is None:
                return await client.get(target, *lines, method=method)
            return await client.post(target, msgspec.json.encode(body), *lines, method=method)

    async def account(self, *options: str) -> str:
        """The token of an account that the operator has made, one for each kind."""
        if options in self._tokens:
            return self._tokens[options]
        email = f"{secrets.token_hex(6)}@example.com"
        arguments, environment = self._operator
        done = await asyncio.to_thread(
            refract,
            *("users", "create", email, *options, *arguments),
            variables=environment,
            standard_input=f"{PASSWORD}\n",
        )
        assert done.returncode == 0, done.stderr
        answer = await self.call("POST", "/api/auth/login", {"email": email, "password": PASSWORD})
        token: str = answer.json["token"]
        self._tokens[options] = token
        return token

    def log(self) -> list[dict[str, Any]]:
        """The lines of all processes."""
        return [line for file in sorted(self.folder.glob("*/stdout")) for line in logged_in(file)]


@pytest.fixture(scope="module", params=["embedded", "distributed"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """An instance of either mode, for all tests of this file."""
    folder = tmp_path_factory.mktemp("sms")
    with _embedded(folder) if request.param == "embedded" else _distributed(folder, request) as place:
        yield place


@contextmanager
def _embedded(folder: Path) -> Iterator[Place]:
    port, data = free_port(), ("--data-dir", str(folder / "data"))
    address = f"http://127.0.0.1:{port}"
    with running("serve", *data, "--port", str(port), address=address, folder=folder / "process"):
        yield Place(folder, port, (data, {}))


@contextmanager
def _distributed(folder: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    dsn = request.getfixturevalue("postgres_dsn")
    with ExitStack() as stack:
        # Topics and groups have the same names everywhere: another gateway would send our messages.
        [kafka] = stack.enter_context(started([Kafka]))
        servers = {
            PostgreSQL.variable: dsn,
            Redis.variable: request.getfixturevalue("redis_address"),
            RabbitMQ.variable: request.getfixturevalue("rabbitmq_url"),
            Kafka.variable: kafka.address,
        }
        databases = asyncio.run(create_databases(dsn, f"journey_{secrets.token_hex(4)}_"))
        stack.callback(lambda: asyncio.run(drop_databases(dsn, databases)))
        environments = variables(servers, {name: free_port() for name in SERVICES}, databases)
        for name in TAKING_PART:
            address = f"http://127.0.0.1:{environments[name]['PORT']}"
            stack.enter_context(
                running("run", name, address=address, folder=folder / name, variables=environments[name])
            )
        yield Place(folder, int(environments["gateway"]["PORT"]), ((), environments["identity"]))


async def test_an_administrator_sends_within_the_limit_and_finds_it_in_the_audit(place: Place) -> None:
    # Redis is everybody's, and its copies of limits have the names of the users.
    token, user = await place.account("--administrator"), secrets.randbelow(2**30)
    config = {"userId": user, "rateLimit": 2, "timeWindow": 5}
    configured = await place.call("POST", "/api/sms/config", config, token=token)
    assert configured.status == 200, configured.body
    assert {name: configured.json[name] for name in config} == config
    assert (configured.json["currentCount"], configured.json["algorithm"]) == (0, "fixed")

    async def send(message: str, *headers: str) -> tuple[int, str]:
        answer = await place.call("POST", "/api/sms/send", {"userId": user, "message": message}, *headers, token=token)
        if answer.status == 429:
            assert 1 <= int(answer.headers["retry-after"]) <= 300
        return answer.status, answer.text

    correlation_id = f"journey-{secrets.token_hex(4)}"
    assert await send("first", f"X-Correlation-ID: {correlation_id}") == (200, "Message Sent Successfully")
    assert await send("second", "Idempotency-Key: k-1") == (200, "Message Sent Successfully")
    assert await send("second", "Idempotency-Key: k-1") == (200, "Message Sent Successfully"), (
        "neither sent nor counted"
    )
    assert await send("third") == (429, "Rate Limit Exceeded")
    assert await send(" ") == (400, "Missing/Invalid Arguments")

    def sent() -> list[str]:
        return [line["msg"] for line in place.log() if line["msg"].startswith(f"SMS Sent: {user}: ")]

    await eventually(lambda: sorted(sent()) == [f"SMS Sent: {user}: first", f"SMS Sent: {user}: second"], timeout=60)
    [line] = [line for line in place.log() if line["msg"] == f"SMS Sent: {user}: first"]
    assert (line["correlation_id"], line["service"], line["level"]) == (correlation_id, "sms-gateway", "info")

    async def noted() -> list[dict[str, Any]]:
        answer = await place.call("GET", f"/api/sms/audit?userId={user}", token=token)
        assert answer.status == 200, answer.body
        attempts: list[dict[str, Any]] = answer.json["attempts"]
        return attempts if len(attempts) == 5 else []

    attempts = await eventually(noted, timeout=60)
    assert [(one["status"], one["message"]) for one in attempts] == [
        ("invalid", " "),
        ("limited", "third"),
        ("sent", "second"),
        ("sent", "second"),
        ("sent", "first"),
    ]
    assert attempts[-1]["correlation_id"] == correlation_id
    assert attempts[2]["message_id"] == attempts[3]["message_id"] != attempts[4]["message_id"]

    limited = await place.call("GET", f"/api/sms/audit?userId={user}&status=limited&limit=1", token=token)
    assert [one["reason"] for one in limited.json["attempts"]] == ["Rate Limit Exceeded"]
    summary = await place.call("GET", f"/api/sms/audit/summary?userId={user}", token=token)
    [counted] = summary.json["users"]
    assert {name: counted[name] for name in ("attempts", "sent", "limited", "failed", "invalid", "limited_share")} == {
        "attempts": 5,
        "sent": 3,
        "limited": 1,
        "failed": 0,
        "invalid": 1,
        "limited_share": 0.2,
    }
    wrong = await place.call("GET", "/api/sms/audit?userId=me", token=token)
    assert (wrong.status, wrong.text) == (400, "Missing/Invalid Arguments")


async def test_nobody_else_gets_in(place: Place) -> None:
    token = await place.account()
    doors: list[tuple[str, str, Any]] = [
        ("POST", "config", {}),
        ("POST", "send", {}),
        ("GET", "audit", None),
        ("GET", "audit/summary", None),
    ]
    for method, path, body in doors:
        with_token = await place.call(method, f"/api/sms/{path}", body, token=token)
        assert (with_token.status, with_token.json) == (403, {"error": "forbidden"})
        without = await place.call(method, f"/api/sms/{path}", body)
        assert (without.status, without.json) == (401, {"error": "unauthorized"})


async def test_an_unknown_user_has_no_limit_to_send_within(place: Place) -> None:
    token = await place.account("--administrator")
    answer = await place.call(
        "POST", "/api/sms/send", {"userId": secrets.randbelow(2**30), "message": "x"}, token=token
    )
    assert (answer.status, answer.text) == (404, "User Not Found")


async def test_an_api_key_sends_for_the_user_that_it_is_bound_to(place: Place) -> None:
    token, other = await place.account("--administrator"), await place.account()
    own = secrets.randbelow(2**30)  # Redis is everybody's
    another = own + 1
    for user in (own, another):
        config = {"userId": user, "rateLimit": 5, "timeWindow": 5}
        assert (await place.call("POST", "/api/sms/config", config, token=token)).status == 200
    wish = {"name": "codes", "scopes": ["sms:send"], "sms_user_id": own}
    made = await place.call("POST", "/api/keys", wish, token=token)
    assert made.status == 201, made.body
    key = made.json["key"]
    refused = await place.call("POST", "/api/keys", wish, token=other)
    assert refused.status == 403, "only an administrator gives that away"

    async def send(user: int, *headers: str) -> tuple[int, str]:
        body = {"userId": user, "message": "by key"}
        answer = await place.call("POST", "/api/sms/send", body, *headers, token=key)
        return answer.status, answer.text

    assert await send(own) == (200, "Message Sent Successfully")
    assert await send(another) == (403, "Forbidden")
    pretending = (f"X-SMS-User-ID: {another}", f"X_SMS_User_ID: {another}", "Connection: x-sms-user-id")
    assert await send(another, *pretending) == (403, "Forbidden")
    assert await send(own, *pretending) == (200, "Message Sent Successfully")
    for method, path in (("POST", "config"), ("GET", "audit"), ("GET", "audit/summary")):
        answer = await place.call(method, f"/api/sms/{path}", {} if method == "POST" else None, token=key)
        assert (answer.status, answer.json) == (403, {"error": "api keys may not do this"})

    async def noted() -> list[str]:
        found = []
        for user in (own, another):
            answer = await place.call("GET", f"/api/sms/audit?userId={user}", token=token)
            found += [f"{one['userId']} {one['status']} {one.get('reason', '')}" for one in answer.json["attempts"]]
        return found if len(found) == 4 else []

    assert await eventually(noted, timeout=60) == [f"{own} sent "] * 2 + [f"{another} invalid Forbidden"] * 2
    assert (await place.call("DELETE", f"/api/keys/{made.json['id']}", token=token)).status == 204

    async def is_refused() -> bool:
        return (await send(own))[0] == 401

    await eventually(is_refused, timeout=60)
