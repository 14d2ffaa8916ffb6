"""What users are told, how they want to be told, and what is on its way to them by mail and webhook."""

import sqlalchemy as sa
from alembic import op

from refract.runtime.schema import document, identifier, moment

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Apply this revision."""
    _create_notifications()
    op.create_table(
        "recipients",
        # A user as events know them: no event, no row.
        sa.Column("user_id", sa.Text(), primary_key=True),
        sa.Column("email", sa.Text(), nullable=False, server_default=sa.text("''")),
        # Of the event that said so; one that comes late does not bring an old address back.
        sa.Column("email_at", moment(), nullable=False),
        # Kept with every change, because counting would take as long as the list is.
        sa.Column("unread", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    )
    op.create_table(
        "preferences",
        sa.Column("user_id", sa.Text(), primary_key=True),
        sa.Column("document", document(), nullable=False),
        sa.Column("updated_at", moment(), nullable=False),
    )
    op.create_table(
        "digests",
        sa.Column("user_id", sa.Text(), primary_key=True),
        # `off` sends what was gathered before it was switched off, and goes.
        sa.Column("every", sa.Text(), nullable=False),
        sa.Column("next_at", moment(), nullable=False),
        sa.CheckConstraint("every IN ('off', 'daily', 'weekly')", name="digests_every"),
    )
    op.create_index("digests_next_at", "digests", ["next_at"])
    _create_webhooks()
    _create_deliveries()


def _create_notifications() -> None:
    op.create_table(
        "notifications",
        sa.Column("id", identifier(), primary_key=True),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("short_code", sa.Text(), nullable=True),
        sa.Column("payload", document(), nullable=False),
        # Of the mail, if there is one: pending until it has left, or until the digest that it is gathered for.
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'sent'")),
        sa.Column("gathered", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("created_at", moment(), nullable=False),
        sa.Column("sent_at", moment(), nullable=True),
        sa.Column("read_at", moment(), nullable=True),
        sa.CheckConstraint("status IN ('pending', 'sent', 'failed')", name="notifications_status"),
    )
    op.create_index("notifications_by_user", "notifications", ["user_id", "created_at", "id"])
    # For what is over its time alone: in an order of its own, PostgreSQL would walk it past everybody else's.
    op.create_index("notifications_created_at", "notifications", ["created_at"], postgresql_using="brin")
    _index_where("notifications_unread", "notifications", ["user_id", "created_at"], "read_at IS NULL")
    _index_where("notifications_gathered", "notifications", ["user_id", "created_at", "id"], "gathered")


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", identifier(), primary_key=True),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        # As it is, because every request is signed with it.
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("events", document(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'active'")),
        sa.Column("failing_since", moment(), nullable=True),
        sa.Column("disabled_at", moment(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", moment(), nullable=False),
        sa.Column("updated_at", moment(), nullable=False),
        sa.CheckConstraint("status IN ('active', 'disabled')", name="webhooks_status"),
    )
    op.create_index("webhooks_user", "webhooks", ["user_id"])


def _create_deliveries() -> None:
    op.create_table(
        "deliveries",
        sa.Column("id", identifier(), primary_key=True),
        # No foreign keys: a delivery outlives what it was made of.
        sa.Column("notification_id", identifier(), nullable=True),
        sa.Column("source_event_id", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        # An address, or the id of a webhook.
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("text", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("html", sa.Text(), nullable=True),
        sa.Column("payload", document(), nullable=False, server_default=sa.text("'{}'")),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'pending'")),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        # Also the end of the lease while somebody sends it.
        sa.Column("next_attempt_at", moment(), nullable=False),
        sa.Column("expires_at", moment(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("provider_message_id", sa.Text(), nullable=True),
        sa.Column("created_at", moment(), nullable=False),
        sa.Column("sent_at", moment(), nullable=True),
        sa.CheckConstraint("channel IN ('log', 'email', 'webhook')", name="deliveries_channel"),
        sa.CheckConstraint("status IN ('pending', 'sent', 'failed')", name="deliveries_status"),
    )
    op.create_index("deliveries_once", "deliveries", ["source_event_id", "channel", "recipient"], unique=True)
    op.create_index("deliveries_user", "deliveries", ["user_id"])
    _index_where("deliveries_due", "deliveries", ["channel", "next_attempt_at"], "status = 'pending'")
    _index_where("deliveries_over", "deliveries", ["created_at"], "status <> 'pending'")


def _index_where(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, postgresql_where=where, sqlite_where=where)
