"""API keys as values: what one looks like, what it may be for, what is told of it."""

import hashlib
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.errors import Invalid, PoisonMessage
from refract.kernel.events import EventDecoder
from refract.runtime.tokens import TokenSigner, TokenVerifier
from refract.services.identity.api import LARGEST_KEY_ID, ApiKeyCreated, ApiKeyRevoked
from refract.services.identity.domain.keys import (
    LARGEST_SMS_USER,
    SCOPES,
    FreshKey,
    KeyWish,
    NotForSms,
    granted_scopes,
    key_hash,
)
from tests.support.clocks import START, ManualClock

HASH = "0123456789abcdef" * 4


def wish(**changes: Any) -> KeyWish:
    fields = {"name": "Blog", "scopes": ["links:read"], "expires_at": None, "sms_user_id": None, **changes}
    return KeyWish.of(**fields, now=START)


def test_a_key_is_a_mark_and_forty_characters_that_nobody_guesses() -> None:
    keys = [FreshKey.make() for _ in range(200)]
    assert all(re.fullmatch("refract_[0-9a-zA-Z]{40}", key.text) for key in keys)
    assert len({key.text for key in keys}) == 200
    assert set("".join(key.text[8:] for key in keys)) == set(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    )
    assert all(key.prefix == key.text[:16] for key in keys)
    assert keys[0].text not in repr(keys[0])


def test_what_is_kept_is_blake2b_of_the_whole() -> None:
    key = FreshKey.make()
    assert key.hash == key_hash(key.text) == hashlib.blake2b(key.text.encode(), digest_size=32).hexdigest()
    assert len(key.hash) == 64


@given(st.text(alphabet=st.characters()))
def test_whatever_a_client_sends_has_a_hash(text: str) -> None:
    assert re.fullmatch("[0-9a-f]{64}", key_hash(text))


def test_a_lone_surrogate_has_a_hash_too() -> None:
    assert key_hash("\ud800") != key_hash("\ud801")


@pytest.mark.parametrize(("name", "kept"), [("x", "x"), (" Blog\u3000", "Blog"), ("é" * 100, "é" * 100)])
def test_a_name_is_trimmed(name: str, kept: str) -> None:
    assert wish(name=name).name == kept


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "name is required"),
        (" \u3000", "name is required"),
        ("x" * 101, "name must be at most 100 characters"),
        ("a\0b", "name must not contain control characters"),
        ("a\nb", "name must not contain control characters"),
        ("a\x9bb", "name must not contain control characters"),
        ("a\ud800b", "name must not contain control characters"),
    ],
)
def test_what_is_no_name(name: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        wish(name=name)


@pytest.mark.parametrize(
    ("scopes", "message"),
    [
        ([], "scopes are required"),
        (["links:admin"], "scopes must be out of links:read, links:write"),
        (["links:read", ""], "scopes must be out of"),
        (["LINKS:READ"], "scopes must be out of"),
        (["links:read "], "scopes must be out of"),
        (["*"], "scopes must be out of"),
        (["links:read", "links:write", "links:read"], "scopes must not be repeated"),
    ],
)
def test_what_are_no_scopes(scopes: list[str], message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)):
        wish(scopes=scopes)


def test_scopes_are_kept_in_one_order() -> None:
    assert wish(scopes=["stats:read", "links:write", "links:read"]).scopes == (
        "links:read",
        "links:write",
        "stats:read",
    )


def test_it_ends_in_the_future() -> None:
    soon = START + timedelta(microseconds=1)
    assert wish(expires_at=soon).expires_at == soon
    for moment in (START, START - timedelta(days=1)):
        with pytest.raises(Invalid, match="expires_at must be in the future"):
            wish(expires_at=moment)


@pytest.mark.parametrize("number", [0, 101, LARGEST_SMS_USER])
def test_a_key_that_sends_messages_is_bound_to_one_user(number: int) -> None:
    assert wish(scopes=["sms:send", "links:read"], sms_user_id=number).sms_user_id == number


@pytest.mark.parametrize(
    ("scopes", "number", "message"),
    [
        (["sms:send"], None, "scope sms:send and sms_user_id go together"),
        (["links:read"], 101, "scope sms:send and sms_user_id go together"),
        (["links:read"], 0, "scope sms:send and sms_user_id go together"),
        (["sms:send"], -1, "sms_user_id must be a number from 0 to 2^63 - 1"),
        (["sms:send"], LARGEST_SMS_USER + 1, "sms_user_id must be a number from 0 to 2^63 - 1"),
    ],
)
def test_sms_without_its_user_and_a_user_without_sms(scopes: list[str], number: int | None, message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)):
        wish(scopes=scopes, sms_user_id=number)


def test_only_administrators_give_that_away_and_only_while_they_are() -> None:
    sending = wish(scopes=["sms:send"], sms_user_id=1)
    sending.check_allowed_to("administrator")
    with pytest.raises(NotForSms):
        sending.check_allowed_to("user")
    wish(scopes=SCOPES[:-1]).check_allowed_to("user")
    assert granted_scopes(SCOPES, "administrator") == list(SCOPES)
    assert granted_scopes(SCOPES, "user") == list(SCOPES[:-1])
    assert granted_scopes(["sms:send"], "user") == []
    assert granted_scopes(["of:tomorrow", "stats:read"], "administrator") == ["stats:read"]


@pytest.mark.parametrize("event", [ApiKeyCreated, ApiKeyRevoked])
def test_events_of_keys_are_platform_events_that_need_no_reader(event: type[ApiKeyCreated | ApiKeyRevoked]) -> None:
    made = event(occurred_at=START, event_id="evt_1", key_id=7, user_id="u", key_hash=HASH)
    name = {ApiKeyCreated: "apikey.created", ApiKeyRevoked: "apikey.revoked"}[event]
    assert (made.exchange, made.routing_key(), made.needs_reader) == ("smap.events", name, False)
    assert made.encode() == (
        b'{"event_id":"evt_1","timestamp":"2026-03-01T12:00:00Z",'
        b'"payload":{"key_id":7,"user_id":"u","key_hash":"%b"},"correlation_id":""}' % HASH.encode()
    )
    assert EventDecoder(event).decode(name, made.encode()) == [made]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key_id", 0),
        ("key_id", "7"),
        ("key_id", LARGEST_KEY_ID + 1),
        ("key_hash", "x"),
        ("key_hash", HASH.upper()),
        ("key_hash", f"{HASH}0"),
        ("user_id", 7),
    ],
)
def test_what_is_no_such_event_is_poison(field: str, value: object) -> None:
    event = ApiKeyRevoked(occurred_at=START, event_id="evt_1", key_id=7, user_id="u", key_hash=HASH)
    known = {"key_id": b"7", "user_id": b'"u"', "key_hash": b'"%b"' % HASH.encode()}[field]
    wrong = str(value).encode() if isinstance(value, int) else b'"%b"' % str(value).encode()
    body = event.encode().replace(b'"%b":%b' % (field.encode(), known), b'"%b":%b' % (field.encode(), wrong))
    assert body != event.encode()
    with pytest.raises(PoisonMessage):
        EventDecoder(ApiKeyRevoked).decode("apikey.revoked", body)


def test_a_token_may_say_which_key_stands_behind_it_and_be_short() -> None:
    clock, secret = ManualClock(), "the secret of identity, 32 bytes."
    signer, verifier = TokenSigner(secret, clock), TokenVerifier([secret], clock)
    made = signer.sign("u", "u@example.com", api_key=7, lifetime=timedelta(minutes=2))
    assert made.expires_at == START + timedelta(minutes=2)
    claims = verifier.verify(made.token)
    assert (claims.api_key, claims.role, claims.expires_at) == (7, "user", made.expires_at)
    assert verifier.verify(signer.sign("u", "u@example.com").token).api_key is None
