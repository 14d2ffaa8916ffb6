"""Addresses in the one spelling of their domain that they are looked for by."""

import sqlalchemy as sa
from alembic import op

from refract.services.identity.domain.accounts import normalized_email

revision = "0007"
down_revision = "0006"

_SPELT = sa.text("SELECT email FROM users WHERE oidc_issuer IS NULL AND email LIKE '%xn--%' ORDER BY email")
# Where both spellings have an account, the one that people read keeps it, and this one is an administrator's to end.
_RESPELL = sa.text(
    """
    UPDATE users SET email = :read WHERE email = :spelt AND oidc_issuer IS NULL
        AND NOT EXISTS (SELECT 1 FROM users AS other WHERE other.email = :read AND other.oidc_issuer IS NULL)
    """
)


def upgrade() -> None:
    """Apply this revision."""
    connection = op.get_bind()
    for email in connection.scalars(_SPELT).all():
        if normalized_email(email) != email:
            connection.execute(_RESPELL, {"read": normalized_email(email), "spelt": email})
