"""From a new account to its last token, through the front door, in both modes."""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refract.apps.directory import SERVICES
from tests.support.commands import Running, environment_without, logged_in, refract, running
from tests.support.http import Answer, Client
from tests.support.servers import PostgreSQL, RabbitMQ, Redis
from tests.support.servers.places import free_port
from tests.support.stack import create_databases, drop_databases, variables
from tests.support.waiting import eventually

PASSWORD = "a password of some length"
TAKING_PART = ("links", "identity", "gateway")
"""The services of these stories; the gateway last, because it asks for the others when it starts."""


class Place(ABC):
    """An instance as its users, its log and its operator know it."""

    mode: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._processes = ExitStack()

    @property
    @abstractmethod
    def log(self) -> list[dict[str, Any]]:
        """The lines of all processes."""

    @abstractmethod
    def start(self) -> None:
        """Start everything, and wait until it answers."""

    @abstractmethod
    def restart_gateway(self) -> None:
        """End the process that keeps the front door, and start another."""

    @abstractmethod
    def operator(self) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """How the command line is told of this instance: arguments and variables."""

    def close(self) -> None:
        """End what runs."""
        self._processes.close()

    async def call(self, method: str, target: str, body: Any = None, *headers: str, token: str = "") -> Answer:
        """One request at the front door."""
        lines = (*headers, f"Authorization: Bearer {token}") if token else headers
        async with await Client.connect(self.port) as client:
            if body is None:
                return await client.get(target, *lines, method=method)
            return await client.post(target, msgspec.json.encode(body), *lines, method=method)

    async def operate(self, *command: str, said: str = "") -> str:
        """Run a command of the operator to its end; what it prints."""
        arguments, environment = self.operator()
        done = await asyncio.to_thread(refract, *command, *arguments, variables=environment, standard_input=said)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def token_of(self, email: str, password: str = PASSWORD) -> str:
        """A new token of an account."""
        answer = await self.call("POST", "/api/auth/login", {"email": email, "password": password})
        assert answer.status == 200, answer.body
        token: str = answer.json["token"]
        return token

    async def me(self, token: str) -> int:
        """What the bearer of a token is answered when they ask who they are."""
        return (await self.call("GET", "/api/me", token=token)).status

    def hops(self, correlation_id: str) -> set[tuple[str, str, int]]:
        """Which service noted which path and status of a request."""
        lines = [line for line in self.log if line["correlation_id"] == correlation_id and line["status"]]
        return {(line["service"], line["path"], line["status"]) for line in lines}


class Embedded(Place):
    """`refract serve`."""

    mode = "embedded"

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the one process, and of those before it."""
        return [line for file in sorted(self.folder.glob("process-*/stdout")) for line in logged_in(file)]

    def start(self) -> None:
        """Start it on the data of the one before."""
        number = len(list(self.folder.glob("process-*")))
        self._running: Running = self._processes.enter_context(
            running(
                *("serve", "--data-dir", str(self.folder / "data"), "--port", str(self.port)),
                address=f"http://127.0.0.1:{self.port}",
                folder=self.folder / f"process-{number}",
            )
        )

    def restart_gateway(self) -> None:
        """All of it is one process."""
        assert self._running.stop() == 0
        self.start()

    def operator(self) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """By the directory."""
        return ("--data-dir", str(self.folder / "data")), {}


class Distributed(Place):
    """`refract run` for each service that takes part."""

    mode = "distributed"

    def __init__(self, folder: Path, environments: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(folder)
        self._environments = environments
        self.port = int(environments["gateway"]["PORT"])

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of all processes."""
        return [line for file in sorted(self.folder.glob("*/stdout")) for line in logged_in(file)]

    def start(self) -> None:
        """Start those that take part."""
        for name in TAKING_PART:
            self._start(name)

    def restart_gateway(self, without: str = "") -> None:
        """The others run on; the new one may lack a variable."""
        assert self._running.stop() == 0
        self._start("gateway", without)

    def operator(self) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """By the environment of identity, as in its container."""
        return (), self._environments["identity"]

    def _start(self, name: str, without: str = "") -> None:
        values = environment_without(self._environments[name], without)
        number = len(list(self.folder.glob(f"{name}-*")))
        self._running: Running = self._processes.enter_context(
            running(
                *("run", name),
                address=f"http://127.0.0.1:{values['PORT']}",
                folder=self.folder / f"{name}-{number}",
                variables=values,
            )
        )


@contextmanager
def distributed_place(folder: Path, servers: Mapping[str, str]) -> Iterator[Distributed]:
    """Fresh databases and free ports."""
    databases = asyncio.run(create_databases(servers[PostgreSQL.variable], f"accounts_{secrets.token_hex(4)}_"))
    try:
        yield Distributed(folder, variables(servers, {name: free_port() for name in SERVICES}, databases))
    finally:
        asyncio.run(drop_databases(servers[PostgreSQL.variable], databases))


@pytest.fixture(scope="module", params=["embedded", "distributed"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """An instance that answers; the tests share it, each with accounts of its own."""
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "embedded":
            place: Place = Embedded(folder)
        else:
            servers = {
                PostgreSQL.variable: request.getfixturevalue("postgres_dsn"),
                Redis.variable: request.getfixturevalue("redis_address"),
                RabbitMQ.variable: request.getfixturevalue("rabbitmq_url"),
            }
            place = stack.enter_context(distributed_place(folder, servers))
        stack.callback(place.close)
        place.start()
        yield place


@pytest.fixture
async def email(place: Place) -> str:
    """The address of a new account."""
    address = f"{secrets.token_hex(6)}@example.com"
    answer = await place.call("POST", "/api/auth/register", {"email": address, "password": PASSWORD})
    assert answer.status == 201, answer.body
    return address


async def test_register_login_shorten_redirect_me_is_one_story_in_every_log(place: Place) -> None:
    story, email = secrets.token_hex(6), f"{secrets.token_hex(6)}@Example.com"
    credentials = {"email": email, "password": PASSWORD}

    def step(name: str) -> str:
        return f"X-Correlation-ID: {story}-{name}"

    registered = await place.call("POST", "/api/auth/register", credentials, step("register"))
    assert (registered.status, registered.json["email"]) == (201, email.lower())
    signed_in = await place.call("POST", "/api/auth/login", credentials, step("login"))
    assert signed_in.status == 200
    token = signed_in.json["token"]
    destination = f"https://example.com/{story}"
    shortened = await place.call("POST", "/api/shorten", {"url": destination}, step("shorten"), token=token)
    assert shortened.status == 201
    code = shortened.json["short_code"]
    redirected = await place.call("GET", f"/r/{code}", None, step("redirect"))
    assert (redirected.status, redirected.headers["location"]) == (301, destination)
    me = await place.call("GET", "/api/me", None, step("me"), token=token)
    assert (me.status, me.json) == (200, {"user_id": registered.json["user_id"], "email": email.lower()})

    at_the_door = {("gateway", f"/r/{code}", 301)} if place.mode == "distributed" else set()
    inside = f"/{code}" if place.mode == "distributed" else f"/r/{code}"  # in one process the hot path is the door
    expected = {
        "register": {("gateway", "/api/auth/register", 201), ("user-service", "/register", 201)},
        "login": {("gateway", "/api/auth/login", 200), ("user-service", "/login", 200)},
        "shorten": {("gateway", "/api/shorten", 201), ("url-service", "/shorten", 201)},
        "redirect": {("url-service", inside, 301), *at_the_door},
        "me": {("gateway", "/api/me", 200), ("user-service", "/me", 200)},
    }
    await eventually(lambda: all(place.hops(f"{story}-{name}") == hops for name, hops in expected.items()))
    assert {answer.headers["x-correlation-id"] for answer in (registered, me)} == {f"{story}-register", f"{story}-me"}


async def test_a_token_that_signed_out_is_dead_and_the_others_live(place: Place, email: str) -> None:
    leaving, staying = await place.token_of(email), await place.token_of(email)
    assert [await place.me(token) for token in (leaving, staying)] == [200, 200]
    assert (await place.call("POST", "/api/auth/logout", {}, token=leaving)).status == 204

    async def is_dead() -> bool:
        return await place.me(leaving) == 401

    await eventually(is_dead)
    assert await place.me(staying) == 200


async def test_a_new_password_ends_every_token_and_a_restart_remembers_it(place: Place, email: str) -> None:
    tokens = [await place.token_of(email) for _ in range(2)]
    changed = await place.call(
        "POST", "/api/auth/password", {"current": PASSWORD, "new": PASSWORD[::-1]}, token=tokens[0]
    )
    assert changed.status == 204

    async def are_dead() -> bool:
        return [await place.me(token) for token in tokens] == [401, 401]

    await eventually(are_dead)
    fresh = await place.token_of(email, PASSWORD[::-1])
    assert await place.me(fresh) == 200

    await asyncio.to_thread(place.restart_gateway)
    await eventually(are_dead)
    assert await place.me(fresh) == 200


async def test_a_suspended_account_is_out_while_everything_runs(place: Place, email: str) -> None:
    token = await place.token_of(email)
    assert await place.me(token) == 200
    assert "suspended" in await place.operate("users", "suspend", email)

    async def is_dead() -> bool:
        return await place.me(token) == 401

    await eventually(is_dead)
    refused = await place.call("POST", "/api/auth/login", {"email": email, "password": PASSWORD})
    assert (refused.status, refused.json) == (401, {"error": "invalid credentials"})


async def test_an_administrator_is_made_by_the_operator_and_let_in(place: Place) -> None:
    root, somebody = (f"{secrets.token_hex(6)}@example.com" for _ in range(2))
    await place.operate("users", "create", root, "--administrator", said=f"{PASSWORD}\n")
    await place.operate("users", "create", somebody, said=PASSWORD)
    statuses = {}
    for email in (root, somebody):
        token = await place.token_of(email)
        statuses[email] = (await place.call("POST", "/api/sms/config", {}, token=token)).status
    assert statuses[somebody] == 403
    # Past the door: who is there says that the body is wrong, or nobody is there.
    assert statuses[root] in ({400} if place.mode == "embedded" else {502, 503})


@pytest.mark.parametrize("place", ["distributed"], indirect=True)
async def test_the_gateway_looks_for_its_services_when_it_starts(place: Place) -> None:
    def said() -> list[str]:
        return sorted({line["upstream"]: line["level"] for line in place.log if "upstream" in line}.values())

    # Two take part, and four do not; it looks when it listens already.
    await eventually(lambda: said() == ["info"] * 2 + ["warn"] * 4)


@pytest.mark.parametrize("place", ["distributed"], indirect=True)
async def test_a_gateway_without_a_bus_asks_for_what_was_revoked(place: Distributed, email: str) -> None:
    token = await place.token_of(email)
    await place.operate("users", "suspend", email)
    await asyncio.to_thread(place.restart_gateway, without="RABBITMQ_URL")

    async def is_dead() -> bool:
        return await place.me(token) == 401

    await eventually(is_dead)  # at once, unless identity needs longer for its answer than the gateway waits for it
    assert not [line for line in place.log if "rabbitmq" in line["msg"]]
