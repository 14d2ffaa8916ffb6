"""A search in SQLite visits the links of its own workspace only: the index of trigrams knows whose they are."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

# A letter that neither a link nor a search can have, and two that no other workspace has: one trigram, never found.
MARK = "char(1, 0xF0000 + (number >> 16), 0xF0000 + (number & 0xFFFF))"
PARTS = ("short_code", "original_url", "title")


def upgrade() -> None:
    """PostgreSQL weighs its index of trigrams against that of the workspace, and needs nothing of this."""
    if op.get_context().dialect.name == "sqlite":
        _number_workspaces()
        _replace_search_table()


def _number_workspaces() -> None:
    op.create_table(
        "searched_workspaces",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("workspace_id", sa.Text(), nullable=False, unique=True),
        sa.Column("mark", sa.Text(), sa.Computed(MARK, persisted=False)),
    )
    op.execute("INSERT INTO searched_workspaces (workspace_id) SELECT DISTINCT workspace_id FROM links ORDER BY 1")


def _replace_search_table() -> None:
    for event in ("insert", "delete", "update"):
        op.execute(f"DROP TRIGGER links_search_{event}")
    op.execute("DROP TABLE links_search")
    # What the table is rebuilt from; the triggers say the same of single rows.
    op.execute(f"CREATE VIEW searched_links AS SELECT id, {_text('links')} AS text FROM links")  # noqa: S608
    op.execute(
        "CREATE VIRTUAL TABLE links_search USING fts5 (text, content='searched_links', content_rowid='id', "
        "tokenize='trigram')"
    )
    op.execute("INSERT INTO links_search (links_search) VALUES ('rebuild')")
    _create_triggers()


def _create_triggers() -> None:
    # Not OR IGNORE, which would be what the statement that fires the trigger says.
    number = (
        "INSERT INTO searched_workspaces (workspace_id) SELECT new.workspace_id "
        "WHERE NOT EXISTS (SELECT 1 FROM searched_workspaces WHERE workspace_id = new.workspace_id);"
    )
    add = f"INSERT INTO links_search (rowid, text) VALUES (new.id, {_text('new')});"  # noqa: S608  # names, not values
    remove = f"INSERT INTO links_search (links_search, rowid, text) VALUES ('delete', old.id, {_text('old')});"  # noqa: S608
    op.execute(f"CREATE TRIGGER links_search_insert AFTER INSERT ON links BEGIN {number} {add} END")
    op.execute(f"CREATE TRIGGER links_search_delete AFTER DELETE ON links BEGIN {remove} END")
    op.execute(
        f"CREATE TRIGGER links_search_update AFTER UPDATE OF workspace_id, {', '.join(PARTS)} ON links "
        f"BEGIN {number} {remove} {add} END"
    )


def _text(row: str) -> str:
    mark = f"(SELECT mark FROM searched_workspaces WHERE workspace_id = {row}.workspace_id)"  # noqa: S608
    return " || char(10) || ".join([mark, *(f"{row}.{part}" for part in PARTS)])
