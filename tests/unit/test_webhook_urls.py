"""Where a webhook may be, and the signature of its messages."""

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.errors import Invalid
from refract.services.notifications.domain.webhooks import check_webhook_url, new_secret, signed_headers


def test_the_example_of_the_standard() -> None:
    headers = signed_headers(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        datetime.fromtimestamp(1614265330, UTC),
        b'{"test": 2432232314}',
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_secrets_are_long_and_never_the_same() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert {len(base64.b64decode(secret.removeprefix("whsec_"))) for secret in secrets} == {32}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://Example.COM:443/Hook?a=1#x", "https://example.com/Hook?a=1"),
        ("http://example.com:8080/a b", None),
        ("https://example.com/ä", "https://example.com/%C3%A4"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://8.8.8.8/", "https://8.8.8.8/"),
        ("https://0x08.8.8.8/", "https://8.8.8.8/"),
        ("https://[2606:4700::1111]:8443/", "https://[2606:4700::1111]:8443/"),
    ],
)
def test_the_form_that_is_kept(text: str, kept: str | None) -> None:
    if kept is None:
        with pytest.raises(Invalid):
            check_webhook_url(text)
    else:
        assert check_webhook_url(text) == kept
        assert check_webhook_url(kept) == kept


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST", "localhost.", "a.localhost", "printer", "printer.local", "db.internal", "nas.home.arpa",
     "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "0", "0.0.0.0",
     "127.0.0.1.", "%31%32%37.0.0.1", "\uff11\uff12\uff17.0.0.1", "10.0.0.1", "192.168.0.1", "172.16.0.1",
     "169.254.169.254", "2852039166", "0xa9fea9fe", "168.63.129.16", "100.64.0.1", "224.0.0.1", "[::1]", "[::]",
     "[::ffff:127.0.0.1]",
     "[::ffff:a9fe:a9fe]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1]", "[fd00:ec2::254]", "[::127.0.0.1]"],
)  # fmt: skip
def test_private_places_are_refused_in_every_spelling(host: str) -> None:
    with pytest.raises(Invalid, match="private or local"):
        check_webhook_url(f"http://{host}:8080/")


def test_who_runs_the_instance_may_allow_them() -> None:
    assert check_webhook_url("http://2130706433:25/", allow_private=True) == "http://127.0.0.1:25/"
    assert check_webhook_url("http://printer/", allow_private=True) == "http://printer/"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must begin"),
        ("example.com", "must begin"),
        ("ftp://example.com/", "must begin"),
        ("javascript:alert(1)", "must begin"),
        ("https:example.com", "must begin"),
        ("https:///example.com", "must begin"),
        ("https://user:pass@example.com/", "credentials"),
        ("https://example.com\\@evil.example/", "credentials"),
        ("https://exa mple.com/", "spaces"),
        ("https://example.com/\r\nX: y", "spaces"),
        ("https://example.com/\x00", "spaces"),
        ("https://example.com:99999/", "host or port"),
        ("https://exam<ple.com/", "host or port"),
        ("https://[::1/", "host or port"),
        ("https://example.com:25/", "port 80, 443"),
        ("https://example.com:1023/", "port 80, 443"),
        ("https://example.com/" + "x" * 2048, "at most 2048"),
        ("https://example.com/" + "ä" * 1000, "at most 2048"),
        ("https://example.com/\ud800", "spaces"),
    ],
)
def test_what_else_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        check_webhook_url(text)


@given(st.text() | st.from_regex(r"https?://[^/]{0,30}/.{0,10}"))
def test_any_text_is_kept_or_refused(text: str) -> None:
    try:
        kept = check_webhook_url(text)
    except Invalid:
        return
    assert kept.startswith(("http://", "https://"))
    assert check_webhook_url(kept) == kept
