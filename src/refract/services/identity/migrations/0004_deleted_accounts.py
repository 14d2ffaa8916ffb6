"""Accounts that are deleted: their rows stay, so that no id is given twice, and nothing of the user is in them."""

import sqlalchemy as sa
from alembic import op

from refract.runtime.schema import identifier, moment

revision = "0004"
down_revision = "0003"

_STATUSES = "status IN ('active', 'suspended', 'deleted')"
_COLUMNS = (
    "id, email, password_hash, oidc_issuer, oidc_subject, role, status, email_verified_at, token_generation, "
    "created_at, updated_at"
)


def upgrade() -> None:
    """Apply this revision."""
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint("users_status", "users", type_="check")
        op.create_check_constraint("users_status", "users", _STATUSES)
    else:
        _make_anew()
    # For whoever deletes an account, and has to know whether it is the last one that may do everything.
    administrators = sa.text("role = 'administrator'")
    op.create_index(
        "users_administrators", "users", ["id"], postgresql_where=administrators, sqlite_where=administrators
    )


def _make_anew() -> None:
    """SQLite cannot change a rule of a table. Foreign keys are not looked at while it is migrated."""
    op.create_table(
        "users_anew",
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
        sa.CheckConstraint(_STATUSES, name="users_status"),
        sa.CheckConstraint("(oidc_issuer IS NULL) = (oidc_subject IS NULL)", name="users_oidc"),
        sa.CheckConstraint("oidc_issuer IS NULL OR password_hash IS NULL", name="users_one_way_in"),
    )
    op.execute(f"INSERT INTO users_anew ({_COLUMNS}) SELECT {_COLUMNS} FROM users")  # noqa: S608  # names, not values
    op.drop_table("users")
    op.rename_table("users_anew", "users")
    _unique_where("users_email", ["email"], "oidc_issuer IS NULL")
    _unique_where("users_oidc_subject", ["oidc_issuer", "oidc_subject"], "oidc_issuer IS NOT NULL")
    op.create_index("users_created_at", "users", ["created_at", "id"])


def _unique_where(name: str, columns: list[str], condition: str) -> None:
    op.create_index(name, "users", columns, unique=True, sqlite_where=sa.text(condition))
