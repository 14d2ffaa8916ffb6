"""Which tokens are believed, and that no other is."""

import base64
import hmac
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from refract.kernel.errors import Kind, Misconfigured, Unauthenticated
from refract.runtime.tokens import TokenVerifier, bearer_token
from tests.support.clocks import START, ManualClock

SECRET = "the secret of identity, 32 bytes."
OLD_SECRET = "the one before it, of 32 bytes...."
NOW = int(START.timestamp())
CLAIMS: dict[str, Any] = {
    "sub": "550e8400-e29b-41d4-a716-446655440000",
    "email": "alice@example.com",
    "iat": NOW - 100,
    "exp": NOW + 86_300,
    "iss": "url-shortener",
}


def sign(claims: dict[str, Any], secret: str = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode({"alg": algorithm}, claims, OctKey.import_key(secret), algorithms=[algorithm])


def unsigned(header: dict[str, Any], claims: dict[str, Any]) -> str:
    parts = (msgspec.json.encode(header), msgspec.json.encode(claims), b"")
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def hashed(header: dict[str, Any], key: bytes) -> str:
    """Signed with SHA-256, whatever the header says."""
    content = unsigned(header, CLAIMS).removesuffix(".")
    signature = hmac.digest(key, content.encode(), "sha256")
    return f"{content}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def verifier(*secrets: str) -> TokenVerifier:
    return TokenVerifier(secrets or (SECRET,), ManualClock())


GENUINE = sign(CLAIMS)


def refusal(token: str, *secrets: str) -> str:
    """The reason why a token is refused; the caller never learns it."""
    with pytest.raises(Unauthenticated) as caught:
        verifier(*secrets).verify(token)
    assert caught.value.message == "unauthorized"
    assert caught.value.kind is Kind.UNAUTHENTICATED
    return str(caught.value)


def test_reads_the_claims_of_a_genuine_token() -> None:
    claims = verifier().verify(GENUINE)
    assert (claims.subject, claims.email) == (CLAIMS["sub"], "alice@example.com")
    assert (claims.issued_at.timestamp(), claims.expires_at.timestamp()) == (NOW - 100, NOW + 86_300)
    assert claims.token_id == ""
    assert verifier().verify(sign({**CLAIMS, "jti": "t1"})).token_id == "t1"


def test_a_token_that_says_nothing_of_it_is_a_users_of_the_first_generation() -> None:
    claims = verifier().verify(GENUINE)
    assert (claims.role, claims.generation, claims.is_administrator) == ("user", 0, False)
    claims = verifier().verify(sign({**CLAIMS, "role": "administrator", "gen": 7}))
    assert (claims.role, claims.generation, claims.is_administrator) == ("administrator", 7, True)
    claims = verifier().verify(sign({**CLAIMS, "role": "user", "gen": 0}))
    assert (claims.role, claims.generation, claims.is_administrator) == ("user", 0, False)


def test_accepts_every_secret_during_a_rotation() -> None:
    both = verifier(SECRET, OLD_SECRET)
    assert both.verify(sign(CLAIMS)) == both.verify(sign(CLAIMS, OLD_SECRET))
    assert refusal(sign(CLAIMS, OLD_SECRET)) == "not signed by us: BadSignatureError"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"iss": "somebody-else"}, "foreign issuer"),
        ({"iss": None}, "foreign issuer"),
        ({"sub": None}, "no subject"),
        ({"sub": ""}, "no subject"),
        ({"sub": 7}, "no subject"),
        ({"email": 7}, "claims of the wrong type"),
        ({"jti": 7}, "claims of the wrong type"),
        ({"role": "root"}, "unknown role"),
        ({"role": "Administrator"}, "unknown role"),
        ({"role": ""}, "unknown role"),
        ({"role": ["administrator"]}, "unknown role"),
        ({"role": 1}, "unknown role"),
        ({"gen": "1"}, "not a generation"),
        ({"gen": 1.0}, "not a generation"),
        ({"gen": True}, "not a generation"),
        ({"gen": -1}, "not a generation"),
        ({"gen": [1]}, "not a generation"),
        ({"api_key": "1"}, "not an api key"),
        ({"api_key": 1.0}, "not an api key"),
        ({"api_key": True}, "not an api key"),
        ({"api_key": -1}, "not an api key"),
        ({"exp": None}, "no exp"),
        ({"exp": True}, "no exp"),
        ({"exp": str(NOW + 100)}, "no exp"),
        ({"exp": NOW}, "expired"),
        ({"exp": 10**30}, "exp is not a moment"),
        ({"iat": None}, "no iat"),
        ({"iat": NOW + 61}, "issued in the future"),
        ({"nbf": NOW + 61}, "not valid yet"),
    ],
)
def test_refuses_claims_that_do_not_hold(changes: dict[str, Any], reason: str) -> None:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    assert refusal(sign(claims)) == reason


@pytest.mark.parametrize("claim", ["role", "gen", "jti", "email", "api_key"])
def test_a_claim_that_is_null_is_not_one_that_is_missing(claim: str) -> None:
    assert refusal(sign({**CLAIMS, claim: None}))


def test_a_clock_that_is_a_little_behind_is_no_reason() -> None:
    assert verifier().verify(sign({**CLAIMS, "iat": NOW + 60, "nbf": NOW + 60})).subject == CLAIMS["sub"]


def test_expires_to_the_second() -> None:
    clock = ManualClock()
    watch = TokenVerifier([SECRET], clock)
    clock.advance(86_299)
    assert watch.verify(GENUINE).subject == CLAIMS["sub"]
    clock.advance(1)
    with pytest.raises(Unauthenticated, match="expired"):
        watch.verify(GENUINE)


def test_refuses_every_other_algorithm() -> None:
    assert refusal(sign(CLAIMS, algorithm="HS512")) == "not a compact token"
    assert refusal(sign(CLAIMS, algorithm="HS384")) == "not a compact token"
    rsa = RSAKey.generate_key(2048)
    assert refusal(jwt.encode({"alg": "RS256"}, CLAIMS, rsa, algorithms=["RS256"])) == "not a compact token"
    for algorithm in ("none", "None", "nOnE", "HS512", "RS256", "hs256", ""):
        assert refusal(unsigned({"alg": algorithm, "typ": "JWT"}, CLAIMS)) == "not a compact token"
        assert refusal(hashed({"alg": algorithm, "typ": "JWT"}, SECRET.encode())).startswith("not signed by us")


def test_refuses_a_public_key_used_as_a_secret() -> None:
    public = RSAKey.generate_key(2048).as_pem(private=False)
    assert refusal(hashed({"alg": "HS256"}, public)) == "not signed by us: BadSignatureError"
    text = public.decode()
    one_line = text.replace("\n", "\\n")
    for spelling in (text, f" {text}", f'"{text}"', one_line, text.replace("\n", " "), "'ssh-rsa AAAA" * 4):
        with pytest.raises(Misconfigured, match="public"):
            TokenVerifier([SECRET, spelling], ManualClock())


@pytest.mark.parametrize("name", ["", "1", "../../dev/null"])
def test_refuses_a_token_that_names_its_key(name: str) -> None:
    assert refusal(hashed({"alg": "HS256", "kid": name}, SECRET.encode())) == "names a key"


@pytest.mark.parametrize("header", [{}, {"alg": None}, {"alg": ["HS256"]}, {"alg": "HS256", "crit": ["exp"]}])
def test_refuses_odd_headers(header: dict[str, Any]) -> None:
    assert refusal(hashed(header, SECRET.encode())).startswith("not signed by us")


@pytest.mark.parametrize(
    "token", ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", GENUINE + "=", GENUINE + "\n", " " + GENUINE, GENUINE + ".x"]
)
def test_refuses_what_is_no_token(token: str) -> None:
    assert refusal(token) == "not a compact token"


def test_refuses_a_long_token_without_reading_it() -> None:
    assert refusal(sign({**CLAIMS, "padding": "a" * 8192})) == "token too long"


def test_refuses_an_empty_key() -> None:
    assert refusal(hashed({"alg": "HS256", "typ": "JWT"}, b"")).startswith("not signed by us")
    for weak in ([], [""], ["a" * 31], [SECRET, "short"]):
        with pytest.raises(Misconfigured, match="at least 32 bytes"):
            TokenVerifier(weak, ManualClock())


@given(st.integers(0, len(GENUINE) - 1), st.characters(codec="utf-8"))
def test_no_change_of_a_character_is_believed(position: int, character: str) -> None:
    assume(GENUINE[position] != character)
    refusal(GENUINE[:position] + character + GENUINE[position + 1 :])


def test_no_other_spelling_of_the_signature_is_believed() -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/="
    for last in set(alphabet) - {GENUINE[-1]}:
        refusal(GENUINE[:-1] + last)


@given(st.integers(0, len(GENUINE)), st.text(min_size=1, max_size=5))
def test_no_insertion_is_believed(position: int, inserted: str) -> None:
    refusal(GENUINE[:position] + inserted + GENUINE[position:])


@given(st.integers(0, len(GENUINE) - 1), st.integers(1, 20))
def test_no_omission_is_believed(position: int, count: int) -> None:
    refusal(GENUINE[:position] + GENUINE[position + count :])


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("Bearer  abc", " abc"),
        ("bearer abc", None),
        ("BEARER abc", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("Basic abc", None),
        ("", None),
        (None, None),
    ],
)
def test_reads_the_bearer_token_to_the_letter(header: str | None, token: str | None) -> None:
    assert bearer_token(header) == token
