"""One PostgreSQL connection: opening it, the form of its values, and its errors in our words."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import msgspec
from asyncpg.pgproto import pgproto

from refract.kernel.errors import Invalid, Misconfigured, RefractError, TimedOut, Unavailable, UniqueViolation
from refract.runtime.statements import Statement
from refract.runtime.transactions import ACQUIRE_TIMEOUT, COMMAND_TIMEOUT, StatementFailed

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

CONNECT_TIMEOUT = 3.0
SILENCE_TIMEOUT = COMMAND_TIMEOUT + 1.0
"""The server ends a statement after COMMAND_TIMEOUT and says so; one that has not by now says nothing any more."""

CONNECTING = "connect"

REFUSES_WRITES = ("25006",)
REFUSES_TRANSACTIONS = ("0A000", "25006")
"""By these SQLSTATEs a server in recovery is known, where a statement writes and where a transaction begins."""

SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")

# By the beginning of the SQLSTATE: lost connection, rollback for concurrency, no resources, operator's hand, the
# server's own disk, wrong login and missing database (which whoever runs the server mends while we wait), lock timeout.
_TRANSIENT = ("08", "40", "53", "57", "58", "28", "3D", "55P03")
_STATEMENT_TIMEOUT = "57014"
_JSONB_VERSION = b"\x01"


class ReadOnlyServer(Unavailable):
    """This server does not take writes: after a failover, connections still lead to what has become a standby."""


def check_dsn(dsn: str) -> None:
    """Refuse what asyncpg would refuse, in words that quote nothing of it."""
    try:
        parts = urlsplit(dsn)
        modes = parse_qs(parts.query).get("sslmode", [])
        sound = parts.scheme in ("postgres", "postgresql") and (parts.port is None or parts.port > 0)
    except ValueError:
        sound, modes = False, []
    if not sound:
        raise Misconfigured('FATAL: a PostgreSQL DSN must have the form "postgres://user:password@host:5432/database"')
    if not set(modes) <= set(SSL_MODES):
        raise Misconfigured(f"FATAL: sslmode in a PostgreSQL DSN is one of {', '.join(SSL_MODES)}")


Plans = Literal["auto", "force_generic_plan", "force_custom_plan"]
"""Whether a statement has a plan for each call, one for all calls, or what looks better after a few of them."""


async def connect(dsn: str, *, service: str, reads_only: bool = True, plans: Plans = "auto") -> "Connection":
    """Open a connection on which values have our form; raises Unavailable, whatever went wrong.

    With `reads_only`, only a transaction that says so may write.
    """
    opening = asyncio.create_task(_open(dsn, service, reads_only=reads_only, plans=plans))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # asyncpg, cut off while it connects, leaves a future that complains to the log: let it finish, which is soon.
        opening.add_done_callback(_discard)
        raise


def _discard(opening: "asyncio.Task[Connection]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().terminate()


async def _open(dsn: str, service: str, *, reads_only: bool, plans: Plans) -> "Connection":
    settings = {
        "application_name": f"refract-{service}",
        "timezone": "UTC",
        # A read outside of a transaction cannot change anything by mistake.
        "default_transaction_read_only": "on" if reads_only else "off",
        # A process that vanished from the network must not hold its locks for hours.
        "idle_in_transaction_session_timeout": "60s",
        # The server's word, unlike our own clock, tells a slow statement from a silent server, and from a busy row.
        "statement_timeout": f"{COMMAND_TIMEOUT * 1000:.0f}",
        "lock_timeout": f"{ACQUIRE_TIMEOUT * 1000:.0f}",
        # To compile a plan takes a tenth of a second and more, and nothing that somebody waits for runs as long.
        "jit": "off",
        "plan_cache_mode": plans,
    }
    connection: Connection | None = None
    with translated(CONNECTING):
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await asyncpg.connect(dsn, command_timeout=SILENCE_TIMEOUT, server_settings=settings)
                await _set_codecs(connection)
        except BaseException:
            if connection is not None:
                connection.terminate()
            raise
    return connection


async def _set_codecs(connection: "Connection") -> None:
    """UUIDs as texts and JSON as values; in the binary format, which COPY needs."""
    codecs: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
        "uuid": (_encode_uuid, _decode_uuid),
        "json": (msgspec.json.encode, msgspec.json.decode),
        "jsonb": (_encode_jsonb, _decode_jsonb),
    }
    for name, (encode, decode) in codecs.items():
        await connection.set_type_codec(name, schema="pg_catalog", encoder=encode, decoder=decode, format="binary")


def _encode_uuid(value: Any) -> bytes:
    return value.bytes if isinstance(value, UUID) else UUID(value).bytes


def _decode_uuid(stored: bytes) -> str:
    # The driver's own, because a page has one for each row, and Python's takes fourteen times as long.
    return str(pgproto.UUID(stored))


def _encode_jsonb(value: Any) -> bytes:
    return _JSONB_VERSION + msgspec.json.encode(value)


def _decode_jsonb(stored: bytes) -> Any:
    return msgspec.json.decode(stored[1:])


def bound(statement: Statement, parameters: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The text of a statement and its values in the order of their numbers."""
    sql, names = statement.for_postgresql()
    try:
        values = [parameters[name] for name in names]
    except KeyError as missing:
        raise StatementFailed(statement.name, f"parameter {missing} is missing") from None
    check_values(values)
    return sql, values


def check_values(values: Iterable[Any]) -> None:
    """Refuse a moment without a zone, which asyncpg would take for local time."""
    for value in values:
        if type(value) is datetime and value.tzinfo is None:
            raise Invalid("a moment needs its time zone")


@contextmanager
def translated(statement: str, *, refusals: Sequence[str] = ()) -> Iterator[None]:
    """Our errors in place of the driver's, whose texts can quote rows and connection strings.

    `refusals` are the SQLSTATEs that mean, here, that the server takes no writes.
    """
    try:
        yield
    except RefractError:
        raise
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise _translation(error, statement, refusals) from None
    except (OverflowError, ValueError):
        raise Invalid("a value does not fit its column") from None


def _translation(error: Exception, statement: str, refusals: Sequence[str]) -> RefractError:
    if isinstance(error, asyncpg.UniqueViolationError):
        return UniqueViolation(error.constraint_name or "")
    if isinstance(error, OSError):
        return Unavailable("database", _description(error))
    if isinstance(error, asyncpg.PostgresError):
        return _server_error(error, statement, refusals)
    if isinstance(error, ValueError) and not isinstance(error, asyncpg.exceptions.ClientConfigurationError):
        return Invalid("a value does not fit its column")
    return Unavailable("database", type(error).__name__)


def _server_error(error: asyncpg.PostgresError, statement: str, refusals: Sequence[str]) -> RefractError:
    code = error.sqlstate or ""
    if code in refusals:
        return ReadOnlyServer("database", f"it takes no writes ({code})")
    if code == _STATEMENT_TIMEOUT:
        return TimedOut("database", f"statement {statement} took too long")
    if statement == CONNECTING or code.startswith(_TRANSIENT) or isinstance(error, asyncpg.InvalidCachedStatementError):
        return Unavailable("database", f"{type(error).__name__} ({code})")
    if code.startswith("22"):
        nul = code == "22021"
        return Invalid("text may not contain the character NUL" if nul else "a value does not fit its column")
    # The message proper names tables and columns; the values stand in the detail, which is left out.
    return StatementFailed(statement, f"{type(error).__name__} ({code}): {getattr(error, 'message', '')}")


def _description(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return f"{type(error).__name__}: {error.strerror or error}"


def rows_touched(status: str) -> int:
    """The number at the end of a command's status, such as `INSERT 0 3`."""
    count = re.search(r"\d+\Z", status)
    return int(count[0]) if count else 0
