"""One PostgreSQL connection: opening it, the form of its values, and its errors in our words."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import msgspec

from refract.kernel.errors import Invalid, Misconfigured, RefractError, Unavailable, UniqueViolation
from refract.runtime.statements import Statement
from refract.runtime.transactions import COMMAND_TIMEOUT, StatementFailed

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

CONNECT_TIMEOUT = 3.0
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")

# By the beginning of the SQLSTATE: lost connection, rollback for concurrency, no resources, operator's hand, the
# server's own disk, wrong login and missing database (which whoever runs the server mends while we wait), lock timeout.
_TRANSIENT = ("08", "40", "53", "57", "58", "28", "3D", "55P03")
_JSONB_VERSION = b"\x01"


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


async def connect(dsn: str, *, service: str) -> "Connection":
    """Open a connection on which values have our form; raises Unavailable, whatever went wrong."""
    settings = {
        "application_name": f"refract-{service}",
        "timezone": "UTC",
        # Only a transaction that says so may write: a read outside of one cannot change anything by mistake.
        "default_transaction_read_only": "on",
        # A process that vanished from the network must not hold its locks for hours.
        "idle_in_transaction_session_timeout": "60s",
    }
    connection: Connection | None = None
    with translated("connect"):
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await asyncpg.connect(dsn, command_timeout=COMMAND_TIMEOUT, server_settings=settings)
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
    return str(UUID(bytes=bytes(stored)))


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
def translated(statement: str) -> Iterator[None]:
    """Our errors in place of the driver's, whose texts can quote rows and connection strings."""
    try:
        yield
    except RefractError:
        raise
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise _translation(error, statement) from None
    except (OverflowError, ValueError):
        raise Invalid("a value does not fit its column") from None


def _translation(error: Exception, statement: str) -> RefractError:
    if isinstance(error, asyncpg.UniqueViolationError):
        return UniqueViolation(error.constraint_name or "")
    if isinstance(error, OSError):
        return Unavailable("database", _description(error))
    if isinstance(error, asyncpg.PostgresError):
        return _server_error(error, statement)
    if isinstance(error, ValueError) and not isinstance(error, asyncpg.exceptions.ClientConfigurationError):
        return Invalid("a value does not fit its column")
    return Unavailable("database", type(error).__name__)


def _server_error(error: asyncpg.PostgresError, statement: str) -> RefractError:
    code = error.sqlstate or ""
    if code == "22021":
        return Invalid("text may not contain the character NUL")
    if code.startswith("22"):
        return Invalid("a value does not fit its column")
    if code.startswith(_TRANSIENT) or isinstance(error, asyncpg.InvalidCachedStatementError):
        return Unavailable("database", f"{type(error).__name__} ({code})")
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
