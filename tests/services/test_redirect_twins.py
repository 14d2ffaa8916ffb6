"""Byte for byte: a request has the same answer on the fast path and through the application."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refract.runtime.edge import Receive, Scope, Send, answer
from refract.runtime.fast_path import FastPath
from refract.runtime.server import HttpServer
from refract.services.links.domain.codes import RESERVED
from refract.services.links.domain.link import Status
from tests.support.clocks import START
from tests.support.http import Client, fetch, running
from tests.support.redirects import (
    CLOSE,
    LAST,
    RedirectWorld,
    asked,
    converse,
    exchange,
    masked,
    redirects,
    without_rest,
    words,
)
from tests.support.waiting import eventually

__all__ = ["redirects"]

ODD_URLS = {
    "space": "https://example.com/a b",
    "quotes": "https://example.com/?q=\"x\"&r='y'<z>",
    "umlaut": "https://exämple.com/straße?ü=ö#ß",
    "emoji": "https://example.com/\N{ROCKET}?x=\N{ROCKET}",
    "percent": "https://example.com/%zz%41?%%",
    "pipe": "https://example.com/{a|b}\\c",
    "fragment": "https://example.com/?utm_source=a#top",
}
PREFETCH = b"Sec-Purpose: prefetch"
BEYOND = "\N{GREEK SMALL LETTER PI}".encode()


@dataclass
class Twins:
    """Two servers before the same application, the first with the fast path."""

    world: RedirectWorld
    fast: HttpServer
    slow: HttpServer
    codes: dict[str, str]
    fast_path: FastPath | None
    prefixes: tuple[str, ...] = ("/",)

    async def compare(self, sent: bytes, *, answered: bytes = b"", mask: Callable[[bytes], bytes] = bytes) -> bytes:
        """Send the same to both; gives the answer, which begins with what is `answered`."""
        fast, slow = [mask(masked(await exchange(server, sent))) for server in (self.fast, self.slow)]
        assert fast == slow, sent
        assert fast.startswith(answered), sent
        return fast

    async def compare_clicks(self, sent: bytes) -> None:
        """Send the same to both, and compare what they record."""
        recorded = []
        for server in (self.fast, self.slow):
            before = await self.world.clicks()
            await exchange(server, sent)
            recorded.append([words(click) for click in await self.world.clicks(before)])
        assert recorded[0] == recorded[1], sent


async def _codes(world: RedirectWorld) -> dict[str, str]:
    codes = {str(status): await world.link(str(status), redirect_status=status) for status in (301, 302, 307, 308)}
    for name, url in ODD_URLS.items():
        codes[name] = await world.link(name, url)
    for status in (Status.EXPIRED, Status.DISABLED, Status.DELETED):
        codes[status.value] = await world.link(status.value, status=status)
    for seconds in (-10, 0.5, 1, 30, 89, 90, 91, 149, 151, 4000):
        codes[f"in {seconds}"] = await world.link(
            f"in{seconds}".replace(".", "-").replace("--", "-"), expires_at=START + timedelta(seconds=seconds)
        )
    lengths = (1, 2, 50)
    for length in lengths:
        code = world.prefix[:length].ljust(length, "x")
        codes[f"length {length}"] = await world.link("", short_code=code)
    codes["absent"] = world.code("absent")
    return codes


@pytest.fixture(params=["own port", "gateway"])
async def twins(redirects: RedirectWorld, request: pytest.FixtureRequest) -> Twins:
    """Every pair of servers that has to agree, in both modes. At the gateway each counts for itself, up to the same."""
    codes = await _codes(redirects)
    instance = await redirects.instance()
    if request.param == "own port":
        return Twins(redirects, instance.fast, instance.slow, codes, instance.service.fast_path)
    fast = await redirects.gateway(instance, limit=1_000_000)
    slow = await redirects.gateway(instance, limit=1_000_000, with_fast_path=False)
    return Twins(redirects, fast, slow, codes, fast._fast_path, ("/", "/r/"))


EXPECTED = {
    **{str(status): status for status in (301, 302, 307, 308)},
    **dict.fromkeys(ODD_URLS, 301),
    "expired": 410,
    "disabled": 410,
    "deleted": 410,
    "absent": 404,
    "in -10": 410,
    "length 50": 301,
}
HEADERS = (
    (),
    (b"Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8",),
    (b"Accept: application/json",),
    (b"Accept: text/html;q=0, */*",),
    (b"ACCEPT: Text/HTML", b"X-Correlation-ID: trace-1"),
    (b"X-Correlation-ID: a b",),
    (b"X-Correlation-ID: " + b"x" * 129,),
    (b"X-Correlation-ID: \xff",),
    (b"X-Correlation-ID: one", b"X-Correlation-ID: two"),
    (b"Accept: */*", b"Accept: text/html"),
    (b"X-Forwarded-For: 203.0.113.9",),
    (b"User-Agent: a", b"user-agent: b"),
    (b"Connection: keep-alive",),
)


async def test_the_fast_path_needs_no_application(twins: Twins) -> None:
    """Without this the twins could agree because all goes the same way."""

    async def absent(_scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send, 500, b"")

    assert twins.fast_path is not None
    async with running(absent, fast_path=twins.fast_path) as server:
        for prefix in twins.prefixes:
            for name, code in twins.codes.items():
                for method in ("GET", "HEAD"):
                    for tail in ("", "?a=b"):
                        answered = await fetch(server.port, f"{prefix}{code}{tail}", method=method)
                        assert answered.status == EXPECTED.get(name, 301), (prefix, name)
        for names in ("keep-alive", "Close", "close, accept"):
            answered = await fetch(server.port, f"/{twins.codes['302']}", f"Connection: {names}")
            # What a proxy takes away is for the application, and links' own port has no proxy behind it.
            assert answered.status == (500 if twins.prefixes != ("/",) and "," in names else 302), names


async def test_every_kind_of_link(twins: Twins) -> None:
    for prefix in twins.prefixes:
        for name, code in twins.codes.items():
            for _ in range(2):  # found, and then remembered
                for method, *said in (("GET",), ("HEAD",), ("GET", PREFETCH), ("HEAD", PREFETCH)):
                    sent, status = asked(f"{prefix}{code}", *said, method=method) + LAST, EXPECTED.get(name, 301)
                    received = await twins.compare(sent, answered=b"HTTP/1.1 %d " % status)
                    is_unkept = b"\r\ncache-control: no-store\r\n" in received.partition(b"\r\n\r\n")[0]
                    assert is_unkept == (status > 400 or (method == "GET" and bool(said))), (name, method, said)


async def test_headers(twins: Twins) -> None:
    for name in ("301", "absent", "disabled", "in 30"):
        for headers in HEADERS:
            for method in ("GET", "HEAD"):
                await twins.compare(asked(f"{twins.prefixes[-1]}{twins.codes[name]}", *headers, method=method) + LAST)


async def test_a_page_for_who_asks_for_one(twins: Twins) -> None:
    for name, status in (("absent", 404), ("deleted", 410)):
        page = await twins.compare(asked(f"/{twins.codes[name]}", b"Accept: text/html", CLOSE))
        assert page.startswith(b"HTTP/1.1 %d " % status)
        assert b"content-type: text/html" in page
        assert b"</html>" in page


async def test_max_age_shrinks_with_the_life_of_the_link(twins: Twins) -> None:
    for seconds, age in ((0.5, 0), (1, 1), (30, 30), (89, 89), (90, 90), (91, 90), (149, 90), (151, 90), (4000, 90)):
        received = await twins.compare(asked(f"/{twins.codes[f'in {seconds}']}", CLOSE))
        assert b"cache-control: private, max-age=%d\r\n" % age in received, seconds
    for step, passed in ((40, 40), (19, 59), (41, 100)):
        twins.world.clock.advance(step)
        for seconds in (89, 90, 91, 149, 151, 4000):
            received = await twins.compare(asked(f"/{twins.codes[f'in {seconds}']}", CLOSE))
            left = seconds - passed
            expected = b"410 Gone" if left <= 0 else b"max-age=%d\r\n" % min(90, left)
            assert expected in received, (seconds, passed)


async def test_the_same_address_in_odd_spellings(twins: Twins) -> None:
    code = twins.codes["301"]
    encoded = "".join(f"%{ord(character):02x}" for character in code)
    spellings = [
        *(f"{code}?", f"{code}?a=b", f"{code}??", f"{code}?a=b#c", f"{code}?#c", f"{code}#c", f'{code}?"<>\\|'),
        *(f"{code}/", f"{code}//", f"/{code}", f"{code}/x", f"{code};x", f"{code}.", f"./{code}", f"../{code}"),
        *(encoded, encoded.upper(), f"%2F{code}", f"{code}%00", f"{code}%20", f"{code}%", f"{code}%zz", f"{code}%0a"),
        *("", "?", "%", "%20", "-", "--", "a%CF%80b", "%FF", "x" * 51, "x" * 64, "x" * 65, "x" * 2000, "r", "r/", "R"),
        *(code.upper(), f"{code}?" + "q" * 8000),
    ]
    for prefix in twins.prefixes:
        for spelling in spellings:
            for method in ("GET", "HEAD"):
                await twins.compare(asked(prefix + spelling, method=method) + LAST)
    for tail in ("?a=b#c", "?#c", "?", "#c", "?a=%zz", "?a=b&a=c"):
        await twins.compare_clicks(asked(f"/{code}{tail}", CLOSE))
    for target in (f"*{code}", f"http://elsewhere{twins.prefixes[-1]}{code}", f"http://elsewhere/{code}?a=b", "*"):
        await twins.compare(asked(target) + LAST)
    for raw in (BEYOND, code.encode() + BEYOND, code.encode() + b"?" + BEYOND, b"\x80"):
        await twins.compare(asked(b"/" + raw) + LAST, answered=b"HTTP/1.1 400 ")


async def test_reserved_words(twins: Twins) -> None:
    for word in RESERVED - {"metrics", "docs", "ready"}:
        for spelling in (word, word.upper(), word.capitalize()):
            for prefix in twins.prefixes:
                await twins.compare(asked(prefix + spelling) + LAST)


async def test_methods_versions_and_bodies(twins: Twins) -> None:
    for name in ("301", "absent"):
        target = f"{twins.prefixes[-1]}{twins.codes[name]}"
        for method in ("POST", "PUT", "OPTIONS", "DELETE", "PATCH", "TRACE", "PROPFIND"):
            await twins.compare(asked(target, method=method) + LAST)
        for version in ("1.0", "0.9", "2.0", "1.2"):
            await twins.compare(asked(target, version=version))
            await twins.compare(asked(target, b"Connection: keep-alive", version=version))
        await twins.compare(b"GET %b HTTP/1.0\r\n\r\n" % target.encode())
        await twins.compare(b"GET %b HTTP/1.1\r\n\r\n" % target.encode(), answered=b"HTTP/1.1 400")
        for odd in (
            b"Content-Length: 0",
            b"Expect: 100-continue",
            b"Upgrade: websocket",
            b"Connection: Upgrade, close",
        ):
            await twins.compare(asked(target, odd, CLOSE))
        await twins.compare(asked(target, b"Content-Length: 5") + b"hello" + LAST)
        await twins.compare(asked(target, b"Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n" + LAST)
        await twins.compare(asked(target, CLOSE))


@pytest.mark.parametrize("field", [b"accept", b"user-agent", b"referer", b"x-correlation-id", b"purpose"])
async def test_fields_that_connection_names(twins: Twins, field: bytes) -> None:
    """A proxy takes away what `Connection` names: the fast path is as strict."""
    code = twins.codes["disabled" if field == b"accept" else "301"]
    sent = asked(f"/{code}", b"Connection: close, " + field, b"Accept: text/html", b"User-Agent: a", b"Referer: b")
    await twins.compare(sent)
    await twins.compare_clicks(sent)


async def test_a_pipeline_of_both_kinds_keeps_its_order(twins: Twins) -> None:
    found, absent, prefix = twins.codes["302"], twins.codes["absent"], twins.prefixes[-1]
    pipeline = b"".join(
        asked(target, b"X-Correlation-ID: %d" % number, method=method)
        for number, (method, target) in enumerate(
            [
                ("GET", f"{prefix}{found}"),
                ("GET", "/health"),
                ("HEAD", f"{prefix}{found}"),
                ("GET", f"{prefix}{absent}"),
                ("POST", f"{prefix}{found}"),
                ("GET", f"{prefix}{found}?x"),
                ("GET", f"{prefix}{twins.codes['in 30']}"),
                ("HEAD", f"{prefix}{absent}"),
                ("GET", f"{prefix}%7e{found}"),
                ("GET", f"{prefix}{twins.codes['deleted']}"),
            ]
            * 5
        )
    )
    for received in await asyncio.gather(*(twins.compare(pipeline + LAST, mask=without_rest) for _ in range(4))):
        ids = [
            int(line[18:])
            for line in received.split(b"\r\n")
            if line[:18] == b"x-correlation-id: " and line[18:19] < b"a"
        ]
        assert ids == list(range(50))


def _said_again(twins: Twins) -> list[bytes]:
    """A client that says the same again and again, and in between other things."""
    known, other = f"/{twins.codes['302']}", f"{twins.prefixes[-1]}{twins.codes['307']}"
    gone, absent = f"/{twins.codes['disabled']}", f"/{twins.codes['absent']}"
    fields = (b"User-Agent: a", b"Accept: text/html")
    same, prefetched = asked(known, *fields), asked(known, *fields, b"Purpose: prefetch")
    return [
        *(same, same, same, asked(other, *fields), asked(other, *fields), same),
        *(asked(known, b"User-Agent: b"), asked(known, b"User-Agent: b"), same, same),
        *(asked(gone, *fields), asked(gone, *fields), asked(absent, *fields), asked(absent, *fields), same),
        *(
            asked(known, *fields, method="HEAD"),
            same,
            asked(f"{known}?q", *fields),
            same,
            asked(f"*{known[1:]}", *fields),
        ),
        *(prefetched, prefetched, same, asked(f"{known}#", *fields), same, asked(f"/{known}", *fields), same),
        *(asked(known, *fields, b"X-Correlation-ID: one"), asked(known, *fields, b"X-Correlation-ID: two"), same),
        *(same[:3], same[3:], same[:4], same[4:], same[:-1], same[-1:], same[:-30], same[-30:], same, same * 3, same),
        *(asked("/health", *fields), same, asked(other, *fields, b"Connection: keep-alive"), same),
        *(asked(known, *fields, CLOSE), same),
    ]


async def test_what_is_said_again(twins: Twins) -> None:
    parts = _said_again(twins)
    answers, clicks = [], []
    for server in (twins.fast, twins.slow):
        before = await twins.world.clicks()
        answers.append([without_rest(masked(answer)) for answer in await converse(server, parts)])
        clicks.append(sorted((words(click) for click in await twins.world.clicks(before)), key=str))
    for number, (fast, slow) in enumerate(zip(*answers, strict=True)):
        assert fast == slow, number
    for number, (fast_click, slow_click) in enumerate(zip(*clicks, strict=True)):
        assert fast_click == slow_click, number
    assert len(clicks[0]) > 30


@pytest.mark.parametrize("names", [b"keep-alive", b"keep-alive, User-Agent"])
async def test_a_head_that_was_refused_teaches_nothing_that_a_proxy_takes_away(twins: Twins, names: bytes) -> None:
    """The gateway says no to a stranger from the same callback, and the head is learnt from that, too."""
    fields = (b"User-Agent: a", b"Connection: " + names)
    parts = [asked(target, *fields) for target in ("/api/urls", "/api/urls", f"/{twins.codes['302']}")]
    answers, agents = [], []
    for server in (twins.fast, twins.slow):
        before = await twins.world.clicks()
        answers.append([without_rest(masked(answer)) for answer in await converse(server, parts)])
        agents.append([click.user_agent for click in await twins.world.clicks(before)])
    assert answers[0] == answers[1]
    assert answers[0][-1].startswith(b"HTTP/1.1 302")
    is_taken_away = twins.prefixes != ("/",) and names != b"keep-alive"
    assert agents == [[""]] * 2 if is_taken_away else [["a"]] * 2


async def test_a_body_that_looks_like_a_head_teaches_nothing(twins: Twins) -> None:
    known = f"/{twins.codes['302']}"
    body, same = b"GET / HTTP/1.1\r\nX-Pad: 1\r\n", asked(known)
    posted = asked(known, b"Content-Length: %d" % len(body), method="POST")
    for server in (twins.fast, twins.slow):
        async with await Client.connect(server.port) as client:
            await client.send(same)
            assert (await client.answer()).status == 302
            twins.world.guarded.open.clear()  # so that the body is waited for, and comes by itself
            await client.send(same + posted)
            await eventually(lambda: twins.world.guarded.waiting)
            await client.send(body + same)
            await asyncio.sleep(0.02)
            twins.world.guarded.open.set()
            assert [(await client.answer()).status for _ in range(3)] == [302, 405, 302]
            await client.send(b"GET " + known.encode() + (body + same)[5:])
            assert (await client.answer()).status == 400, "a head was taken that the parser does not take"


_NAMES = st.sampled_from(
    (
        *(
            b"Accept",
            b"User-Agent",
            b"Referer",
            b"Accept-Language",
            b"X-Correlation-ID",
            b"X-Forwarded-For",
            b"Purpose",
        ),
        *(
            b"Sec-Purpose",
            b"X-Moz",
            b"Cookie",
            b"Range",
            b"If-None-Match",
            b"Origin",
            b"TE",
            b"Connection",
            b"X_User_Id",
        ),
    )
)
_VALUES = st.one_of(
    st.sampled_from(
        [b"text/html", b"*/*", b"prefetch", b"trace-1", b"203.0.113.9, 10.0.0.1", b"keep-alive", b"de", b""]
    ),
    st.binary(max_size=40).map(lambda value: bytes(byte for byte in value if byte >= 32 and byte != 127)),
)
_TAILS = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
async def test_whatever_is_sent(twins: Twins, data: st.DataObject) -> None:
    code = data.draw(st.sampled_from(["301", "308", "absent", "disabled", "in 30", "umlaut", "length 1"]))
    target = data.draw(st.sampled_from(twins.prefixes)) + data.draw(st.sampled_from(["", twins.codes[code]]))
    target += data.draw(st.sampled_from(["", "?", "/", "#", "%"])) + data.draw(_TAILS)
    headers = data.draw(st.lists(st.tuples(_NAMES, _VALUES), max_size=5))
    method = data.draw(st.sampled_from(["GET", "GET", "GET", "HEAD", "POST", "OPTIONS"]))
    sent = asked(target, *(b"%b: %b" % field for field in headers), CLOSE, method=method)
    await twins.compare(sent)
    await twins.compare_clicks(sent)
