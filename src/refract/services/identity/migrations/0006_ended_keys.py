"""When a key was revoked, and indexes for whoever forgets keys that ended long ago."""

import sqlalchemy as sa
from alembic import op

from refract.runtime.schema import moment, now

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Apply this revision. Keys that were revoked before it count from now: nobody noted when it was."""
    op.add_column("api_keys", sa.Column("revoked_at", moment(), nullable=True))
    op.execute(f"UPDATE api_keys SET revoked_at = {now()} WHERE status = 'revoked'")  # noqa: S608  # a function's name
    # Neither column changes with a use of a key: its row keeps to its page.
    for column in ("revoked_at", "expires_at"):
        ends = sa.text(f"{column} IS NOT NULL")
        op.create_index(f"api_keys_{column}", "api_keys", [column], postgresql_where=ends, sqlite_where=ends)
