"""Identity in one mode: a real server on a migrated database, a bus, a limiter, and a hasher that costs little."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.metrics import Metrics
from refract.runtime.ports import Database, RateLimiter
from refract.runtime.service import Foundation, Service
from refract.runtime.statements import Statement
from refract.runtime.tokens import TokenSigner, TokenVerifier
from refract.runtime.windows import Policy, Verdict
from refract.services.identity.adapters.hashing import Hasher
from refract.services.identity.domain.accounts import User
from refract.services.identity.service import build_identity
from refract.services.identity.settings import IdentitySettings
from refract.services.identity.store import Users
from tests.support.buses import Buses
from tests.support.clocks import ManualClock
from tests.support.databases import Location, furnish, open_database
from tests.support.http import Answer, Client, running
from tests.support.redis_twins import connected
from tests.support.worlds import buses_beside

SECRET = "the secret of identity, 32 bytes."
BASE_URL = "https://sho.rt"
EMAIL = "alice@example.com"
PASSWORD = "correct horse"

OUTBOX = Statement(
    "outbox",
    "Reads what was announced.",
    "SELECT event_type, exchange, payload FROM outbox ORDER BY id",
    sqlite='SELECT event_type, exchange, payload AS "payload [PACKED]" FROM outbox ORDER BY id',
)
USERS = Statement("users", "Reads every user.", "SELECT * FROM users ORDER BY created_at, id")


ON_SQLITE = pytest.mark.parametrize("empty_location", ["embedded"], indirect=True)
"""For tests of what does not depend on the engines: a database on a server takes a second to make and to drop."""


class CountingHasher(Hasher):
    """A hasher of the lowest cost that notes what it was asked for; `before` may hold it up."""

    def __init__(self, cost: int = 4) -> None:
        super().__init__(cost)
        self.calls: list[str] = []
        self.before: Callable[[], Awaitable[object]] | None = None

    async def hash(self, password: str, *, of_user: bool = False) -> str:
        """The same, noted."""
        await self._note("hash")
        return await super().hash(password, of_user=of_user)

    async def compare(self, password: str, password_hash: str) -> bool:
        """The same, noted."""
        await self._note("compare")
        return await super().compare(password, password_hash)

    async def compare_nothing(self, password: str) -> bool:
        """The same, noted."""
        await self._note("compare_nothing")
        return await super().compare_nothing(password)

    async def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.before is not None:
            await self.before()


class OwnCounters:
    """A limiter whose counters are this test's alone, though the server is everybody's."""

    def __init__(self, limiter: RateLimiter, namespace: str) -> None:
        self._limiter = limiter
        self._namespace = namespace

    async def hit(self, who: str, policy: Policy, cost: int = 1) -> Verdict:
        """Count under a name of our own."""
        return await self._limiter.hit(f"{self._namespace}{who}", policy, cost)

    def hit_soon(self, who: str, policy: Policy, cost: int = 1) -> Verdict | None:
        """Count under a name of our own."""
        return self._limiter.hit_soon(f"{self._namespace}{who}", policy, cost)

    async def ping(self) -> None:
        """As the limiter inside."""
        await self._limiter.ping()

    async def close(self) -> None:
        """As the limiter inside."""
        await self._limiter.close()


@dataclass
class IdentityWorld:
    """A database with users, and from the first call on a server before it."""

    database: Database
    clock: ManualClock
    limiter: RateLimiter
    hasher: CountingHasher
    signer: TokenSigner
    buses: Buses
    stack: AsyncExitStack = field(repr=False)
    metrics: Metrics = field(init=False, repr=False)
    service: Service = field(init=False, repr=False)
    port: int = 0

    async def serve(self, **settings: Any) -> None:
        """Begin to serve, or begin anew with settings that differ."""
        wanted = IdentitySettings(**{"base_url": BASE_URL, **settings})
        self.metrics = Metrics()
        foundation = Foundation(
            self.database,
            await self.buses.open(),
            self.clock,
            self.metrics,
            TokenVerifier([SECRET], self.clock),
            timedelta(days=7),
            trusted_proxies=(ip_network("127.0.0.1"),),
        )
        self.service = await build_identity(foundation, wanted, self.limiter, SECRET, hasher=self.hasher)
        server = await self.stack.enter_async_context(
            running(self.service.application, fast_path=self.service.fast_path)
        )
        self.port = server.port

    async def call(self, method: str, target: str, body: Any = None, *headers: str, token: str | None = None) -> Answer:
        """One request on a connection of its own; bytes are sent as they are, anything else as JSON."""
        if not self.port:
            await self.serve()
        lines = [*headers, *([] if token is None else [f"Authorization: Bearer {token}"])]
        async with await Client.connect(self.port) as client:
            if body is None:
                return await client.get(target, *lines, method=method)
            sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
            return await client.post(target, sent, *lines, method=method)

    async def register(self, email: str = EMAIL, password: str = PASSWORD, *headers: str) -> Answer:
        """POST /register."""
        return await self.call("POST", "/register", {"email": email, "password": password}, *headers)

    async def login(self, email: str = EMAIL, password: str = PASSWORD, *headers: str, **fields: Any) -> Answer:
        """POST /login."""
        return await self.call("POST", "/login", {"email": email, "password": password, **fields}, *headers)

    async def add(self, email: str = EMAIL, password: str | None = PASSWORD, **changes: Any) -> User:
        """A user in the database, past every check."""
        hashed = None if password is None else await Hasher.hash(self.hasher, password)
        user = replace(User.local(email, "", self.clock.now()), password_hash=hashed, **changes)
        async with self.database.transaction() as tx:
            await Users().add(tx, user)
        return user

    async def users(self) -> list[Any]:
        """The rows of all users."""
        return list(await self.database.fetch(USERS))

    async def announced(self) -> list[Any]:
        """What lies in the outbox: event type, exchange, payload."""
        return [{**row, "payload": msgspec.json.decode(row["payload"])} for row in await self.database.fetch(OUTBOX)]


@pytest.fixture
async def identity_location(empty_location: Location) -> Location:
    """A database with the tables of identity."""
    await furnish("identity", empty_location)
    return empty_location


@pytest.fixture
async def identity(
    identity_location: Location, request: pytest.FixtureRequest, redis_namespace: str
) -> AsyncIterator[IdentityWorld]:
    """Identity in both modes. The clock stands still until a test turns it; Redis has its own."""
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        database = await open_database(identity_location)
        stack.push_async_callback(database.close)
        limiter: RateLimiter = EmbeddedRateLimiter(clock)
        if not isinstance(identity_location, Path):
            redis = await stack.enter_async_context(connected(request.getfixturevalue("redis_address")))
            limiter = OwnCounters(DistributedRateLimiter(redis), redis_namespace)
        buses = buses_beside(identity_location, request)
        stack.push_async_callback(buses.close)
        hasher = CountingHasher()
        stack.callback(hasher.close)
        yield IdentityWorld(database, clock, limiter, hasher, TokenSigner(SECRET, clock), buses, stack)
