"""Values and errors between Python and SQLite, so that rows look as PostgreSQL's do and errors say the same."""

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from refract.kernel.errors import Invalid, RefractError, TimedOut, Unavailable, UniqueViolation
from refract.runtime.embedded.packing import unpacked
from refract.runtime.transactions import StatementFailed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_TRANSIENT = {
    sqlite3.SQLITE_BUSY: "it is locked by another process",
    sqlite3.SQLITE_LOCKED: "a table is locked",
    sqlite3.SQLITE_IOERR: "the disk failed",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
}
_UNIQUE = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
}


def to_sqlite(value: Any) -> Any:
    """A parameter as SQLite takes it."""
    convert = _TO_SQLITE.get(type(value))
    return value if convert is None else convert(value)


def _text(value: str) -> str:
    if "\0" in value:
        raise Invalid("text may not contain the character NUL")
    return value


def _moment(value: datetime) -> int:
    if value.tzinfo is None:
        raise Invalid("a moment needs its time zone")
    return (value - _EPOCH) // _MICROSECOND


def _json(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    if "\\u0000" in text and _contains_nul(value):
        raise Invalid("text may not contain the character NUL")
    return text


def _contains_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(map(_contains_nul, value.keys())) or any(map(_contains_nul, value.values()))
    return isinstance(value, Sequence) and not isinstance(value, bytes) and any(map(_contains_nul, value))


_TO_SQLITE: dict[type, Callable[[Any], Any]] = {
    str: _text,
    datetime: _moment,
    bool: int,
    list: _json,
    tuple: _json,
    dict: _json,
    UUID: str,
}


def register_types() -> None:
    """Teach sqlite3 the declared types of our columns; it keeps one table of them for the whole process."""
    sqlite3.register_converter("TIMESTAMP", lambda stored: _EPOCH + timedelta(microseconds=int(stored)))
    sqlite3.register_converter("BOOLEAN", lambda stored: stored != b"0")
    sqlite3.register_converter("JSONTEXT", msgspec.json.decode)
    sqlite3.register_converter("PACKED", lambda stored: unpacked(stored).decode(errors="replace"))


def translated(error: Exception, statement: str, connection: sqlite3.Connection) -> Exception:
    """The error that a caller sees in place of SQLite's."""
    if isinstance(error, RefractError):
        return error
    if isinstance(error, OverflowError | UnicodeError | sqlite3.DataError):
        return Invalid("a value does not fit its column")
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", 0)
    if code in _UNIQUE:
        return UniqueViolation(_constraint(str(error), connection))
    return _file_error(error, code, statement)


def _file_error(error: sqlite3.Error, code: int, statement: str) -> RefractError:
    if code == sqlite3.SQLITE_INTERRUPT:
        return TimedOut("database", f"statement {statement} took too long")
    reason = _TRANSIENT.get(code & 0xFF)
    if reason is not None:
        return Unavailable("database", reason)
    return StatementFailed(statement, f"{type(error).__name__}: {error}")


def _constraint(message: str, connection: sqlite3.Connection) -> str:
    """The name of the violated index: SQLite names only an index of expressions, and of others the columns."""
    named = re.search(r"index '(.+)'", message)
    if named:
        return named[1]
    places = [place.rpartition(".") for place in message.partition(": ")[2].split(", ")]
    table, columns = places[0][0], [column for _, _, column in places]
    for name, origin in connection.execute(
        "SELECT name, origin FROM pragma_index_list(?) WHERE \"unique\" ORDER BY origin = 'pk', name", (table,)
    ).fetchall():
        indexed = connection.execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", (name,)).fetchall()
        if [column for (column,) in indexed] == columns:
            return str(name) if origin == "c" else _declared_name(connection, table, columns, origin)
    return _declared_name(connection, table, columns, "pk")  # a key that is the row's own number has no index


def _declared_name(connection: sqlite3.Connection, table: str, columns: Sequence[str], origin: str) -> str:
    """The name of a constraint in CREATE TABLE, or the one that PostgreSQL would have given it."""
    [sql] = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    listed = r",\s*".join(rf'["`\[]?{re.escape(column)}["`\]]?' for column in columns)
    kind = r"PRIMARY\s+KEY" if origin == "pk" else "UNIQUE"
    declared = re.search(rf'CONSTRAINT\s+["`\[]?(\w+)["`\]]?\s+{kind}\s*\(\s*{listed}\s*\)', sql, re.IGNORECASE)
    if declared:
        return declared[1]
    return f"{table}_pkey" if origin == "pk" else f"{table}_{'_'.join(columns)}_key"
