"""Where a link may lead: reading a destination, the form it is served in, and the key that finds it again."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Self

import can_ada

from refract.kernel.errors import Invalid, Misconfigured
from refract.services.links.settings import Normalization

URL_LENGTH = 2_048
LOCATION_LENGTH = 8_000
"""Percent-encoding can make 2,048 characters twelve times as long. Our own proxy, like many others, takes a header of
8,190 bytes: a link beyond that could be made and never followed."""

_SURROGATES = re.compile("[\ud800-\udfff]")
# The second half are the marks that turn the direction of writing: they make a URL look like another one, and RFC 3987
# (4.1) keeps them out of addresses.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_HOST_AND_PORT = re.compile(r"[^:/?#]+:[0-9]+(?:[/?#]|\Z)")
_AUTHORITY = re.compile(r"https?://([^/?#]+)", re.IGNORECASE)
_HOST = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:]+\]")
_SERVED_AS_GIVEN = re.compile(r"[!#-;=?-\[\]-~]+")  # printable ASCII but for space and "<>\
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_DEFAULT_PORTS = frozenset({"", "80", "443"})
_THIS_MACHINE = re.compile(r"(?:.+\.)?localhost|127(?:\.[0-9]+){3}|0\.0\.0\.0|\[::1?\]")
"""Hosts that lead to the machine of whoever follows them, and those by which a server listens on all its addresses."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A destination that may be stored: `url` as given but for the space around it; `host` as browsers read it.

    The host is in lower case and ASCII, without a dot at its end, so that lists of hosts need one spelling only.
    """

    url: str
    host: str


@dataclass(frozen=True, slots=True)
class OwnDomains:
    """The places where we answer ourselves: a link to one of them could lead round in a circle."""

    places: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, base_url: str, short_domains: Iterable[str]) -> Self:
        """The places of the two settings; a short domain is a host, or a host and a port."""
        urls = [("BASE_URL", base_url, base_url)]
        urls += [
            ("SHORT_DOMAINS", domain, domain if "://" in domain else f"https://{domain}/") for domain in short_domains
        ]
        return cls(frozenset(_place(_site(*each)) for each in urls))

    def include(self, parsed: can_ada.URL) -> bool:
        """Whether a URL leads to one of these places, however it is spelt."""
        return _place(parsed) in self.places


def read_destination(text: str, own: OwnDomains) -> Destination:
    """Check what somebody wants to shorten; Invalid says what is wrong with it.

    It is read as browsers read it (WHATWG), because they are the ones who follow it. What only their leniency makes a
    URL is refused all the same: programs that read more strictly would go somewhere else.
    """
    url = text.strip()
    if not url:
        raise Invalid("url is required")
    # Before anything is trimmed or parsed: trimming takes line ends away, and so does WHATWG from the middle.
    _check_characters(text)
    if len(url) > URL_LENGTH:
        raise Invalid(f"url must be at most {URL_LENGTH} characters")
    _check_shape(url)
    parsed = _parsed(url)
    host = _canonical_host(parsed.hostname)
    if _HOST.fullmatch(host) is None:
        raise Invalid("url has a host or port that is not valid")
    if own.include(parsed):
        raise Invalid("url must not lead to a short domain of this service")
    if len(location_of(url)) > LOCATION_LENGTH:
        raise Invalid(f"url must be at most {LOCATION_LENGTH} characters when percent-encoded")
    return Destination(url, host)


def location_of(url: str) -> str:
    """A stored destination in the form that a Location header can carry: ASCII, without spaces.

    As given wherever that is possible, unusual characters like `|` and `{` included: whoever made the link may depend
    on them, and clients cope. Where it is not (space, beyond ASCII, `"<>`), it is what a browser makes of the same text
    in its address bar. So it is with a backslash: browsers read a slash, others do not, and all should arrive at one
    place.
    """
    return url if _SERVED_AS_GIVEN.fullmatch(url) else _parsed(url).href


def normalized(url: str, normalization: Normalization) -> str:
    """The text that is the same for two spellings of one destination. Used for the key only, and never served.

    `lowercase` is document 001's: trimmed and in lower case as a whole. `rfc3986` joins no two URLs that may be two
    pages. Thus an empty query stays (RFC 3986 does not let `/?` equal `/`, and a second link costs less than a wrong
    one), and so does a dot at the end of the host; an empty fragment goes, because it is never sent to a server.
    """
    if normalization == "lowercase":
        return url.strip().lower()
    # WHATWG has done the scheme, the host, the default port, the dot segments and what lies beyond ASCII.
    rest, _, fragment = _parsed(url.strip()).href.partition("#")
    rest, question_mark, query = rest.partition("?")
    text = _unescaped(rest) + question_mark + _unescaped(query)
    return f"{text}#{_unescaped(fragment)}" if fragment else text


def spelt_for_lists(url: str) -> str:
    """The `rfc3986` form for a list of what is forbidden, also of a URL with a stray `%`: servers read that as a `%25`.

    Here one join too many costs less than an escape that hides a listed word. For a key it is the other way round.
    """
    return normalized(_STRAY_PERCENT.sub("%25", url), "rfc3986")


def url_key(url: str, normalization: Normalization) -> bytes:
    """What the unique index compares: a digest, because a URL can be longer than an index takes.

    Keys of one form never meet those of the other: after a change of the setting `/abc` must not find a link to `/AbC`.
    """
    form = "" if normalization == "rfc3986" else f"{normalization}\n"  # no URL has a line end
    return hashlib.sha256(f"{form}{normalized(url, normalization)}".encode()).digest()


def _check_characters(text: str) -> None:
    if _SURROGATES.search(text) is not None:
        raise Invalid("url must be valid Unicode")
    if _CONTROLS.search(text) is not None:
        raise Invalid("url must not contain control characters")


def _check_shape(url: str) -> None:
    """See to it that scheme and host stand there in full, for strict and lenient readers alike."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise Invalid("url must include scheme and host")
    if scheme[1].lower() not in {"http", "https"}:
        # "example.com:8080/x" has no scheme in the eyes of the person who typed it.
        meant_as_host = _HOST_AND_PORT.match(url) is not None
        raise Invalid("url must include scheme and host" if meant_as_host else "url scheme must be http or https")
    authority = _AUTHORITY.match(url)
    if authority is None:
        raise Invalid("url must include scheme and host")
    if "\\" in authority[1]:
        # "http://a\@b": a browser goes to a, others to b.
        raise Invalid("url must not have a backslash in its host")
    if "@" in authority[1]:
        raise Invalid("url must not contain credentials")


def _parsed(url: str) -> can_ada.URL:
    try:
        return can_ada.parse(url)
    except (ValueError, TypeError):
        raise Invalid("url has a host or port that is not valid") from None


def _site(variable: str, value: str, url: str) -> can_ada.URL:
    """The URL of a setting; Misconfigured where links could not be served there.

    WHATWG lets hosts pass that nothing has, such as `*.s.example`: it would look protected, and would not be.
    """
    try:
        parsed = can_ada.parse(url)
    except ValueError:
        parsed = None
    if (
        parsed is None
        or parsed.protocol not in {"http:", "https:"}
        or _HOST.fullmatch(_canonical_host(parsed.hostname)) is None
        or (variable == "SHORT_DOMAINS" and parsed.pathname != "/")
    ):
        raise Misconfigured(
            f'FATAL: environment variable "{variable}" has "{value}"; expected a host such as "s.example"'
        )
    return parsed


def _place(parsed: can_ada.URL) -> tuple[str, str]:
    """Host and port for comparison, one for all names of this machine.

    Whoever answers on one of the default ports is taken to answer on both.
    """
    host = _canonical_host(parsed.hostname)
    port = "" if parsed.port in _DEFAULT_PORTS else parsed.port
    return "localhost" if _THIS_MACHINE.fullmatch(host) else host, port


def _canonical_host(hostname: str) -> str:
    """A host without the dot of the DNS root; an IPv4 address that is dressed up as IPv6 without its dress."""
    if hostname.startswith("["):
        mapped = IPv6Address(hostname[1:-1]).ipv4_mapped
        return hostname if mapped is None else str(mapped)
    return hostname.rstrip(".")


def _unescaped(component: str) -> str:
    """Percent-encoding in its normal form: upper case, and none for unreserved characters.

    A component with a stray `%` is left alone: after decoding, that could become an escape which nobody has written.
    """
    if _STRAY_PERCENT.search(component) is not None:
        return component
    return _ESCAPE.sub(_normal_escape, component)


def _normal_escape(escape: re.Match[str]) -> str:
    value = int(escape[1], 16)
    return chr(value) if value in _UNRESERVED else escape[0].upper()
