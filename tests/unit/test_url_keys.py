"""The key of a destination: spellings of one page share it, two pages never do."""

import hashlib

import can_ada
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refract.kernel.errors import Invalid
from refract.services.links.domain.destinations import OwnDomains, normalized, read_destination, url_key

OWN = OwnDomains.of("https://go.example", [])


def key_text(url: str) -> str:
    return normalized(url, "rfc3986")


def is_destination(url: str) -> bool:
    try:
        read_destination(url, OWN)
    except Invalid:
        return False
    return True


paths = st.text(st.sampled_from("aA.~%/27eE5fFcC3") | st.characters(exclude_categories=["Cs", "Cc"]), max_size=25)
endings = st.builds("{}{}".format, st.sampled_from(["", "?", "#", "?#", "?q=%7e", "#%7E", "?%", "#%4"]), paths)
good_urls = st.builds(
    "{}{}{}/{}{}".format,
    st.sampled_from(["http://", "HTTPS://"]),
    st.sampled_from(["example.com", "EXAMPLE.com.", "bücher.de", "127.1", "[::1]"]),
    st.sampled_from(["", ":", ":80", ":443", ":8080"]),
    paths,
    endings,
).filter(is_destination)


@given(good_urls)
@example("http://example.com/%%341")
@example("http://example.com/%2%35")
@example("http://example.com/%25%37%45")
@example("http://example.com/%2e%2E/%2e")
@example("http://example.com/?#")
def test_normalising_twice_changes_nothing_more(url: str) -> None:
    once = key_text(url)
    assert key_text(once) == once
    assert once.isascii()
    lowered = normalized(url, "lowercase")
    assert normalized(lowered, "lowercase") == lowered


def meaning(url: str) -> tuple[object, ...]:
    """What a server and a page can see of a URL: escapes undone where that loses nothing, the rest byte for byte."""
    parsed = can_ada.parse(url)
    before, _, fragment = parsed.href.partition("#")
    before, mark, query = before.partition("?")
    return parsed.origin, opened(before.removeprefix(parsed.origin)), mark, opened(query), opened(fragment)


def opened(component: str) -> tuple[tuple[bool, str], ...]:
    """The characters of a component, and of each whether it is written as an escape that matters."""
    read: list[tuple[bool, str]] = []
    place = 0
    while place < len(component):
        digits = component[place + 1 : place + 3]
        if component[place] == "%" and len(digits) == 2 and all(digit in "0123456789abcdefABCDEF" for digit in digits):
            character = chr(int(digits, 16))
            plain = character.isascii() and (character.isalnum() or character in "-._~")
            read.append((not plain, character))
            place += 3
        else:
            read.append((False, component[place]))
            place += 1
    return tuple(read)


@given(good_urls)
@example("http://example.com/%%341")
@example("http://example.com/a\u00a0")
def test_a_normalised_url_still_means_the_same_page(url: str) -> None:
    assert meaning(key_text(url)) == meaning(url.strip())


SAME = [
    ("https://example.com", "https://example.com/"),
    ("https://example.com/a", "  HTTPS://EXAMPLE.com:443/a "),
    ("http://example.com/", "http://example.com:80"),
    ("http://example.com/", "http://example.com:/"),
    ("https://example.com/a", "https://example.com/a#"),
    ("https://example.com/a", "https://example.com/b/../a"),
    ("https://example.com/a", "https://example.com/./b/%2E%2e/a"),
    ("https://example.com/~a", "https://example.com/%7ea"),
    ("https://example.com/?q=~", "https://example.com/?q=%7E"),
    ("https://example.com/#~", "https://example.com/#%7e"),
    ("https://example.com/%C3%A4", "https://example.com/%c3%a4"),
    ("https://example.com/%C3%A4", "https://example.com/ä"),
    ("https://example.com/?%C3%A4", "https://example.com/?ä"),
    ("https://example.com/a%20b", "https://example.com/a b"),
    ("https://bücher.de/", "https://xn--bcher-kva.de/"),
    ("https://bücher.de/", "https://BÜCHER.de/"),
    ("http://127.0.0.1/", "http://0x7f.1/"),
    ("http://[::1]/", "http://[0:0::1]/"),
]

DIFFERENT = [
    ("https://example.com/a", "http://example.com/a"),
    ("https://example.com/watch?v=aBc", "https://example.com/watch?v=abc"),
    ("https://example.com/aBc", "https://example.com/abc"),
    ("https://example.com/#aBc", "https://example.com/#abc"),
    ("https://example.com/a", "https://example.com/a/"),
    ("https://example.com/a", "https://example.com//a"),
    ("https://example.com/a", "https://example.com/a?"),
    ("https://example.com/a", "https://example.com/a#x"),
    ("https://example.com/a?x", "https://example.com/a#x"),
    ("https://example.com/a?x=1&y=2", "https://example.com/a?y=2&x=1"),
    ("https://example.com/a?x=1", "https://example.com/a?x=1&"),
    ("https://example.com/a%2Fb", "https://example.com/a/b"),
    ("https://example.com/a%3Fb", "https://example.com/a?b"),
    ("https://example.com/a%23b", "https://example.com/a#b"),
    ("https://example.com/a?b%26c", "https://example.com/a?b&c"),
    ("https://example.com/a?b+c", "https://example.com/a?b%2Bc"),
    ("https://example.com/%2541", "https://example.com/%41"),
    ("https://example.com/%%341", "https://example.com/%41"),
    ("https://example.com/%25", "https://example.com/%"),
    ("https://example.com/%C3%A4", "https://example.com/%E4"),
    ("https://example.com/ä", "https://example.com/a\u0308"),
    ("https://example.com/", "https://example.com:8443/"),
    ("https://example.com/", "https://example.com:80/"),
    ("https://example.com/", "https://www.example.com/"),
    ("https://example.com/", "https://example.com./"),
    ("https://straße.de/", "https://strasse.de/"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_spellings_of_one_page_share_a_key(one: str, other: str) -> None:
    assert url_key(one, "rfc3986") == url_key(other, "rfc3986")


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_two_pages_never_share_a_key(one: str, other: str) -> None:
    assert url_key(one, "rfc3986") != url_key(other, "rfc3986")


def test_the_normal_form_is_written_out_once() -> None:
    given_url = " HTTPS://Bücher.DE:443/a/./B/../%7e%c3%a4 x?Q=%7E&e=#F%2d "
    assert key_text(given_url) == "https://xn--bcher-kva.de/a/~%C3%A4%20x?Q=~&e=#F-"


def test_lowercase_is_document_001_s_trim_and_lowercase_of_the_whole() -> None:
    assert normalized("  HTTPS://Example.com:443/A%2F?B#C ", "lowercase") == "https://example.com:443/a%2f?b#c"
    assert url_key("https://example.com/A", "lowercase") == url_key(" https://EXAMPLE.com/a", "lowercase")
    assert url_key("https://example.com", "lowercase") != url_key("https://example.com/", "lowercase")


def test_keys_of_one_form_are_none_of_the_other() -> None:
    for url in ("https://youtu.be/abc", "https://example.com/"):
        assert normalized(url, "lowercase") == normalized(url, "rfc3986")
        assert url_key(url, "lowercase") != url_key(url, "rfc3986")


def test_the_key_is_the_sha_256_digest_of_the_normal_form() -> None:
    assert url_key("HTTPS://example.com", "rfc3986") == hashlib.sha256(b"https://example.com/").digest()
    assert (
        url_key("https://example.com/Ä", "lowercase")
        == hashlib.sha256("lowercase\nhttps://example.com/ä".encode()).digest()
    )
