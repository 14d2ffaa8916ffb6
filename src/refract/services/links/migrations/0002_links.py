"""Links, their tags, remembered requests, leased worker numbers, and secrets of the instance."""

import sqlalchemy as sa
from alembic import op

from refract.runtime.schema import moment, now, octets

revision = "0002"
down_revision = "0001"

SEARCHED = "lower(short_code || chr(10) || original_url || chr(10) || title)"


def upgrade() -> None:
    """Apply this revision."""
    _create_links()
    _create_tags()
    op.create_table(
        "idempotency_keys",
        sa.Column("caller", sa.Text(), primary_key=True),
        sa.Column("key", sa.Text(), primary_key=True),
        # A long request is answered in parts, each saved with what it did.
        sa.Column("part", sa.Integer(), primary_key=True),
        sa.Column("fingerprint", octets(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("created_at", moment(), nullable=False, server_default=now()),
    )
    op.create_index("idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_table(
        "snowflake_workers",
        sa.Column("worker", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("leased_until", moment(), nullable=False),
    )
    op.create_table(
        "instance_secrets",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("value", sa.Text(), nullable=False),
    )


def _create_links() -> None:
    op.create_table(
        "links",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("short_code", sa.Text(), nullable=False),
        sa.Column("original_url", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("owner_email", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("notes", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'active'")),
        sa.Column("redirect_status", sa.SmallInteger(), nullable=False, server_default=sa.text("301")),
        sa.Column("stats_public", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("created_at", moment(), nullable=False),
        sa.Column("updated_at", moment(), nullable=False),
        sa.Column("expires_at", moment(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False, server_default=sa.text("1")),
        # A digest: the URL itself may be longer than an entry of an index.
        sa.Column("url_key", octets(), nullable=True),
        sa.Column("total_clicks", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("last_clicked_at", moment(), nullable=True),
        sa.CheckConstraint("status IN ('active', 'expired', 'disabled', 'deleted')", name="links_status"),
        sa.CheckConstraint("redirect_status IN (301, 302, 307, 308)", name="links_redirect_status"),
    )
    op.create_index("links_short_code", "links", ["short_code"], unique=True)
    _index_where("links_url_key", ["workspace_id", "url_key"], "url_key IS NOT NULL", unique=True)
    # Ids grow with time, so that this is the order of creation too.
    op.create_index("links_by_creation", "links", ["workspace_id", "id"])
    op.create_index("links_by_clicks", "links", ["workspace_id", "total_clicks", "id"])
    op.create_index("links_by_status", "links", ["workspace_id", "status", "id"])
    _index_where("links_to_expire", ["expires_at"], "status = 'active' AND expires_at IS NOT NULL")
    if op.get_context().dialect.name == "postgresql":
        op.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
        op.execute(f"CREATE INDEX links_search ON links USING gin (({SEARCHED}) gin_trgm_ops)")
    else:
        _create_search_table()


def _create_search_table() -> None:
    columns = "short_code, original_url, title"
    new, old = (
        "new.id, new.short_code, new.original_url, new.title",
        "old.id, old.short_code, old.original_url, old.title",
    )
    add = f"INSERT INTO links_search (rowid, {columns}) VALUES ({new});"  # noqa: S608  # names, not values
    remove = f"INSERT INTO links_search (links_search, rowid, {columns}) VALUES ('delete', {old});"  # noqa: S608
    op.execute(
        f"CREATE VIRTUAL TABLE links_search USING fts5 ({columns}, content='links', content_rowid='id', "
        "tokenize='trigram')"
    )
    op.execute(f"CREATE TRIGGER links_search_insert AFTER INSERT ON links BEGIN {add} END")
    op.execute(f"CREATE TRIGGER links_search_delete AFTER DELETE ON links BEGIN {remove} END")
    op.execute(
        "CREATE TRIGGER links_search_update AFTER UPDATE OF short_code, original_url, title ON links "
        f"BEGIN {remove} {add} END"
    )


def _create_tags() -> None:
    op.create_table(
        "link_tags",
        sa.Column("workspace_id", sa.Text(), primary_key=True),
        sa.Column("tag", sa.Text(), primary_key=True),
        sa.Column("link_id", sa.BigInteger(), sa.ForeignKey("links.id", ondelete="CASCADE"), primary_key=True),
    )
    op.create_index("link_tags_link_id", "link_tags", ["link_id"])


def _index_where(name: str, columns: list[str], condition: str, *, unique: bool = False) -> None:
    where = sa.text(condition)
    op.create_index(name, "links", columns, unique=unique, postgresql_where=where, sqlite_where=where)
