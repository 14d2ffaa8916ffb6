"""Marks users whose accounts are deleted: events on their way still name them."""

import sqlalchemy as sa
from alembic import op

from refract.runtime.schema import moment

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Apply this revision."""
    # Beside the address, because whoever tells a user something locks this row, and whoever forgets them does too.
    op.add_column("recipients", sa.Column("forgotten_at", moment(), nullable=True))
