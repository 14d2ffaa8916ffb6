"""Who a bearer token speaks for: signing, which identity alone does, and verification, with HS256 (M2)."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast, get_args

import uuid_utils
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from joserfc.jws import JWSRegistry

from refract.kernel.clock import Clock
from refract.kernel.errors import Misconfigured, Unauthenticated

ISSUER = "url-shortener"
ALGORITHM = "HS256"
MAX_TOKEN_BYTES = 8 * 1024
MIN_SECRET_BYTES = 32
CLOCK_SKEW_SECONDS = 60
MAX_REMEMBERED = 4096
LIFETIME = timedelta(hours=24)

Role = Literal["user", "administrator"]
_ROLES = frozenset(get_args(Role))

# The one algorithm; made once, because it would be made anew for every token.
_REGISTRY = JWSRegistry(algorithms=[ALGORITHM])
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{43}\Z")
# In any spelling that quoting or escaping in an environment file may leave behind.
_PUBLIC_KEY = re.compile(r"-{4,5}\s?BEGIN .*(PUBLIC KEY|CERTIFICATE)|^\W*(ssh-|ecdsa-sha2-)")


class TokenRefused(Unauthenticated):
    """A token that proves nothing. The reason is for the log; the caller only learns `unauthorized`."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Claims:
    """What a valid token says. The generation is its owner's at the time of signing: below today's, it is dead."""

    subject: str
    email: str
    issued_at: datetime
    expires_at: datetime
    token_id: str = ""
    role: Role = "user"
    generation: int = 0
    api_key: int | None = None
    """The id of the API key that stands behind it: its owner is not there, and has not signed in."""

    @property
    def is_administrator(self) -> bool:
        """Whether its owner may do what only administrators may."""
        return self.role == "administrator"


@dataclass(frozen=True, slots=True)
class Signed:
    """A token fresh from the signer, and what its owner or a logout needs to know of it."""

    token: str = field(repr=False)
    token_id: str
    expires_at: datetime


class TokenSigner:
    """Signs with the secret in use: the first of those that a verifier accepts."""

    def __init__(self, secret: str, clock: Clock) -> None:
        (self._key,) = _keys([secret])
        self._clock = clock

    def sign(
        self,
        subject: str,
        email: str,
        *,
        role: Role = "user",
        generation: int = 0,
        api_key: int | None = None,
        lifetime: timedelta = LIFETIME,
    ) -> Signed:
        """A token that lives for 24 hours to the second, unless told otherwise; what says nothing is left out."""
        issued_at = int(self._clock.now().timestamp())
        expires_at = issued_at + int(lifetime.total_seconds())
        token_id = str(uuid_utils.uuid4())
        claims: dict[str, Any] = {
            "sub": subject,
            "email": email,
            "iat": issued_at,
            "exp": expires_at,
            "iss": ISSUER,
            "jti": token_id,
        }
        if role != "user":
            claims["role"] = role
        if generation:
            claims["gen"] = generation
        if api_key is not None:
            claims["api_key"] = api_key
        token = jwt.encode({"alg": ALGORITHM, "typ": "JWT"}, claims, self._key, registry=_REGISTRY)
        return Signed(token, token_id, datetime.fromtimestamp(expires_at, UTC))


class TokenVerifier:
    """Accepts what one of its secrets signed. More than one secret: the first is in use, the others run out."""

    def __init__(self, secrets: Sequence[str], clock: Clock) -> None:
        self._keys = _keys(secrets)
        self._clock = clock
        self._remembered: OrderedDict[str, Claims] = OrderedDict()

    def verify(self, token: str) -> Claims:
        """The claims of a token, or TokenRefused. A good one is remembered: the signature is what costs."""
        remembered = self._remembered.get(token)
        if remembered is not None and remembered.expires_at > self._clock.now():
            return remembered
        claims = self._verified(token)
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        self._remembered[token] = claims
        return claims

    def _verified(self, token: str) -> Claims:
        if len(token) > MAX_TOKEN_BYTES:
            raise TokenRefused("token too long")
        if not _COMPACT.match(token):
            raise TokenRefused("not a compact token")
        return self._check(self._verified_payload(token))

    def _verified_payload(self, token: str) -> dict[str, Any]:
        reason: Exception | None = None
        for key in self._keys:
            try:
                decoded = jwt.decode(token, key, registry=_REGISTRY)
            except (JoseError, ValueError, TypeError, RecursionError) as error:
                reason = error
                continue
            if "kid" in decoded.header:
                raise TokenRefused("names a key")  # none of ours has a name
            return decoded.claims
        raise TokenRefused(f"not signed by us: {type(reason).__name__}") from reason

    def _check(self, payload: dict[str, Any]) -> Claims:
        if payload.get("iss") != ISSUER:
            raise TokenRefused("foreign issuer")
        subject, email, token_id = payload.get("sub"), payload.get("email", ""), payload.get("jti", "")
        if not isinstance(subject, str) or not subject:
            raise TokenRefused("no subject")
        if not isinstance(email, str) or not isinstance(token_id, str):
            raise TokenRefused("claims of the wrong type")
        role, generation, api_key = payload.get("role", "user"), payload.get("gen", 0), payload.get("api_key")
        if not isinstance(role, str) or role not in _ROLES:
            raise TokenRefused("unknown role")
        if not _is_count(generation):
            raise TokenRefused("not a generation")
        if "api_key" in payload and not _is_count(api_key):
            raise TokenRefused("not an api key")
        issued_at, expires_at = _moment(payload, "iat"), _moment(payload, "exp")
        now = self._clock.now()
        if expires_at <= now:
            raise TokenRefused("expired")
        if (issued_at - now).total_seconds() > CLOCK_SKEW_SECONDS:
            raise TokenRefused("issued in the future")
        if "nbf" in payload and (_moment(payload, "nbf") - now).total_seconds() > CLOCK_SKEW_SECONDS:
            raise TokenRefused("not valid yet")
        return Claims(subject, email, issued_at, expires_at, token_id, cast(Role, role), generation, api_key)


def _keys(secrets: Sequence[str]) -> list[OctKey]:
    """The keys of secrets that are fit to be keys."""
    if not secrets or any(len(secret.encode()) < MIN_SECRET_BYTES for secret in secrets):
        raise Misconfigured(f"FATAL: a token secret must be at least {MIN_SECRET_BYTES} bytes long")
    if any(_PUBLIC_KEY.search(secret) for secret in secrets):
        raise Misconfigured("FATAL: a token secret looks like a public key or a certificate, which is no secret")
    try:
        return [OctKey.import_key(secret, {"alg": ALGORITHM}) for secret in secrets]
    except ValueError as error:
        raise Misconfigured(f"FATAL: a token secret cannot be used: {error}") from error


def bearer_token(header: str | None) -> str | None:
    """The token of an Authorization header; `Bearer ` is matched to the letter (M2)."""
    if header is None or not header.startswith("Bearer "):
        return None
    return header.removeprefix("Bearer ") or None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _moment(payload: dict[str, Any], claim: str) -> datetime:
    seconds = payload.get(claim)
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise TokenRefused(f"no {claim}")
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        raise TokenRefused(f"{claim} is not a moment") from None
