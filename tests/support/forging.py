"""Tokens that nobody may believe: every way to forge one that ACCEPTANCE 31 lists, and the usual ones beside them."""

import base64
import hmac
import time
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from joserfc import jws
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from refract.runtime.tokens import ISSUER

DAY = 86_400


def token(secret: bytes, header: Mapping[str, Any] | None = None, digest: str = "sha256", **claims: Any) -> str:
    """One by hand, with all that a good one has unless told otherwise; None leaves a claim out."""
    text = f"{encoded(header or {'alg': 'HS256', 'typ': 'JWT'})}.{encoded(_payload(claims))}"
    return f"{text}.{_text(hmac.digest(secret, text.encode(), digest))}"


def encoded(part: object) -> str:
    """A part of a token."""
    return _text(msgspec.json.encode(part))


def forgeries(secret: bytes) -> Iterator[tuple[str, str]]:
    """What is wrong, and the token; `secret` is the one that the verifier knows."""
    yield from _without_a_signature(secret)
    yield from _confused_algorithms(secret)
    yield from _foreign_keys(secret)
    yield from _wrong_claims(secret)
    yield from _edited(secret)


def _without_a_signature(secret: bytes) -> Iterator[tuple[str, str]]:
    _, body, signature = token(secret).split(".")
    for name in ("none", "None", "NONE", "nOnE", ""):
        header = encoded({"alg": name, "typ": "JWT"})
        yield f"alg {name!r} without a signature", f"{header}.{body}."
        yield f"alg {name!r} with a signature", f"{header}.{body}.{signature}"
    yield "no alg at all", f"{encoded({'typ': 'JWT'})}.{body}.{signature}"
    yield "a good head and no signature", f"{encoded({'alg': 'HS256', 'typ': 'JWT'})}.{body}."
    yield "two parts", f"{encoded({'alg': 'HS256', 'typ': 'JWT'})}.{body}"


def _confused_algorithms(secret: bytes) -> Iterator[tuple[str, str]]:
    yield "RS256 by name, our secret as its key", token(secret, {"alg": "RS256", "typ": "JWT"})
    for name, digest in (("HS384", "sha384"), ("HS512", "sha512")):
        yield f"{name} with our secret", token(secret, {"alg": name, "typ": "JWT"}, digest)
    rsa = _rsa()
    public = rsa.as_dict(private=False)
    for form, known in (("PEM", rsa.as_pem(private=False)), ("JWK", msgspec.json.encode(public))):
        yield f"HS256 with a public key as {form} for its secret", token(known)
    for name, key in _keys().items():
        yield f"{name} by a key of somebody else's", _signed({"alg": name, "typ": "JWT"}, key)


def _foreign_keys(secret: bytes) -> Iterator[tuple[str, str]]:
    yield "an empty key", token(b"")
    yield "a key of zeros", token(bytes(32))
    yield "another secret", token(b"another secret that is long enough, too")
    for kid in ("theirs", "", "../../dev/null", "' UNION SELECT 'a", "0"):
        yield f"kid {kid!r}", token(secret, {"alg": "HS256", "typ": "JWT", "kid": kid})
    yield "kid that leads to an empty key", token(b"", {"alg": "HS256", "typ": "JWT", "kid": "/dev/null"})
    rsa = _rsa()
    public = rsa.as_dict(private=False)
    own = base64.urlsafe_b64encode(bytes(32)).decode().rstrip("=")
    yield "its own secret in the head", token(bytes(32), {"alg": "HS256", "jwk": {"kty": "oct", "k": own}})
    for header in ({"jwk": public}, {"jku": "https://evil.example/keys"}, {"x5u": "https://evil.example/chain"}):
        yield f"its own key by {next(iter(header))}", _signed({"alg": "RS256", "typ": "JWT", **header}, rsa)


def _wrong_claims(secret: bytes) -> Iterator[tuple[str, str]]:
    now = int(time.time())
    wrong: dict[str, dict[str, Any]] = {
        "another issuer": {"iss": "somebody-else"},
        "issuers in a list": {"iss": [ISSUER]},
        "an issuer in capitals": {"iss": ISSUER.upper()},
        "no issuer": {"iss": None},
        "expired a second ago": {"exp": now - 1},
        "expired a day ago": {"iat": now - 2 * DAY, "exp": now - DAY},
        "no end": {"exp": None},
        "an end in words": {"exp": str(now + DAY)},
        "an end that is true": {"exp": True},
        "an end beyond all time": {"exp": 10**18},
        "signed tomorrow": {"iat": now + DAY, "exp": now + 2 * DAY},
        "not yet": {"nbf": now + DAY},
        "nobody's": {"sub": None},
        "of a number": {"sub": 7},
        "of no name": {"sub": ""},
        "with a role of its own making": {"role": "owner"},
        "with roles in a list": {"role": ["administrator"]},
        "with a generation that is no number": {"gen": "9"},
        "with a generation below zero": {"gen": -1},
        "with an API key in words": {"api_key": "1"},
        "with an API key that is false": {"api_key": False},
    }
    for name, claims in wrong.items():
        yield name, token(secret, **claims)
    yield "critical extensions", token(secret, {"alg": "HS256", "typ": "JWT", "crit": ["exp"], "exp": now + DAY})


def _edited(secret: bytes) -> Iterator[tuple[str, str]]:
    good = token(secret)
    head, body, signature = good.split(".")
    yield "another user's payload", f"{head}.{encoded(_payload({'sub': 'u-2'}))}.{signature}"
    yield "an administrator's payload", f"{head}.{encoded(_payload({'role': 'administrator'}))}.{signature}"
    yield "another head", f"{encoded({'alg': 'HS256'})}.{body}.{signature}"
    yield "one other character", f"{good[:-2]}{'A' if good[-2] != 'A' else 'B'}{good[-1]}"
    yield "cut short", good[:-4]
    yield "padded", f"{good}="
    yield "with a fourth part", f"{good}.{signature}"
    yield "with parts of an encrypted one", f"{good}.{body}.{signature}"
    yield "twice", f"{good},{good}"
    yield "as JSON", msgspec.json.encode({"protected": head, "payload": body, "signature": signature}).decode()
    yield "not a token", "nonsense"
    yield "too long", f"{head}.{'A' * 9_000}.{signature}"


def _payload(claims: Mapping[str, Any]) -> dict[str, Any]:
    now = int(time.time())
    usual = {"sub": "u-1", "email": "u@example.com", "iss": ISSUER, "iat": now, "exp": now + DAY, "jti": "t-1"}
    return {name: value for name, value in {**usual, **claims}.items() if value is not None}


def _signed(header: Mapping[str, Any], key: Key) -> str:
    """By a key of the attacker's own, as it should be."""
    algorithm = str(header["alg"])
    return jws.serialize_compact(dict(header), msgspec.json.encode(_payload({})), key, algorithms=[algorithm])


@cache
def _rsa() -> RSAKey:
    return RSAKey.generate_key(2048)


@cache
def _keys() -> dict[str, Key]:
    return {
        "RS256": _rsa(),
        "PS256": _rsa(),
        "ES256": ECKey.generate_key("P-256"),
        "Ed25519": OKPKey.generate_key("Ed25519"),
    }


def _text(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).decode().rstrip("=")
