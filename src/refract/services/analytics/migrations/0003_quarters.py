"""A day's row says who was seen in which quarter of an hour, and tallies are unpacked faster."""

import sqlalchemy as sa
from alembic import op

from refract.runtime.schema import octets

revision = "0003"
down_revision = "0002"

DIMENSIONS = (
    "referer",
    "referrer",
    "country",
    "region",
    "city",
    "browser",
    "os",
    "device",
    "language",
    "utm_source",
    "utm_medium",
    "utm_campaign",
    "utm_term",
    "utm_content",
)

_PACKED_BY_LZ4 = ", ".join(f"ALTER COLUMN by_{dimension} SET COMPRESSION lz4" for dimension in DIMENSIONS)
# A server may have been built without lz4, and before PostgreSQL 14 there was none: then tallies stay as they were.
LZ4 = f"""
DO $$ BEGIN
    EXECUTE 'ALTER TABLE rollups {_PACKED_BY_LZ4}';
EXCEPTION WHEN feature_not_supported OR syntax_error OR invalid_parameter_value THEN
    NULL;
END $$
"""


def upgrade() -> None:
    """Days that are folded already do not know their quarters, and are told by their hours."""
    op.add_column("rollups", sa.Column("quarter_visitors", octets(), nullable=True))
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE rollups ALTER COLUMN quarter_visitors SET STORAGE EXTERNAL")
        op.execute(LZ4)
