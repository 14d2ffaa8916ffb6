"""Tables that every service has, for its first migration, and column types that fit both engines.

Imported by migrations alone, because it needs Alembic. The functions are frozen: a table that has to change gets a
function for the change, which a new migration of each service calls.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import BYTEA, JSONB
from sqlalchemy.types import TypeEngine, UserDefinedType


class JsonText(UserDefinedType[Any]):
    """JSON in SQLite: kept as text, where the plain name JSON would let SQLite turn it into numbers."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """The declared type, by which the embedded twin recognises it."""
        return "JSONTEXT"


def identifier() -> TypeEngine[Any]:
    """A UUID, which Python sees as text."""
    return sa.Uuid(as_uuid=False).with_variant(sa.Text(), "sqlite")


def moment() -> TypeEngine[Any]:
    """A moment in UTC; SQLite keeps microseconds since 1970."""
    return sa.TIMESTAMP(timezone=True)


def document() -> TypeEngine[Any]:
    """A JSON object or array, given as a dictionary or a list; a bare text or number would not be known as JSON."""
    return JSONB().with_variant(JsonText(), "sqlite")


def octets() -> TypeEngine[Any]:
    """Bytes."""
    return sa.LargeBinary().with_variant(BYTEA(), "postgresql")


def now() -> sa.TextClause:
    """The default of a moment that the writer leaves out; SQLite's is exact to the millisecond."""
    if op.get_context().dialect.name == "postgresql":
        return sa.text("now()")
    return sa.text("(CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)")


def create_outbox_v1() -> None:
    """Events on their way to the bus. A row without `next_attempt_at` is due at once.

    A row may hold hundreds of clicks, and SQLite writes a row anew when its length changes. So what changes stands in
    front of the payload, and `room` takes as many bytes as `published_at` needs, and gives them up for it.
    """
    room = (sa.Column("room", sa.BigInteger(), server_default=sa.text(str(1 << 60))),)
    op.create_table(
        "outbox",
        sa.Column("id", identifier(), primary_key=True),
        sa.Column("published_at", moment(), nullable=True),
        *(room if op.get_context().dialect.name == "sqlite" else ()),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("next_attempt_at", moment(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("exchange", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("mandatory", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("created_at", moment(), nullable=False, server_default=now()),
        # Text and not JSONB, so that the bytes of a body come out as they went in.
        sa.Column("payload", sa.Text(), nullable=False),
    )
    # One index for each of the relay's two questions: a heap of rows of one kind costs the other nothing.
    _index_where("outbox_fresh", "id", "published_at IS NULL AND attempts = 0")
    _index_where("outbox_failed", "next_attempt_at", "published_at IS NULL AND attempts > 0")


def _index_where(name: str, column: str, condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, "outbox", [column], postgresql_where=where, sqlite_where=where)


def create_inbox_v1() -> None:
    """What each reader has handled, and how often it has tried what it has not."""
    op.create_table(
        "inbox",
        sa.Column("reader", sa.Text(), nullable=False, primary_key=True),
        sa.Column("event_id", sa.Text(), nullable=False, primary_key=True),
        sa.Column("handled_at", moment(), nullable=False, server_default=now()),
    )
    op.create_index("inbox_handled_at", "inbox", ["handled_at"])
    op.create_table(
        "inbox_attempts",
        sa.Column("reader", sa.Text(), nullable=False, primary_key=True),
        sa.Column("message_id", sa.Text(), nullable=False, primary_key=True),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("updated_at", moment(), nullable=False, server_default=now()),
    )
