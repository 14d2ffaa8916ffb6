"""The database port over PostgreSQL."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

from refract.kernel.errors import RefractError, TimedOut, Unavailable
from refract.runtime.distributed.listening import Listener
from refract.runtime.distributed.pool import MAX_CONNECTIONS, ConnectionPool
from refract.runtime.distributed.postgresql import (
    REFUSES_TRANSACTIONS,
    REFUSES_WRITES,
    bound,
    check_dsn,
    check_values,
    connect,
    rows_touched,
    translated,
)
from refract.runtime.environment import without_credentials
from refract.runtime.messages import Message
from refract.runtime.ports import Row, Transaction
from refract.runtime.statements import Statement
from refract.runtime.transactions import OUTBOX_COLUMNS, Bell, Outgoing, outbox_rows

if TYPE_CHECKING:
    from refract.runtime.distributed.postgresql import Connection

logger = logging.getLogger("refract.database")

PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Seconds before each attempt to connect at the start."""

STEADY_CONNECTIONS = 6
"""For statements with one plan, which are over in a millisecond; none is open before there is one."""

VARIED_CONNECTIONS = 5
"""For statements with a plan for each call; none is open before there is one."""

CHANNEL = "refract_outbox"

LAST_WORDS = 1.0
"""Seconds that the last call to other processes has, when we close."""

NOTIFY_PAUSE = 0.1
"""Seconds between two calls to other processes: under load one stands for all announcements in between."""

PING = Statement("ping", "Asks for an answer.", "SELECT 1 AS answer")

_INSERT = f"INSERT INTO outbox ({', '.join(OUTBOX_COLUMNS)})"
_INSERT_ONE = f"{_INSERT} VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_INSERT_MANY = (
    f"{_INSERT} SELECT * FROM unnest"  # noqa: S608  # names, not values
    "($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::boolean[], $8::timestamptz[], "
    "$9::timestamptz[])"
)


class PostgresDatabase:
    """A service's own database on a PostgreSQL server. Reads see what is committed."""

    dialect: Literal["postgresql"] = "postgresql"
    reads_at_once: int = MAX_CONNECTIONS

    def __init__(self, dsn: str, service: str) -> None:
        open_connection = partial(connect, dsn, service=service)
        pool = partial(ConnectionPool, when_dropped=self._forget_idle)
        self._pool: ConnectionPool = pool(open_connection)
        self._steady: ConnectionPool = pool(
            partial(open_connection, plans="force_generic_plan"), most=STEADY_CONNECTIONS, kept=0
        )
        self._varied: ConnectionPool = pool(
            partial(open_connection, plans="force_custom_plan"), most=VARIED_CONNECTIONS, kept=0
        )
        # Here a statement outside of a transaction may write, and is one itself: a post is a single round trip.
        self._posts: ConnectionPool = pool(partial(open_connection, reads_only=False), most=2, kept=0)
        self._bell = Bell()
        self._listener = Listener(CHANNEL, open_connection, self._hear)
        self._name = secrets.token_hex(8)
        self._telling: asyncio.Task[None] | None = None
        self._untold = False

    @classmethod
    async def open(cls, dsn: str, *, service: str, pauses: Sequence[float] = PAUSES) -> Self:
        """Connect, with an attempt after each pause; when the last one fails, raises Unavailable."""
        check_dsn(dsn)
        host = urlsplit(without_credentials(dsn)).netloc
        reason = ""
        for attempt, pause in enumerate(pauses, start=1):
            await asyncio.sleep(pause)
            database = cls(dsn, service)
            try:
                await database._pool.start()
                await database._posts.start()
                await database._steady.start()
                await database._varied.start()
            except Unavailable as error:
                await database.close()
                reason = error.reason
                extra = {"dsn_host": host, "attempt": attempt, "reason": reason}
                logger.warning("DB connection attempt failed", extra=extra)
            else:
                logger.info("connected to DB", extra={"dsn_host": host})
                return database
        raise Unavailable("database", f"failed after {len(pauses)} attempts: {reason}")

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Row]:
        """All rows."""
        sql, values = bound(statement, parameters)
        pool = self._varied if statement.varied else self._steady if statement.steady else self._pool
        async with pool.connection() as connection:
            with translated(statement.name):
                try:
                    records = await connection.fetch(sql, *values, timeout=statement.longest)
                except TimeoutError:
                    if statement.longest is None:
                        raise
                    raise TimedOut("database", f"statement {statement.name} took too long") from None
                return [dict(record) for record in records]

    async def fetch_one(self, statement: Statement, **parameters: Any) -> Row | None:
        """The first row, if there is one."""
        rows = await self.fetch(statement, **parameters)
        return rows[0] if rows else None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Begin; commit at the end of the block. When it raises, the pool rolls back."""
        async with self._pool.connection() as connection:
            transaction = PostgresTransaction(connection)
            try:
                await transaction.begin()
                yield transaction
                await transaction.commit()
            finally:
                transaction.end("it has ended")
        if transaction.announced:
            self._tell()

    async def post(self, *messages: Message, held: float = 0.0) -> list[str]:
        """Save messages in a transaction of their own; returns the ids of their rows."""
        if not messages:
            return []
        rows = outbox_rows(messages, held)
        async with self._posts.connection() as connection:
            with translated("post", refusals=REFUSES_WRITES):
                await _insert(connection, rows)
        if not held:
            self._tell()
        return [row[0] for row in rows]

    async def announced(self, timeout: float) -> None:
        """Return when something was announced here or in another process, or after `timeout` seconds."""
        self._listener.start()
        await self._bell.heard(timeout)

    async def ping(self) -> None:
        """Return if it answers; raise Unavailable if not."""
        await self.fetch(PING)

    async def close(self) -> None:
        """Give everything back. What runs is finished first."""
        await self._listener.stop()
        if (telling := self._telling) is not None:
            await asyncio.wait([telling], timeout=LAST_WORDS)
            telling.cancel()
        await self._posts.close()
        await asyncio.gather(self._steady.close(), self._varied.close(), self._pool.close())

    def _forget_idle(self) -> None:
        """One connection was cut, or leads to a server that takes no writes any more: then so may all.

        Those that only read would not hear of it, and go on at a server that was left behind.
        """
        for pool in (self._pool, self._steady, self._varied, self._posts):
            pool.forget_idle()

    def _tell(self) -> None:
        """Wake our own relay at once, and soon those of other processes."""
        self._bell.ring()
        self._untold = True
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell_others(), name="database notifier")

    async def _tell_others(self) -> None:
        """Not within the transaction: those that notify commit one after the other, and no two share a write to disk.

        A call that is lost, because we are killed here or the server is away, is made good by the others' polling.
        """
        try:
            while self._untold:
                self._untold = False
                async with self._posts.connection() as connection:
                    with translated("notify"):
                        await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, self._name)
                await asyncio.sleep(NOTIFY_PAUSE)
        except RefractError as error:
            logger.debug("other processes not notified; they poll", extra={"error": str(error)})
        finally:
            self._telling = None

    def _hear(self, payload: str | None) -> None:
        """What we said ourselves is no news; without a payload some calls may have been missed."""
        if payload != self._name:
            self._bell.ring()


class PostgresTransaction(Outgoing):
    """A transaction on one connection; its statements run one after the other."""

    def __init__(self, connection: "Connection") -> None:
        super().__init__()
        self._connection = connection
        self._one_at_a_time = asyncio.Lock()

    async def begin(self) -> None:
        """Start; without this word the connection would only let us read."""
        with translated("begin", refusals=REFUSES_TRANSACTIONS):
            await self._connection.execute("BEGIN READ WRITE")

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Row]:
        """All rows."""
        async with self._step(statement.name):
            sql, values = bound(statement, parameters)
            return [dict(record) for record in await self._connection.fetch(sql, *values)]

    async def fetch_one(self, statement: Statement, **parameters: Any) -> Row | None:
        """The first row, if there is one."""
        rows = await self.fetch(statement, **parameters)
        return rows[0] if rows else None

    async def execute(self, statement: Statement, **parameters: Any) -> int:
        """Run a statement; returns how many rows it touched."""
        async with self._step(statement.name):
            sql, values = bound(statement, parameters)
            return rows_touched(await self._connection.execute(sql, *values))

    async def execute_many(self, statement: Statement, parameters: Sequence[Mapping[str, Any]]) -> None:
        """Run one statement for each set of parameters."""
        async with self._step(statement.name):
            sql, _ = statement.for_postgresql()
            values = [bound(statement, each)[1] for each in parameters]
            try:
                await self._connection.executemany(sql, values)
            except TimeoutError:
                # The server's limit is for each of them; all together ran into ours.
                raise TimedOut("database", f"statement {statement.name} took too long") from None

    async def insert_many(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write many rows with COPY."""
        records = list(rows)  # what the caller's generator raises is the caller's own
        async with self._step(f"insert_many {table}"):
            for record in records:
                check_values(record)
            await self._connection.copy_records_to_table(table, columns=columns, records=records)

    async def commit(self) -> None:
        """Keep everything."""
        async with self._step("commit"):
            status = await self._connection.execute("COMMIT")
        if status != "COMMIT":
            raise Unavailable("database", f"the commit ended in {status}")

    @asynccontextmanager
    async def _step(self, name: str) -> AsyncIterator[None]:
        """Whatever waits to be written goes first; after a failure the transaction is over."""
        async with self._one_at_a_time:
            self.check_usable()
            try:
                with translated(name, refusals=REFUSES_WRITES):
                    await self._write_waiting()
                    yield
            except BaseException:
                self.end("a statement of it failed")
                raise

    async def _write_waiting(self) -> None:
        messages = self.take_waiting()
        if messages:
            await _insert(self._connection, outbox_rows(messages))


async def _insert(connection: "Connection", rows: Sequence[Sequence[Any]]) -> None:
    """Write rows of the outbox; nearly always it is one, for which neither side has to take lists apart."""
    if len(rows) == 1:
        await connection.execute(_INSERT_ONE, *rows[0])
    else:
        await connection.execute(_INSERT_MANY, *map(list, zip(*rows, strict=True)))
