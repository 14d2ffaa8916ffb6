"""Identity's mails in one mode: a migrated database, a limiter, the routes behind a server, and users to write to."""

import asyncio
import json
import secrets
import shutil
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from refract.kernel.events import PLATFORM_EXCHANGE, EventDecoder
from refract.runtime.correlation import correlated
from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.migrations import migrate
from refract.runtime.ports import Database, RateLimiter, Row, Transaction
from refract.runtime.statements import Statement
from refract.runtime.web import build_app
from refract.services.identity.adapters.hashing import Hasher
from refract.services.identity.commands.mailing import MailLimits, Mails
from refract.services.identity.commands.resetting import AskingForReset, Resetting
from refract.services.identity.commands.verifying import Verifying, ask_for_verification
from refract.services.identity.domain.accounts import User
from refract.services.identity.domain.one_time import ResetAsked
from refract.services.identity.http.mail_tokens import mail_token_routes
from refract.services.identity.store import COLUMNS, Users, user_of
from tests.support.clocks import ManualClock
from tests.support.databases import Location, administer, open_database
from tests.support.http import Answer, Client, running
from tests.support.outboxes import OUTBOX
from tests.support.redis_twins import connected

BASE_URL = "https://sho.rt"
PASSWORD = "the password of before"
NEW_PASSWORD = "the password of after"

TOKENS = Statement("tokens", "Reads the tokens.", "SELECT * FROM one_time_tokens ORDER BY created_at, token_hash")
FIND_USER = Statement("find_user", "Reads a user.", f"SELECT {', '.join(COLUMNS)} FROM users WHERE id = :id")
ADD_FOREIGN = Statement(
    "add_foreign",
    "Keeps a user of another issuer.",
    """
    INSERT INTO users (id, email, oidc_issuer, oidc_subject, created_at, updated_at)
    VALUES (:id, :email, 'https://issuer.example', 'subject', :now, :now)
    """,
)


class CountingHasher(Hasher):
    """A cheap hasher that counts its work."""

    def __init__(self) -> None:
        super().__init__(cost=4, threads=1)
        self.hashed = 0

    async def hash(self, password: str, *, of_user: bool = False) -> str:
        self.hashed += 1
        return await super().hash(password, of_user=of_user)


class NotingDatabase:
    """Notes what is asked of a database, as a client who measures time would have to."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.noted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def fetch_one(self, statement: Statement, **parameters: Any) -> Row | None:
        self.noted.append(statement.name)
        return await self._database.fetch_one(statement, **parameters)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._database.transaction() as tx:
            yield _NotingTransaction(tx, self.noted)
        self.noted.append("commit")


class _NotingTransaction:
    def __init__(self, tx: Transaction, noted: list[str]) -> None:
        self._tx = tx
        self._noted = noted

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._tx, name)

        async def note(*arguments: Any, **parameters: Any) -> Any:
            self._noted.append(f"{name} {' '.join(getattr(one, 'name', type(one).__name__) for one in arguments)}")
            return await work(*arguments, **parameters)

        return note


@dataclass
class MailDesk:
    """The commands of mails, their routes, and what they wrote."""

    database: Database
    limiter: RateLimiter
    clock: ManualClock = field(default_factory=ManualClock)
    dual_publish: bool = False
    salt: str = field(default_factory=lambda: secrets.token_hex(8))
    hasher: CountingHasher = field(default_factory=CountingHasher)
    port: int = 0
    answered: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.users = Users()
        self.limits = MailLimits(self.limiter, self.salt)
        self.verifying = Verifying(self.database, self.clock)
        self.resetting = Resetting(self.database, self.clock, self.hasher, "length")

    @property
    def mails(self) -> Mails:
        return Mails(self.clock, BASE_URL, dual_publish=self.dual_publish)

    @property
    def asking(self) -> AskingForReset:
        return AskingForReset(self.database, self.clock, self.limits, self.mails)

    def routes(self) -> list[Any]:
        return mail_token_routes(self.verifying, self.asking, self.resetting)

    async def call(self, path: str, body: Any) -> Answer:
        """One request; bytes are sent as they are, anything else as JSON."""
        sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with await Client.connect(self.port) as client:
            return await client.post(path, sent)

    async def user(self, email: str = "alice@example.com", *, status: str = "active", mailed: bool = False) -> User:
        """A new user with PASSWORD; `mailed` asks for the verification as registering does."""
        now = self.clock.now()
        user = User.local(email, await self.hasher.hash(PASSWORD), now)
        user = user if status == "active" else user.with_status("suspended", now)
        async with self.database.transaction() as tx:
            await self.users.add(tx, user)
            if mailed:
                await ask_for_verification(tx, self.mails, user_id=user.id, email=email)
        return user

    async def foreigner(self, email: str) -> None:
        """A user who signs in elsewhere."""
        async with self.database.transaction() as tx:
            user_id = "550e8400-e29b-41d4-a716-446655440009"
            await tx.execute(ADD_FOREIGN, id=user_id, email=email, now=self.clock.now())

    async def suspend(self, user: User) -> None:
        async with self.database.transaction() as tx:
            now = self.clock.now()
            await self.users.save(tx, (await self.users.get(tx, user.id)).with_status("suspended", now))

    async def found(self, user: User) -> User:
        """The user as they are now."""
        row = await self.database.fetch_one(FIND_USER, id=user.id)
        assert row is not None
        return user_of(row)

    async def has_password(self, user: User, password: str) -> bool:
        found = await self.found(user)
        assert found.password_hash is not None
        return await self.hasher.compare(password, found.password_hash)

    async def outbox(self, *event_types: str) -> list[Row]:
        rows = await self.database.fetch(OUTBOX)
        return [row for row in rows if not event_types or row["event_type"] in event_types]

    async def tokens(self) -> list[Row]:
        return await self.database.fetch(TOKENS)

    async def answer_wishes(self) -> None:
        """Do what the reader of identity.resets does, with every wish that is new."""
        decoder = EventDecoder(ResetAsked)
        for row in await self.outbox(ResetAsked.routing_key()):
            if row["id"] in self.answered:
                continue
            self.answered.add(row["id"])
            [asked] = decoder.decode(row["event_type"], row["payload"].encode())
            assert isinstance(asked, ResetAsked)
            async with self.database.transaction() as tx:
                await self.asking.answer(tx, asked)

    async def reset_token(self, user: User) -> str:
        """A token that has been mailed to a user."""
        with correlated("reset-of-a-test"):
            await self.asking.ask(user.email, secrets.token_hex(4))
        await self.answer_wishes()
        return (await self.mailed_tokens("email.password_reset.requested"))[-1]

    async def mailed_tokens(self, event_type: str) -> list[str]:
        """The tokens of the mails that were asked for, in their order."""
        rows = [row for row in await self.outbox(event_type) if row["exchange"] == PLATFORM_EXCHANGE]
        return tokens_in(json.loads(row["payload"]) for row in rows)


def tokens_in(envelopes: Iterable[Any]) -> list[str]:
    """The tokens in the links of mails."""
    return [envelope["payload"]["data"]["link"].partition("#token=")[2] for envelope in envelopes]


def _in_a_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run it to the end, beside whatever loop the tests have."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, work).result()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of identity, to be copied."""
    path = tmp_path_factory.mktemp("identity") / "identity.db"
    _in_a_thread(migrate("identity", path))
    return path


@pytest.fixture(scope="session")
def migrated_dsn(postgres_dsn: str) -> Iterator[str]:
    """A database of identity for all tests of mails, each of which leaves it empty."""
    name = f"test_{secrets.token_hex(8)}"
    dsn = urlsplit(postgres_dsn)._replace(path=f"/{name}").geturl()

    async def make() -> None:
        await administer(postgres_dsn, f"CREATE DATABASE {name} TEMPLATE template0")
        await migrate("identity", dsn)

    _in_a_thread(make())
    yield dsn
    _in_a_thread(administer(postgres_dsn, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(params=["embedded", "distributed"])
def mail_location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A database of identity in one mode."""
    if request.param == "distributed":
        dsn: str = request.getfixturevalue("migrated_dsn")
        return dsn
    copied = tmp_path / "identity.db"
    shutil.copy(request.getfixturevalue("migrated_file"), copied)
    return copied


@pytest.fixture
async def desk(mail_location: Location, request: pytest.FixtureRequest) -> AsyncIterator[MailDesk]:
    """The face of mails in both modes. The clock stands still until a test turns it; Redis has its own."""
    async with AsyncExitStack() as stack:
        database = await open_database(mail_location)
        stack.push_async_callback(database.close)
        stack.push_async_callback(_empty, database)
        clock = ManualClock()
        limiter: RateLimiter = EmbeddedRateLimiter(clock)
        if not isinstance(mail_location, Path):
            limiter = DistributedRateLimiter(
                await stack.enter_async_context(connected(request.getfixturevalue("redis_address")))
            )
        desk = MailDesk(database, limiter, clock)
        stack.callback(desk.hasher.close)
        server = await stack.enter_async_context(running(build_app("user-service", desk.routes(), ready={})))
        desk.port = server.port
        yield desk


async def _empty(database: Database) -> None:
    async with database.transaction() as tx:
        for table in ("users", "one_time_tokens", "revocations", "outbox", "inbox", "inbox_attempts"):
            await tx.execute(Statement("empty", "Empties a table.", f"DELETE FROM {table}"))
