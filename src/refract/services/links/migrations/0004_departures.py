"""Users whose accounts are deleted, until all that they left behind is cleared away."""

import sqlalchemy as sa
from alembic import op

from refract.runtime.schema import moment

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "departures",
        sa.Column("user_id", sa.Text(), primary_key=True),
        sa.Column("looks", sa.SmallInteger(), nullable=False, server_default=sa.text("0")),
        # Also the end of the lease while somebody clears up.
        sa.Column("next_at", moment(), nullable=False),
    )
    op.create_index("departures_next_at", "departures", ["next_at"])
