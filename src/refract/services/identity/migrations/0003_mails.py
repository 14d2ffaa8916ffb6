"""Finds mails that are on their way among the outbox's audit trail, which is kept for days."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_MAILS = "'email.verification.requested', 'email.password_reset.requested', 'identity.reset.asked'"


def upgrade() -> None:
    """Apply this revision."""
    # The condition of commands/forgetting, to the letter: by that it is known to be the same.
    where = sa.text(f"published_at IS NOT NULL AND event_type IN ({_MAILS})")
    op.create_index("outbox_mails", "outbox", ["id"], postgresql_where=where, sqlite_where=where)
