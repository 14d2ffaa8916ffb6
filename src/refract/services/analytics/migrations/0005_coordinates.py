"""Coordinates are as exact on PostgreSQL as they came."""

from alembic import op

revision = "0005"
down_revision = "0004"

_WRITTEN = ", ".join(
    # By way of the text, which is the shortest that names this number: so a latitude of 52.5196 is that again.
    f"ALTER COLUMN {name} TYPE double precision USING {name}::text::double precision"
    for name in ("latitude", "longitude")
)


def upgrade() -> None:
    """Every partition is written anew, and those to come are made like the whole. REAL is eight bytes in SQLite."""
    if op.get_context().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE clicks {_WRITTEN}")
