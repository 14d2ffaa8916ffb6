"""How far back the clicks themselves are kept stands beside how far back rows know what they were."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """A span of its own: that of one click. What has been dropped before is dropped again, and said then."""
    epoch = "'epoch'" if op.get_context().dialect.name == "postgresql" else "0"
    op.execute(f"INSERT INTO folding (span, closed, until, expired) VALUES (0, {epoch}, {epoch}, {epoch})")  # noqa: S608
