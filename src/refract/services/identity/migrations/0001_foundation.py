"""The outbox and the inbox."""

from refract.runtime.schema import create_inbox_v1, create_outbox_v1

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Apply this revision."""
    create_outbox_v1()
    create_inbox_v1()
