"""Users, the single-use tokens that are mailed to them, and tokens that died before their time."""

import sqlalchemy as sa
from alembic import op

from refract.runtime.schema import identifier, moment

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Apply this revision."""
    _create_users()
    op.create_table(
        "one_time_tokens",
        # The token itself is in the mail and nowhere else.
        sa.Column("token_hash", sa.Text(), primary_key=True),
        sa.Column("user_id", identifier(), sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("expires_at", moment(), nullable=False),
        sa.Column("created_at", moment(), nullable=False),
        sa.Column("used_at", moment(), nullable=True),
        sa.CheckConstraint("purpose IN ('verify', 'reset')", name="one_time_tokens_purpose"),
    )
    op.create_index("one_time_tokens_user", "one_time_tokens", ["user_id", "purpose"])
    op.create_index("one_time_tokens_expires_at", "one_time_tokens", ["expires_at"])
    op.create_table(
        "revocations",
        sa.Column("id", sa.Text(), primary_key=True),
        # No foreign key: what a user's tokens did lives on in them, whatever becomes of the user.
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("token_id", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("generation", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("until", moment(), nullable=False),
        sa.Column("created_at", moment(), nullable=False),
    )
    op.create_index("revocations_until", "revocations", ["until"])
    op.create_index("revocations_what", "revocations", ["user_id", "token_id", "generation"], unique=True)


def _create_users() -> None:
    op.create_table(
        "users",
        sa.Column("id", identifier(), primary_key=True),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("oidc_issuer", sa.Text(), nullable=True),
        sa.Column("oidc_subject", sa.Text(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False, server_default=sa.text("'user'")),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'active'")),
        sa.Column("email_verified_at", moment(), nullable=True),
        sa.Column("token_generation", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("created_at", moment(), nullable=False),
        sa.Column("updated_at", moment(), nullable=False),
        sa.CheckConstraint("role IN ('user', 'administrator')", name="users_role"),
        sa.CheckConstraint("status IN ('active', 'suspended')", name="users_status"),
        sa.CheckConstraint("(oidc_issuer IS NULL) = (oidc_subject IS NULL)", name="users_oidc"),
        sa.CheckConstraint("oidc_issuer IS NULL OR password_hash IS NULL", name="users_one_way_in"),
    )
    # An address belongs to one local account; what an issuer says of its users' addresses is the issuer's matter.
    _index_where("users_email", ["email"], "oidc_issuer IS NULL")
    _index_where("users_oidc_subject", ["oidc_issuer", "oidc_subject"], "oidc_issuer IS NOT NULL")
    op.create_index("users_created_at", "users", ["created_at", "id"])


def _index_where(name: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, "users", columns, unique=True, postgresql_where=where, sqlite_where=where)
