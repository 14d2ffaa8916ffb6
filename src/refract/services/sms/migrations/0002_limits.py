"""Each user's limit with its count, and the keys under which sends may be repeated."""

import sqlalchemy as sa
from alembic import op

from refract.runtime.schema import moment

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "rate_limits",
        sa.Column(
            "user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False
        ),
        sa.Column("rate_limit", sa.Integer(), nullable=False),
        # In minutes.
        sa.Column("time_window", sa.Integer(), nullable=False),
        sa.Column("algorithm", sa.Text(), nullable=False, server_default=sa.text("'fixed'")),
        sa.Column("current_count", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("last_refresh_time", moment(), nullable=False),
        # Of a sliding window: the sends of each slice of it, oldest first, as "number:sends" with spaces between.
        sa.Column("slices", sa.Text(), nullable=False, server_default=sa.text("''")),
        # Raised with every change of the limit, so that a copy of an older one is known for what it is.
        sa.Column("version", sa.BigInteger(), nullable=False, server_default=sa.text("1")),
        sa.CheckConstraint("algorithm IN ('fixed', 'sliding')", name="rate_limits_algorithm"),
        # Every send changes a row: room for the next version of it on the same page, and no index to change.
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "send_keys",
        sa.Column("user_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        # Digests in hexadecimal, of the key and of the body: the same key with another body is a mistake.
        sa.Column("key_hash", sa.Text(), primary_key=True),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", moment(), nullable=False),
        sa.CheckConstraint("status IN ('counted', 'sent')", name="send_keys_status"),
    )
    op.create_index("send_keys_created_at", "send_keys", ["created_at"])
