"""Tokens made by hand, for whoever holds the instance's secret: the way in until there are accounts."""

import re
import uuid
from datetime import datetime, timedelta
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import OctKey

from refract.apps.data_directory import DataDirectory
from refract.kernel.clock import Clock
from refract.kernel.errors import Misconfigured
from refract.runtime.environment import Environment, on_one_line
from refract.runtime.settings import SECRET_BYTES
from refract.runtime.tokens import ALGORITHM, ISSUER, TokenVerifier

USERS = uuid.UUID("5c0f1a52-6a0e-4d0b-9a5e-8f0c7d1f3b26")
"""The namespace of subjects that are made from an address, so that the same person is the same user every time."""

_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,255}")


def make_token(environment: Environment, data_dir: Path, email: str, lifetime: timedelta, clock: Clock) -> str:
    """A token that says its bearer is this person. The secret is JWT_SECRET, or the one of the data directory."""
    address = email.strip().lower()
    if not _EMAIL.fullmatch(address) or not address.isprintable():
        raise Misconfigured(f'FATAL: "{on_one_line(email)}" is no email address')
    secret = environment.secret("JWT_SECRET", minimum=SECRET_BYTES) if environment.has("JWT_SECRET") else None
    if secret is None:
        directory = DataDirectory(data_dir)
        directory.prepare()
        secret = directory.secrets()["JWT_SECRET"]
    TokenVerifier((secret,), clock)  # refuses what no service would take for a secret
    return _signed(secret, address, clock.now(), lifetime)


def _signed(secret: str, email: str, now: datetime, lifetime: timedelta) -> str:
    claims = {
        "iss": ISSUER,
        "sub": str(uuid.uuid5(USERS, email)),
        "email": email,
        "iat": int(now.timestamp()),
        "exp": int((now + lifetime).timestamp()),
        "jti": str(uuid.uuid4()),
    }
    return jwt.encode({"alg": ALGORITHM, "typ": "JWT"}, claims, OctKey.import_key(secret), algorithms=[ALGORITHM])
