"""Clicks as they came, what they add up to, and what is known of the links they belong to."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

from refract.runtime.schema import document, identifier, moment, octets

revision = "0002"
down_revision = "0001"

DIMENSIONS = (
    "referer",
    "referrer",
    "country",
    "region",
    "city",
    "browser",
    "os",
    "device",
    "language",
    "utm_source",
    "utm_medium",
    "utm_campaign",
    "utm_term",
    "utm_content",
)


def upgrade() -> None:
    """Apply this revision."""
    _create_clicks()
    _create_totals()
    _create_rollups()
    _create_folding()
    _create_links()


def _code() -> TypeEngine[str]:
    """Sorted by code points on both engines, as Python sorts: rows are locked in that order."""
    return sa.Text(collation="C").with_variant(sa.Text(), "sqlite")


def _is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _create_clicks() -> None:
    """One row for each click. Its owner stands in links alone, so that a deleted account leaves nothing here."""
    texts = ("ip_anonymized", "user_agent", *DIMENSIONS)
    op.create_table(
        "clicks",
        sa.Column("clicked_at", moment(), nullable=False),
        sa.Column("latitude", sa.REAL(), nullable=True),
        sa.Column("longitude", sa.REAL(), nullable=True),
        sa.Column("bot", sa.Boolean(), nullable=False),
        sa.Column("event_id", _code(), nullable=False),
        sa.Column("short_code", _code(), nullable=False),
        sa.Column("visitor", octets(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=True) for name in texts),
        postgresql_partition_by="RANGE (clicked_at)",
    )
    op.create_index("clicks_by_link", "clicks", ["short_code", "clicked_at", "event_id"])
    if _is_postgresql():
        # No click fails for want of a partition.
        op.execute("CREATE TABLE clicks_default PARTITION OF clicks DEFAULT")


def _create_totals() -> None:
    """The whole life of each link, kept for ever, and a journal of what links has yet to be told.

    The journal has one row for each transaction that counted clicks. A mark in the totals would need an index on what
    changes with every click.
    """
    op.create_table(
        "totals",
        sa.Column("short_code", _code(), primary_key=True),
        sa.Column("clicks", sa.BigInteger(), nullable=False),
        sa.Column("bot_clicks", sa.BigInteger(), nullable=False),
        sa.Column("first_clicked_at", moment(), nullable=False),
        sa.Column("last_clicked_at", moment(), nullable=False),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "totals_changes",
        sa.Column("id", identifier(), primary_key=True),
        sa.Column("short_codes", document(), nullable=False),
    )
    op.create_table(
        "announcing",
        sa.Column("id", sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column("next_at", moment(), nullable=False),
    )
    op.create_table(
        "milestones",
        sa.Column("short_code", _code(), primary_key=True),
        sa.Column("milestone", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("triggered_at", moment(), nullable=False),
    )


def _create_rollups() -> None:
    """Hours are written with the clicks; days and months are folded from them when they are over."""
    op.create_table(
        "rollups",
        *_period(),
        sa.Column("clicks", sa.BigInteger(), nullable=False),
        sa.Column("bot_clicks", sa.BigInteger(), nullable=False),
        *(sa.Column(name, octets(), nullable=True) for name in ("parts", "visitors", "bot_visitors")),
        *(sa.Column(f"by_{dimension}", octets(), nullable=True) for dimension in DIMENSIONS),
        sa.PrimaryKeyConstraint("short_code", "span", "starts_at"),
        sa.CheckConstraint("span IN (1, 2, 3)", name="rollups_span"),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("rollups_by_period", "rollups", ["span", "starts_at", "short_code"])
    if _is_postgresql():
        # Packed already: to try to make them smaller would be in vain.
        for name in ("visitors", "bot_visitors"):
            op.execute(f"ALTER TABLE rollups ALTER COLUMN {name} SET STORAGE EXTERNAL")


def _create_folding() -> None:
    """How far each span is closed, folded and expired; and folded periods that have got clicks since.

    Each transaction has a mark of its own for what it makes stale: marks are only added, and nobody waits for one.
    """
    op.create_table(
        "stale",
        *_period(),
        sa.Column("mark", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("short_code", "span", "starts_at", "mark"),
    )
    op.create_index("stale_by_period", "stale", ["span", "starts_at", "short_code"])
    op.create_table(
        "folding",
        sa.Column("span", sa.SmallInteger(), primary_key=True, autoincrement=False),
        *(sa.Column(name, moment(), nullable=False) for name in ("closed", "until", "expired")),
        sa.Column("at", moment(), nullable=True),
        sa.Column("code", _code(), nullable=False, server_default=sa.text("''")),
        sa.Column("turn", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    )
    epoch = "'epoch'" if _is_postgresql() else "0"
    for span in (1, 2, 3):
        op.execute(f"INSERT INTO folding (span, closed, until, expired) VALUES ({span}, {epoch}, {epoch}, {epoch})")  # noqa: S608


def _create_links() -> None:
    """What links tells of them; and of users whose account is gone, because a click on its way still names them."""
    op.create_table(
        "links",
        sa.Column("short_code", _code(), primary_key=True),
        sa.Column("user_id", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("user_email", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("title", sa.Text(), nullable=False, server_default=sa.text("''")),
        # Of the last event that was taken; -1 for a link that is known by its clicks alone.
        sa.Column("order_number", sa.BigInteger(), nullable=False, server_default=sa.text("-1")),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'active'")),
        sa.Column("stats_public", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("deleted_at", moment(), nullable=True),
    )
    op.create_index("links_user_id", "links", ["user_id", "short_code"])
    op.create_table(
        "forgotten_users",
        sa.Column("user_id", sa.Text(), primary_key=True),
        sa.Column("forgotten_at", moment(), nullable=False),
    )


def _period() -> tuple["sa.Column[str]", "sa.Column[int]", "sa.Column[object]"]:
    return (
        sa.Column("short_code", _code(), nullable=False),
        sa.Column("span", sa.SmallInteger(), nullable=False),
        sa.Column("starts_at", moment(), nullable=False),
    )
