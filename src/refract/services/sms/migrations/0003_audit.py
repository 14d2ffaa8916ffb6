"""Which messages were sent, and every attempt to send one: singly, and counted by the minute."""

import sqlalchemy as sa
from alembic import op

from refract.runtime.schema import identifier, moment

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "sent_messages",
        sa.Column("message_id", sa.Text(), primary_key=True),
        sa.Column("sent_at", moment(), nullable=False),
    )
    op.create_index("sent_messages_sent_at", "sent_messages", ["sent_at"])
    _create_attempts()
    op.create_table(
        "attempt_minutes",
        sa.Column("user_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("minute", moment(), primary_key=True),
        *(
            sa.Column(status, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
            for status in ("sent", "limited", "failed", "invalid")
        ),
    )
    op.create_index("attempt_minutes_minute", "attempt_minutes", ["minute"])


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("event_id", identifier(), primary_key=True),
        # None where the request named no user that could be one.
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("occurred_at", moment(), nullable=False),
        sa.CheckConstraint("status IN ('sent', 'limited', 'failed', 'invalid')", name="attempts_status"),
        sa.CheckConstraint("path IN ('redis', 'row-lock', 'none')", name="attempts_path"),
    )
    # A page is put together from one look for each status, so that a rare one is found as quickly as a common one.
    op.create_index("attempts_by_status", "attempts", ["status", "occurred_at", "event_id"])
    op.create_index("attempts_by_user", "attempts", ["user_id", "status", "occurred_at", "event_id"])
