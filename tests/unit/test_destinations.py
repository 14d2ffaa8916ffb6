"""Destinations: what may be one and why not, and the form that a header can carry."""

from urllib.parse import urlsplit

import can_ada
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refract.kernel.errors import Invalid, Misconfigured
from refract.services.links.domain.destinations import (
    LOCATION_LENGTH,
    Destination,
    OwnDomains,
    location_of,
    read_destination,
)

OWN = OwnDomains.of("https://go.example", ["s.example", "bücher.example", "short.example:8443"])
LOCAL = OwnDomains.of("http://127.0.0.1:8080", [])
WIDE = {ordinal: ordinal + 0xFEE0 for ordinal in range(ord("!"), ord("~") + 1)}
"""From ASCII to the full-width letters of East Asian writing, which hosts are read without."""

MISSING = "url must include scheme and host"
SCHEME = "url scheme must be http or https"
CREDENTIALS = "url must not contain credentials"
CONTROLS = "url must not contain control characters"
UNREADABLE = "url has a host or port that is not valid"
OURS = "url must not lead to a short domain of this service"
BACKSLASH = "url must not have a backslash in its host"


def refusal(text: str, own: OwnDomains = OWN) -> str:
    with pytest.raises(Invalid) as refused:
        read_destination(text, own)
    return refused.value.message


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://example.com", "example.com"),
        ("HTTP://EXAMPLE.com:80/Path", "example.com"),
        ("https://example.com./x", "example.com"),
        ("https://user.example/@name?mail=a@b.example#@x", "user.example"),
        ("https://example.com/a?next=https://go.example/x", "example.com"),
        ("https://bücher.de/straße?q=ü#ö", "xn--bcher-kva.de"),
        ("https://xn--bcher-kva.de/", "xn--bcher-kva.de"),
        ("http://example.com/a b", "example.com"),
        ("http://example.com/a\\b", "example.com"),
        ("http://a_b.example/", "a_b.example"),
        ("http://0x7f.1/", "127.0.0.1"),
        ("http://[2001:DB8::1]:8080/", "[2001:db8::1]"),
        ("http://localhost:3000", "localhost"),
        ("https://example.com:65535/", "example.com"),
        ("https://example.com?q", "example.com"),
        ("https://example.com/100%", "example.com"),
        ("https://example.com/🦊", "example.com"),
        ("https://go.example.com/", "go.example.com"),
        ("https://xgo.example/", "xgo.example"),
        ("https://sub.go.example/", "sub.go.example"),
    ],
)
def test_a_destination_is_kept_as_given_and_its_host_as_browsers_read_it(text: str, host: str) -> None:
    assert read_destination(text, OWN) == Destination(text, host)


@pytest.mark.parametrize("space", [" ", "   ", "\u00a0", "\u3000"])
def test_space_around_a_destination_is_trimmed(space: str) -> None:
    assert read_destination(f"{space}https://example.com/A{space}", OWN).url == "https://example.com/A"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "url is required"),
        ("   ", "url is required"),
        ("\r\n\t", "url is required"),
        # no scheme, or no host, or neither in full
        ("example.com", MISSING),
        ("example.com:8080/x", MISSING),
        ("localhost:3000", MISSING),
        ("//example.com/x", MISSING),
        ("/x", MISSING),
        ("://example.com", MISSING),
        ("http", MISSING),
        ("http:", MISSING),
        ("http:/", MISSING),
        ("http://", MISSING),
        ("http:///x", MISSING),
        ("https://?q", MISSING),
        ("https://#f", MISSING),
        ("https:example.com", MISSING),
        ("https:/example.com", MISSING),
        ("https:\\\\evil.example", MISSING),
        ("http:/\\x", MISSING),
        ("http\u200b://example.com", MISSING),
        ("\ufeffhttp://example.com", MISSING),
        ("not a url", MISSING),
        # other schemes
        ("javascript:alert(1)", SCHEME),
        ("JavaScript:alert(1)//https://example.com", SCHEME),
        ("javascript://example.com/%0aalert(1)", SCHEME),
        ("data:text/html,<script>alert(1)</script>", SCHEME),
        ("data:text/html;base64,eA==", SCHEME),
        ("file:///etc/passwd", SCHEME),
        ("ftp://example.com/", SCHEME),
        ("vbscript:x", SCHEME),
        ("blob:https://example.com/x", SCHEME),
        ("view-source:https://example.com", SCHEME),
        ("mailto:a@example.com", SCHEME),
        ("ws://example.com", SCHEME),
        # hosts and ports
        ("http://a b.example/", UNREADABLE),
        ("http://%00.example/", UNREADABLE),
        ("http://a%2fb.example/", UNREADABLE),
        ("http://a%40b.example/", UNREADABLE),
        ("http://a<b>.example/", UNREADABLE),
        ('http://a"b.example/', UNREADABLE),
        ("http://a'b.example/", UNREADABLE),
        ("http://a{b}.example/", UNREADABLE),
        ("http://./", UNREADABLE),
        ("http://:80/", UNREADABLE),
        ("http://[::1", UNREADABLE),
        ("http://[::1%25eth0]/", UNREADABLE),
        ("http://256.1.1.1/", UNREADABLE),
        ("http://xn--a/", UNREADABLE),
        ("http://example.com:65536/", UNREADABLE),
        ("http://example.com:99999/", UNREADABLE),
        ("http://example.com:-1/", UNREADABLE),
        ("http://example.com:8o/", UNREADABLE),
        # one reader's host is the other's user
        ("http://example.com\\@evil.example/", BACKSLASH),
        ("http://example.com\\.evil.example/", BACKSLASH),
        ("http://\\example.com", BACKSLASH),
        ("http://user@example.com/", CREDENTIALS),
        ("http://user:secret@example.com/", CREDENTIALS),
        ("http://:secret@example.com/", CREDENTIALS),
        ("http://@example.com/", CREDENTIALS),
        ("http://:@example.com/", CREDENTIALS),
        ("http://example.com@evil.example/", CREDENTIALS),
        ("http://example.com:80@evil.example?x", CREDENTIALS),
    ],
)
def test_what_is_no_destination_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert refusal(text) == reason


CONTROL_CHARACTERS = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\u202e", "\u2066", "\u200e"]


@pytest.mark.parametrize("control", CONTROL_CHARACTERS, ids=lambda control: f"U+{ord(control):04X}")
def test_a_control_character_is_refused_wherever_it_stands(control: str) -> None:
    url = "https://example.com/a?b#c"
    for place in range(len(url) + 1):
        assert refusal(url[:place] + control + url[place:]) == CONTROLS


def test_half_a_character_is_refused() -> None:
    for half in ("\ud800", "\udfff", "\udc80"):
        assert refusal(f"https://example.com/{half}") == "url must be valid Unicode"
        assert refusal(f"https://{half}.example/") == "url must be valid Unicode"


def test_the_limit_of_2048_characters_is_exact_and_does_not_count_the_space_around() -> None:
    longest = "https://example.com/".ljust(2_048, "a")
    assert read_destination(f"  {longest}  ", OWN).url == longest
    assert refusal(longest + "a") == "url must be at most 2048 characters"


def test_a_destination_whose_header_would_be_too_long_for_proxies_is_refused() -> None:
    start = "https://example.com/"
    fits = (LOCATION_LENGTH - len(start)) // 12
    assert len(location_of(read_destination(start + "🦊" * fits, OWN).url)) <= LOCATION_LENGTH
    assert refusal(start + "🦊" * (fits + 1)) == "url must be at most 8000 characters when percent-encoded"


@pytest.mark.parametrize(
    "text",
    [
        "https://go.example",
        "http://go.example/x",
        "HTTPS://GO.EXAMPLE/x?y#z",
        "https://go.example./",
        "https://go.example../",
        "https://go%2Eexample/",
        "https://g%6f.example%2e/",
        "https://%47O.example/",
        "https://go。example/",
        f"https://{'go.example'.translate(WIDE)}/",
        "https://ⓖⓞ.example/",
        "https://g\u00ado.example/",
        "https://go.example:443/",
        "https://go.example:0443/",
        "https://go.example:/",
        "https://go.example:80/",
        "http://go.example:80/",
        "http://go.example:443/",
        "https://go.example?x",
        "https://s.example/x",
        "http://S.Example.:443/x",
        "https://bücher.example/",
        "https://BÜCHER.example/",
        "https://bu\u0308cher.example/",
        "https://xn--bcher-kva.example/",
        "https://XN--BCHER-KVA.example./",
        "https://b%C3%BCcher.example/",
        "https://short.example:8443/",
        "http://short.example.:08443/",
    ],
)
def test_our_own_domains_are_refused_in_every_spelling(text: str) -> None:
    assert refusal(text) == OURS


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1.", "0x7f.1", "0X7F.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001"),
        *("017700000001", "0177.0.0.1", "127.0.0.0x1", "%31%32%37.0.0.1", "127.0.0.1".translate(WIDE), "①②⑦.0.0.1"),
        *("127。0。0。1", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:FFFF:7F00:0001]"),
    ],
)
def test_our_own_address_is_refused_in_every_spelling(host: str) -> None:
    assert refusal(f"http://{host}:8080/x", LOCAL) == OURS
    assert refusal(f"https://{host}:08080", LOCAL) == OURS
    assert read_destination(f"http://{host}:8081/x", LOCAL).host == "127.0.0.1"
    assert read_destination(f"http://{host}/x", LOCAL).host == "127.0.0.1"


THIS_MACHINE = ["localhost", "go.localhost", "127.0.0.1", "127.1.2.3", "0.0.0.0", "[::1]", "[::]", "[::ffff:0:0]"]


@pytest.mark.parametrize("listening", [host for host in THIS_MACHINE if host != "127.1.2.3"])
def test_nobody_is_led_back_to_an_instance_on_his_own_machine(listening: str) -> None:
    own = OwnDomains.of(f"http://{listening}:8080", [])
    for host in [*THIS_MACHINE, "LocalHost.", "0", "0x0.0", "0000", "127.255.255.254", "[::ffff:127.9.9.9]"]:
        assert refusal(f"http://{host}:8080/code", own) == OURS, host
        assert read_destination(f"http://{host}:8081/code", own).url == f"http://{host}:8081/code"


@pytest.mark.parametrize(
    "host", ["0.0.0.1", "128.0.0.1", "[::2]", "[2001:db8::1]", "notlocalhost", "localhost.example", "127.example"]
)
def test_what_only_looks_like_this_machine_may_be_a_destination(host: str) -> None:
    assert read_destination(f"http://{host}:8080/", LOCAL).url == f"http://{host}:8080/"


@pytest.mark.parametrize("host", THIS_MACHINE)
def test_this_machine_may_be_a_destination_of_an_instance_that_is_elsewhere(host: str) -> None:
    assert read_destination(f"http://{host}:8080/", OWN).url == f"http://{host}:8080/"


def test_another_port_is_another_place() -> None:
    assert read_destination("https://go.example:8443/", OWN).host == "go.example"
    assert read_destination("https://short.example/", OWN).host == "short.example"


def test_own_domains_may_be_written_as_urls_and_in_any_spelling() -> None:
    own = OwnDomains.of("HTTP://GO.example.:80/base", ["https://S.example/", "Ü.example."])
    for url in ("https://go.example/", "http://s.example", "https://ü.example", "http://xn--tda.example/"):
        assert refusal(url, own) == OURS


def test_own_domains_that_cannot_be_read_stop_the_service() -> None:
    with pytest.raises(Misconfigured, match='"SHORT_DOMAINS" has "a b"'):
        OwnDomains.of("https://go.example", ["a b"])
    with pytest.raises(Misconfigured, match="BASE_URL"):
        OwnDomains.of("nothing", [])


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "HTTPS://Example.COM:443/../a/%7e?b#",
        "https://example.com/a|b^c`{d}?e=[1]|{2}'",
        "https://example.com/100%",
        "https://example.com/~!$&'()*+,;=:@-._?/#?",
    ],
)
def test_a_header_carries_printable_ascii_as_given(url: str) -> None:
    assert location_of(read_destination(url, OWN).url) == url


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("https://example.com/a b?c d#e f", "https://example.com/a%20b?c%20d#e%20f"),
        ("https://bücher.de/ä?ö#ü", "https://xn--bcher-kva.de/%C3%A4?%C3%B6#%C3%BC"),
        ("https://example.com/\u2028", None),
        ("https://example.com/a\u2028b", "https://example.com/a%E2%80%A8b"),
        ('https://example.com/"<a>"', "https://example.com/%22%3Ca%3E%22"),
        ("https://example.com/a\\b", "https://example.com/a/b"),
        ("https://example.com/%7e/ä", "https://example.com/%7e/%C3%A4"),
    ],
)
def test_what_no_header_can_carry_is_served_as_a_browser_would_write_it(url: str, location: str | None) -> None:
    assert location_of(read_destination(url, OWN).url) == (location or "https://example.com/")


hosts = st.sampled_from(["example.com", "EXAMPLE.com.", "bücher.de", "127.1", "[::1]", "s.example", "a b", "a\\@b", ""])
characters = st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("%/.?#:@\\ \"<>|{}'aA7eE2[]")
tails = st.text(characters, max_size=30) | st.text(characters | st.characters(), max_size=30)
starts = st.sampled_from(["http://", "https://", "HTTPS://", " http://", "http:/", "javascript:", "//", "http:\\\\"])
any_texts = (
    st.text(max_size=60) | st.builds("{}{}/{}".format, starts, hosts, tails) | st.builds("http://{}".format, tails)
)


def destination(text: str) -> Destination | None:
    try:
        return read_destination(text, OWN)
    except Invalid:
        return None


@given(any_texts)
@example("http://example.com/\r\nSet-Cookie: a=b")
@example("http://example.com/ä\x00")
def test_whatever_is_sent_is_refused_or_safe_to_serve(text: str) -> None:
    """The one promise that everything behind relies on: no other exception, and no header but a plain one."""
    read = destination(text)
    if read is None:
        return
    assert read.url == text.strip()
    location = location_of(read.url)
    assert all("!" <= character <= "~" for character in location)
    assert location.lower().startswith(("http://", "https://"))
    served = can_ada.parse(location)
    assert served.href == can_ada.parse(read.url).href, "a browser arrives where the destination says"
    assert not served.has_credentials()
    strict = urlsplit(location)
    assert strict.username is None
    host = strict.hostname or ""
    assert can_ada.parse(f"http://[{host}]" if ":" in host else f"http://{host}").hostname == served.hostname
    assert not OWN.include(served)
