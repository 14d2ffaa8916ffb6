"""Every service as the apps build it, each on a port of its own, and the gateway before all of them, in one mode."""

import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from refract.apps.builders import Extras, build
from refract.apps.own_settings import Defaults, read_settings
from refract.kernel.clock import SystemClock
from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.edge import Application, Receive, Scope, Send
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.environment import Environment
from refract.runtime.metrics import Metrics
from refract.runtime.migrations import migrate
from refract.runtime.ports import Cache, Database, EventBus, RateLimiter
from refract.runtime.service import Foundation, Service
from refract.runtime.statements import Statement
from refract.runtime.tokens import TokenSigner, TokenVerifier
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import ROUTES, Route
from refract.services.gateway.ports import Services
from refract.services.gateway.service import build_gateway
from refract.services.identity.adapters.hashing import Hasher
from refract.services.identity.service import build_identity
from refract.services.identity.settings import IdentitySettings
from tests.support.buses import EmbeddedBuses, RabbitBuses
from tests.support.databases import Location, open_database
from tests.support.http import Answer, Client, running
from tests.support.redis_twins import connected, shared_cache
from tests.support.stack import drop_databases

GATEWAY = "gateway"
BASE_URL = "http://sho.rt"
WITH_OPERATIONS = ("links", "analytics", "identity", "notifications")
"""The services that serve users, and so the ones that a house has. What sms serves is for administrators alone, and has
no owner (decision 17)."""

_TABLES = {
    "embedded": "SELECT name FROM sqlite_master WHERE type = 'table'",
    "distributed": "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'",
}

_WITHOUT_USERS = frozenset({"alembic_version", "snowflake_workers"})


@dataclass(frozen=True, order=True)
class Operation:
    """One method on one path of a service, and whether its description says that it wants a token."""

    service: str
    method: str
    path: str
    wants_token: bool

    @property
    def route(self) -> Route | None:
        """Its row in the public table; None where only its own port serves it."""
        fitting = (route for route in ROUTES if (route.target, route.forward) == (self.service, self.path))
        return next((route for route in fitting if self.method in route.methods), None)

    @property
    def doors(self) -> list[str]:
        """Where it can be asked for."""
        return [self.service] if self.route is None else [GATEWAY, self.service]

    def target(self, door: str, **values: str) -> str:
        """Its path as it is asked for at a door, with values in the place of parameters."""
        path = self.path
        if door == GATEWAY:
            assert self.route is not None, f"{self} has no row"
            path = self.route.path
        return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], "aB3xY9z"), path)


@dataclass(frozen=True)
class _Engines:
    """What all services of a house share; `trusted` are the proxies that they believe about the client."""

    bus: EventBus
    cache: Cache
    limiter: RateLimiter
    trusted: Sequence[str] = ()


@dataclass
class House:
    """Where the doors are, what is behind them, and who may sign tokens."""

    mode: str
    secret: str
    databases: dict[str, Database] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    """Of the services, and of the gateway."""
    reached: Counter[str] = field(default_factory=Counter)
    """How many requests came to each service, by whichever door."""
    served: dict[str, set[str]] = field(default_factory=dict)
    """The paths that each service knows, described or not."""

    def token(self, user_id: str, email: str) -> str:
        """A good token."""
        return TokenSigner(self.secret, SystemClock()).sign(user_id, email).token

    async def call(
        self, door: str, method: str, target: str, body: Any = None, *headers: str, token: str = ""
    ) -> Answer:
        """One request on a connection of its own."""
        lines = (*headers, f"Authorization: Bearer {token}") if token else headers
        async with await Client.connect(self.ports[door]) as client:
            if body is None:
                return await client.get(target, *lines, method=method)
            return await client.post(target, msgspec.json.encode(body), *lines, method=method)

    async def operations(self) -> list[Operation]:
        """All there are, as the services themselves describe them."""
        found = []
        for name in self.databases:
            document = (await self.call(name, "GET", "/docs/openapi.json")).json
            for path, methods in document.get("paths", {}).items():
                found += [
                    Operation(name, method.upper(), path, wants_token=bool(described.get("security")))
                    for method, described in methods.items()
                ]
        return sorted(found)

    async def rows(self, name: str) -> list[str]:
        """Everything in every table of a service, as text, but the index of its full-text search."""
        database = self.databases[name]
        tables = await database.fetch(Statement("tables", "Lists the tables.", _TABLES[self.mode]))
        found = []
        for table in sorted({str(row["name"]) for row in tables} - _WITHOUT_USERS):
            if "_search" not in table:
                rows = await database.fetch(Statement("rows", "Reads all.", f"SELECT * FROM {table}"))
                found += sorted(f"{table}: {dict(row)}" for row in rows)
        return found


@asynccontextmanager
async def embedded_house(folder: Path) -> AsyncIterator[House]:
    """All services in one process; the gateway hands requests over without a socket."""
    async with AsyncExitStack() as stack:
        buses = EmbeddedBuses(folder)
        stack.push_async_callback(buses.close)
        house = House("embedded", secrets.token_urlsafe(48))
        engines = _Engines(await buses.open(), EmbeddedCache(), EmbeddedRateLimiter())
        locations = {name: folder / f"{name}.db" for name in WITH_OPERATIONS}
        applications = await _open_services(house, engines, locations, folder, stack)
        await _open_gateway(house, InProcess(applications), stack)
        yield house


@asynccontextmanager
async def distributed_house(folder: Path, servers: Mapping[str, str]) -> AsyncIterator[House]:
    """Each service over the servers; the gateway reaches them over HTTP, and they believe it about the client."""
    dsn = servers["postgres"]
    databases = await _create_databases(dsn)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(drop_databases, dsn, databases)
        buses = RabbitBuses(servers["rabbitmq"])
        stack.push_async_callback(buses.close)
        redis = await stack.enter_async_context(connected(servers["redis"]))
        cache = await stack.enter_async_context(shared_cache(redis, f"house-{secrets.token_hex(4)}"))
        house = House("distributed", secrets.token_urlsafe(48))
        engines = _Engines(await buses.open(), cache, DistributedRateLimiter(redis), ["127.0.0.1"])
        await _open_services(house, engines, databases, folder, stack)
        urls = {name: f"http://127.0.0.1:{port}" for name, port in house.ports.items()}
        await _open_gateway(house, Proxy(urls), stack)
        yield house


async def _create_databases(dsn: str) -> dict[str, str]:
    prefix = f"house_{secrets.token_hex(4)}_"
    connection = await asyncpg.connect(dsn)
    try:
        for name in WITH_OPERATIONS:
            await connection.execute(f'CREATE DATABASE "{prefix}{name}" TEMPLATE template0')
    finally:
        await connection.close()
    return {name: urlsplit(dsn)._replace(path=f"/{prefix}{name}").geturl() for name in WITH_OPERATIONS}


async def _open_services(
    house: House, engines: _Engines, locations: Mapping[str, Location], folder: Path, stack: AsyncExitStack
) -> dict[str, Application]:
    """Their applications, each of which answers on a port of its own as well."""
    applications = {}
    for name, location in locations.items():
        await migrate(name, location)
        house.databases[name] = database = await open_database(location)
        stack.push_async_callback(database.close)
        application: Any = (await _build(house, name, engines, folder, stack)).application
        house.served[name] = {route.path_format for route in application._app.routes}
        applications[name] = _noting(application, house, name)
        house.ports[name] = (await stack.enter_async_context(running(applications[name]))).port
    return applications


def _noting(application: Application, house: House, name: str) -> Application:
    async def noted(scope: Scope, receive: Receive, send: Send) -> None:
        house.reached[name] += 1
        await application(scope, receive, send)

    return noted


async def _build(house: House, name: str, engines: _Engines, folder: Path, stack: AsyncExitStack) -> Service:
    foundation = Foundation(
        house.databases[name],
        engines.bus,
        SystemClock(),
        Metrics(),
        TokenVerifier([house.secret], SystemClock()),
        timedelta(days=1),
        trusted_proxies=[ip_network(network) for network in engines.trusted],
    )
    settings = read_settings(name, Environment({}), Defaults(BASE_URL, "salt", folder / "spool"))
    if isinstance(settings, IdentitySettings):
        hasher = Hasher(4)  # the lowest cost: who may do what does not depend on it
        stack.callback(hasher.close)
        return await build_identity(foundation, settings, engines.limiter, house.secret, hasher=hasher)
    return await build(foundation, name, settings, Extras(engines.cache, engines.limiter, house.secret))


async def _open_gateway(house: House, services: Services, stack: AsyncExitStack) -> None:
    gateway = build_gateway(services, tokens=TokenVerifier([house.secret], SystemClock()), base_url=BASE_URL)
    stack.push_async_callback(gateway.stop)
    server = await stack.enter_async_context(running(gateway.application, fast_path=gateway.fast_path))
    house.ports[GATEWAY] = server.port


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["embedded", "distributed"])
async def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """A house in both modes, which the tests of a file share, as they share their event loop."""
    folder = tmp_path_factory.mktemp("house")
    if request.param == "embedded":
        async with embedded_house(folder) as opened:
            yield opened
        return
    servers = {
        "postgres": request.getfixturevalue("postgres_dsn"),
        "redis": request.getfixturevalue("redis_address"),
        "rabbitmq": request.getfixturevalue("rabbitmq_url"),
    }
    async with distributed_house(folder, servers) as opened:
        yield opened
