"""During a rush all events but clicks are still sent on, and found among any number of these."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Only where everything is one process do clicks wait."""
    if op.get_context().dialect.name == "sqlite":
        others = sa.text("published_at IS NULL AND attempts = 0 AND event_type <> 'url.clicked'")
        op.create_index("outbox_first", "outbox", ["id"], sqlite_where=others)
