"""SQL statements as named values: one statement, one name, one sentence, and its dialect beside it where it has one."""

import re
from dataclasses import dataclass
from functools import lru_cache

# A parameter is a colon and a name; `::type` is a cast, and what stands inside quotes or a comment is text.
_PARAMETER = re.compile(r"""'[^']*'|"[^"]*"|--[^\n]*|/\*.*?\*/|::|:([A-Za-z_][A-Za-z0-9_]*)""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with `:named` parameters that runs on both engines, or has a `sqlite` form where the engines differ.

    The usual differences: a list is `= ANY(:codes)` on PostgreSQL and `IN (SELECT value FROM json_each(:codes))` on
    SQLite, which has no `::type` casts and no row locks either. SQLite knows the type of a column and not that of an
    expression: a moment that is computed is named for its type there, as in `max(at) AS "latest [TIMESTAMP]"`.

    Rows that are taken with `SKIP LOCKED` are chosen in `= ANY(ARRAY(SELECT …))`, once: what stands in `IN (SELECT …)`
    PostgreSQL may ask for again, and is then given the rows after the first ones, past any `LIMIT`.
    """

    name: str
    sentence: str
    sql: str
    sqlite: str | None = None
    steady: bool = False
    """Whether its plan is the same for all values, so that PostgreSQL need make it only once on a connection.

    Else it may plan every call anew, which can take longer than what is planned. For reads outside of transactions, and
    not of partitions that values leave out: a plan for all values would open all of them."""

    varied: bool = False
    """Whether the best plan depends so much on the values that PostgreSQL is to make one for each call.

    Else it may settle, after five calls, for one that looks no worse than theirs, and is for other values. For reads
    outside of transactions."""

    urgent: bool = False
    """Whether somebody who follows a link waits for it. Readers of SQLite take any question, however long, in its turn:
    these have a reader of their own. For reads outside of transactions that are always short."""

    longest: float | None = None
    """Seconds after which it is given up, where that is sooner than for others, from when it has a connection.
    For reads outside of transactions."""

    def for_sqlite(self) -> str:
        """The text for SQLite, which knows `:named` parameters itself."""
        return self.sql if self.sqlite is None else self.sqlite

    def for_postgresql(self) -> tuple[str, tuple[str, ...]]:
        """The text for PostgreSQL with `$1` parameters, and their names in that order."""
        return _numbered(self.sql)


@lru_cache(maxsize=2048)
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return match.group(0)
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _PARAMETER.sub(number, sql), tuple(names)
