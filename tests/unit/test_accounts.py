"""Users as values, and which addresses may become one."""

import uuid
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.errors import Invalid
from refract.services.identity.api import UserRevoked
from refract.services.identity.domain.accounts import User, checked_email, normalized_email
from tests.support.clocks import START

LATER = START + timedelta(hours=1)


@pytest.mark.parametrize(
    ("text", "email"),
    [
        ("alice@example.com", "alice@example.com"),
        ("  Alice@Example.COM\n", "alice@example.com"),
        ("a+tag.x_y-z@mail.example.co.uk", "a+tag.x_y-z@mail.example.co.uk"),
        ("!#$%&'*+/=?^`{|}~@example.com", "!#$%&'*+/=?^`{|}~@example.com"),
        ("root@localhost", "root@localhost"),
        ("JOSÉ@BÜCHER.example", "josé@bücher.example"),
        ("jose\u0301@example.com", "josé@example.com"),  # the same letter, written in two ways
        ("अजय@डाटा.भारत", "अजय@डाटा.भारत"),  # vowels that are marks on a letter
        ("ทดสอบ@ทีมทดสอบ.ไทย", "ทดสอบ@ทีมทดสอบ.ไทย"),
        ("info@FASS.example", "info@fass.example"),
        ("info@FAẞ.example", "info@faß.example"),
        ("info@XN--FA-HIA.example", "info@faß.example"),  # one domain, and so one account
        ("info@mail.xn--fa-hia.example", "info@mail.faß.example"),
        ("info@\uff46\uff41ß.example", "info@faß.example"),
        ("info@xn--n3h.example", "info@xn--n3h.example"),  # a snowman, which is no letter: it has this spelling alone
        ("xn--fa-hia@example.com", "xn--fa-hia@example.com"),
        (f"{'a' * 64}@example.com", f"{'a' * 64}@example.com"),
    ],
)
def test_an_address_is_trimmed_and_lower_case(text: str, email: str) -> None:
    assert checked_email(text) == normalized_email(text) == email


@pytest.mark.parametrize("text", ["", " ", "\t\n"])
def test_an_address_is_required(text: str) -> None:
    with pytest.raises(Invalid, match=r"^email is required$"):
        checked_email(text)


@pytest.mark.parametrize(
    "text",
    [
        "notanemail",
        "@example.com",
        "alice@",
        "Alice <alice@example.com>",
        "<alice@example.com>",
        "alice@example.com, bob@example.com",
        "alice bob@example.com",
        '"alice bob"@example.com',
        "alice@example.com (me)",
        "alice@@example.com",
        "alice@bob@example.com",
        ".alice@example.com",
        "alice.@example.com",
        "al..ice@example.com",
        "alice@example..com",
        "alice@.example.com",
        "alice@example.com.",
        "alice@-example.com",
        "alice@example-.com",
        "alice@[127.0.0.1]",
        "alice@exa mple.com",
        "alice@example.com\r\nBcc: bob@example.com",
        "alice\0@example.com",
        "alice@exam\u202eple.com",
        "ali\ud800ce@example.com",
        "alice\u034f@example.com",  # a mark that nobody sees
        "\u0947अ@example.com",
        "alice@\u0947.example",
        "alice@ß_x.example",  # no mail could go there
        "alice@0\u05e9\u05dc\u05dd.example",
        f"{'a' * 65}@example.com",
        f"{'é' * 33}@example.com",
        f"alice@{'a' * 64}.com",
        f"alice@{'.'.join(['a' * 60] * 5)}.com",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(Invalid, match=r"^email format is invalid$"):
        checked_email(text)


@given(st.text(max_size=40).map(lambda text: f"{text}@example.com") | st.text(max_size=40))
def test_what_is_taken_can_stand_in_a_header_and_is_taken_again(text: str) -> None:
    try:
        email = checked_email(text)
    except Invalid:
        return
    assert email == checked_email(email)
    assert email.isprintable()
    assert not set(email) & set(' <>,;:"()[]\\')


@pytest.mark.parametrize(
    "text", ["", "xn--fa-hia.example", "deleted_xn--x", "alice@", "alice@" + "ß" * 100_000, "a@ß\ud800.example"]
)
def test_anything_can_be_looked_for(text: str) -> None:
    assert normalized_email(text) == text


def test_a_new_user_has_an_id_that_says_nothing() -> None:
    user, other = (User.local("alice@example.com", "hash", START) for _ in range(2))
    assert uuid.UUID(user.id).version == 4
    assert str(uuid.UUID(user.id)) == user.id
    assert user.id != other.id
    assert (user.role, user.status, user.is_active, user.token_generation) == ("user", "active", True, 0)
    assert (user.email_verified_at, user.created_at, user.updated_at) == (None, START, START)


def test_a_user_does_not_show_the_hash() -> None:
    assert "hash" not in repr(User.local("alice@example.com", "hash", START)).replace("password_hash", "")
    assert "secret-hash" not in repr(User.local("alice@example.com", "secret-hash", START))


def test_a_change_is_a_new_value() -> None:
    user = User.local("alice@example.com", "hash", START)
    changed = user.with_password("other", LATER)
    assert (changed.password_hash, changed.updated_at, user.password_hash) == ("other", LATER, "hash")
    assert user.with_role("administrator", LATER).role == "administrator"
    suspended = user.with_status("suspended", LATER)
    assert (suspended.status, suspended.is_active, suspended.updated_at) == ("suspended", False, LATER)
    assert user.with_role("user", LATER) is user
    assert user.with_status("active", LATER) is user


def test_the_first_verification_counts() -> None:
    user = User.local("alice@example.com", "hash", START).verified(LATER)
    assert (user.email_verified_at, user.updated_at) == (LATER, LATER)
    assert user.verified(LATER + timedelta(hours=1)) is user


def test_a_revocation_travels_as_a_platform_event_that_needs_no_reader() -> None:
    event = UserRevoked(occurred_at=START, event_id="evt_1", user_id="u", generation=3, until=LATER)
    assert (event.exchange, event.routing_key(), event.needs_reader) == ("smap.events", "user.revoked", False)
    assert event.encode() == (
        b'{"event_id":"evt_1","timestamp":"2026-03-01T12:00:00Z",'
        b'"payload":{"user_id":"u","until":"2026-03-01T13:00:00Z","generation":3},"correlation_id":""}'
    )
