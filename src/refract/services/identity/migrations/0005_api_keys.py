"""API keys: what is kept of them, and how often they were used."""

import sqlalchemy as sa
from alembic import op

from refract.runtime.schema import document, identifier, moment

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("user_id", identifier(), sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
        # The key itself is its owner's and nobody else's.
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("key_prefix", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", document(), nullable=False),
        # In whose name the SMS gateway is asked; a number of its own, and no account.
        sa.Column("sms_user_id", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'active'")),
        sa.Column("created_at", moment(), nullable=False),
        sa.Column("expires_at", moment(), nullable=True),
        sa.Column("last_used_at", moment(), nullable=True),
        sa.Column("usage_count", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.CheckConstraint("status IN ('active', 'revoked')", name="api_keys_status"),
        sa.CheckConstraint("length(key_hash) = 64", name="api_keys_key_hash"),
        sa.CheckConstraint("sms_user_id >= 0", name="api_keys_sms_user_id"),
        # No id is given twice: limits are counted by it, and tokens of a minute ago carry it.
        sqlite_autoincrement=True,
        # Uses change a row and no index: room for the next version of it on the same page.
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("api_keys_hash", "api_keys", ["key_hash"], unique=True)
    active = sa.text("status = 'active'")
    newest = [sa.text("user_id"), sa.text("created_at DESC"), sa.text("id DESC")]
    op.create_index("api_keys_user", "api_keys", newest, postgresql_where=active, sqlite_where=active)
    # For those who list revoked keys as well, and for the end of an account.
    op.create_index("api_keys_owner", "api_keys", ["user_id"])
