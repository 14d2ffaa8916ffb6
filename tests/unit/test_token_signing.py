"""Tokens as identity signs them: M2's claims, 24 hours to the second, and the secret that is in use."""

import base64
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from refract.kernel.errors import Misconfigured, Unauthenticated
from refract.runtime.environment import Environment
from refract.runtime.settings import ProcessSettings
from refract.runtime.tokens import Signed, TokenSigner, TokenVerifier
from tests.support.clocks import START, ManualClock

SECRET = "the secret of identity, 32 bytes."
PREVIOUS = "the one before it, of 32 bytes...."
USER = "550e8400-e29b-41d4-a716-446655440000"
EMAIL = "alice@example.com"


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the claims, whoever signed them."""
    header, payload, _ = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split("."))
    return msgspec.json.decode(header), msgspec.json.decode(payload)


def signed(clock: ManualClock | None = None, secret: str = SECRET) -> Signed:
    return TokenSigner(secret, clock or ManualClock()).sign(USER, EMAIL)


def test_a_token_says_what_m2_wants_and_no_more() -> None:
    made = signed()
    header, claims = parts(made.token)
    now = int(START.timestamp())
    assert header == {"alg": "HS256", "typ": "JWT"}
    assert claims == {
        "sub": USER,
        "email": EMAIL,
        "iat": now,
        "exp": now + 86_400,
        "iss": "url-shortener",
        "jti": made.token_id,
    }


def test_the_moments_are_whole_seconds_and_a_day_apart() -> None:
    clock = ManualClock()
    clock.advance(0.999_999)
    made = signed(clock)
    _, claims = parts(made.token)
    assert claims["exp"] - claims["iat"] == 86_400
    assert made.expires_at == START + timedelta(days=1)
    assert made.expires_at.timestamp() == claims["exp"]


def test_what_is_signed_is_believed() -> None:
    clock = ManualClock()
    made = TokenSigner(SECRET, clock).sign(USER, EMAIL, role="administrator", generation=3)
    assert {"role": "administrator", "gen": 3}.items() <= parts(made.token)[1].items()
    claims = TokenVerifier([SECRET], clock).verify(made.token)
    assert (claims.subject, claims.email, claims.token_id) == (USER, EMAIL, made.token_id)
    assert (claims.issued_at, claims.expires_at) == (START, made.expires_at)
    assert (claims.is_administrator, claims.generation) == (True, 3)


def test_it_dies_after_a_day_to_the_second() -> None:
    clock = ManualClock()
    token, verifier = signed(clock).token, TokenVerifier([SECRET], clock)
    clock.advance(86_399)
    assert verifier.verify(token).subject == USER
    clock.advance(1)
    with pytest.raises(Unauthenticated, match="expired"):
        verifier.verify(token)


def test_no_two_tokens_are_the_same() -> None:
    signer = TokenSigner(SECRET, ManualClock())
    assert len({signer.sign(USER, EMAIL).token_id for _ in range(100)}) == 100


def test_a_rotation_signs_with_the_first_secret_and_lets_the_previous_run_out() -> None:
    clock = ManualClock()
    environment = Environment({"PORT": "8083", "JWT_SECRET": SECRET, "JWT_SECRET_PREVIOUS": PREVIOUS})
    secrets = ProcessSettings.from_environment(environment).jwt_secrets
    before, after = signed(clock, PREVIOUS).token, signed(clock, secrets[0]).token
    during = TokenVerifier(secrets, clock)
    assert during.verify(before).subject == during.verify(after).subject == USER
    # Whoever has dropped the previous secret believes what is signed now, and no longer what was signed with it.
    later = TokenVerifier([SECRET], clock)
    assert later.verify(after).subject == USER
    with pytest.raises(Unauthenticated):
        later.verify(before)
    # Whoever has not heard of the new secret yet believes only the other.
    behind = TokenVerifier([PREVIOUS], clock)
    assert behind.verify(before).subject == USER
    with pytest.raises(Unauthenticated):
        behind.verify(after)


@pytest.mark.parametrize("secret", ["", "a" * 31, "-----BEGIN PUBLIC KEY----- and whatever stands in it"])
def test_a_secret_that_is_none_signs_nothing(secret: str) -> None:
    with pytest.raises(Misconfigured):
        TokenSigner(secret, ManualClock())


def test_a_token_is_not_shown_where_somebody_logs_it() -> None:
    made = signed()
    assert made.token not in repr(made)
