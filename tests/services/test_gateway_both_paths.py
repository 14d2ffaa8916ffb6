"""Both ways through the proxying gateway say the same to both sides, to the byte, and count and log the same."""

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from ipaddress import ip_network
from typing import Any

import pytest

from tests.support.both_paths import CUT, GET, OK, PAUSE, Bare, Piece, Side, Ways, asked, masked, settled, side
from tests.support.fronts import authorization, signed
from tests.support.http import head

AGAIN = 3
"""Each request is sent so often on one connection: parsed, and then known by its head."""

OKAY = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OKAY + b"Transfer-Encoding: chunked\r\n\r\n"
TWO = b"Content-Length: 2\r\n\r\nok"
ALL_FAST = (3, 0, 0)
UNWELL = (3, 3, 0)

# name, request, how it goes on the fast path: taken, handed over, not taken
REQUESTS: list[tuple[str, bytes, tuple[int, int, int]]] = [
    ("plain", GET, (3, 0, 0)),
    ("bare", head("GET", "/abc"), (3, 0, 0)),
    ("head", head("HEAD", "/r/abc"), (3, 0, 0)),
    ("query", head("GET", "/r/abc?a=1&b=%2F&c=%C3%A9&d=(~)?e"), (3, 0, 0)),
    ("empty query", head("GET", "/r/abc?"), (3, 0, 0)),
    ("odd query", head("GET", '/r/abc?d="|'), (0, 0, 3)),
    ("encoded", head("GET", "/r/a%2Db"), (0, 0, 3)),
    ("no row", head("GET", "/api/nothing/here"), (0, 0, 3)),
    ("no method", head("PUT", "/api/urls"), (0, 0, 3)),
    ("a change", head("DELETE", "/api/urls/abc", authorization()), (0, 0, 3)),
    ("a stream", head("GET", "/api/stats/abc/live", authorization()), (0, 0, 3)),
    ("a body", head("GET", "/r/abc", "Content-Length: 3") + b"abc", (0, 0, 3)),
    ("an empty body", head("GET", "/r/abc", "Content-Length: 0"), (0, 0, 3)),
    ("expects", head("GET", "/r/abc", "Expect: something"), (0, 0, 3)),
    ("upgrade", head("GET", "/r/abc", "Connection: upgrade", "Upgrade: websocket"), (0, 0, 1)),
    ("closes", head("GET", "/r/abc", "Connection: close"), (0, 0, 1)),
    ("keeps", head("GET", "/r/abc", "Connection: keep-alive"), (3, 0, 0)),
    ("http 1.0", GET.replace(b"HTTP/1.1", b"HTTP/1.0"), (0, 0, 1)),
    ("drops", head("GET", "/r/abc", "X-Mine: 1", "X-Other: 2", "Connection: x-mine, keep-alive"), (3, 0, 0)),
    ("hops", head("GET", "/r/abc", "TE: trailers", "Keep-Alive: 5", "Proxy-Authorization: x", "Trailer: y"), (3, 0, 0)),
    (
        "pretends",
        head(
            "GET",
            "/r/abc",
            "X-User-ID: 1",
            "X_User-Email: a@b",
            "X-User.Role: administrator",
            "Forwarded: for=1.2.3.4",
            "X-Forwarded-For: 1.2.3.4",
            "X_Forwarded_Proto: https",
            "X-Forwarded-Host: evil",
            "X-Real-IP: 1.2.3.4",
            "x-real_ip: 5.6.7.8",
        ),
        (3, 0, 0),
    ),
    (
        "trusted",
        head("GET", "/r/abc", "X-Forwarded-For: 203.0.113.9", "X-Forwarded-Proto: https", "X-Forwarded-Host: e.com"),
        ALL_FAST,
    ),
    ("odd bytes", head("GET", "/r/abc", "X-Odd: \xe9\xff", "X-Empty:", "X-Two: 1", "X-Two: 2"), (3, 0, 0)),
    ("its id", head("GET", "/r/abc", "X-Correlation-ID: mine-1"), (3, 0, 0)),
    ("two ids", head("GET", "/r/abc", "X-Correlation-ID: one", "X-Correlation-ID: two"), (3, 0, 0)),
    ("no id", head("GET", "/r/abc", "X-Correlation-ID: not/mine"), (3, 0, 0)),
    ("foreign id", head("GET", "/r/abc", "X_Correlation_ID: two"), (3, 0, 0)),
    ("stranger", head("GET", "/api/urls"), (0, 0, 0)),
    ("token", head("GET", "/api/urls/abc", authorization()), (2, 0, 1)),
    ("token where none is looked at", head("GET", "/r/abc", authorization()), (3, 0, 0)),
    ("session", head("GET", "/api/urls", f"Cookie: a=1; refract_session={signed()}; b=2"), (2, 0, 1)),
    ("session only", head("GET", "/api/me", f"Cookie: refract_session={signed()}"), (2, 0, 1)),
    ("another's session", head("GET", "/api/me", f"Cookie: refract_session={signed()}", "Origin: http://x"), (2, 0, 1)),
    ("no session", head("GET", "/api/me", "Cookie: refract_session=nonsense"), (0, 0, 3)),
    ("two sessions", head("GET", "/api/me", f"Cookie: refract_session={signed()}; refract_session=b"), (0, 0, 3)),
    ("forged", head("GET", "/api/urls", f"{authorization()[:-4]}AAAA"), (0, 0, 3)),
    ("scheme", head("GET", "/api/urls", "Authorization: Basic x"), (0, 0, 3)),
    ("named token", head("GET", "/api/urls", authorization(), "Connection: authorization, keep-alive"), (2, 0, 1)),
    ("optional", head("GET", "/api/stats/abc"), (2, 0, 1)),
    ("optional token", head("GET", "/api/stats/abc", authorization()), (2, 0, 1)),
    ("optional forged", head("GET", "/api/stats/abc", "Authorization: Bearer x"), (0, 0, 3)),
    ("odd user", head("GET", "/api/urls", authorization(signed("u\r\nX-User-ID: 1", "é@b"))), (2, 0, 1)),
    ("no printable user", head("GET", "/api/urls", authorization(signed("u-1", "a\x00b"))), (2, 0, 1)),
]

# name, what the service says, request, how it goes
ANSWERS: list[tuple[str, Sequence[Piece], bytes, tuple[int, int, int]]] = [
    ("empty", [OKAY + b"Content-Length: 0\r\n\r\n"], GET, ALL_FAST),
    (
        "chunked",
        [CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"],
        GET,
        ALL_FAST,
    ),
    ("chunked, nothing", [CHUNKED + b"0\r\n\r\n"], GET, ALL_FAST),
    (
        "trailers",
        [CHUNKED + b"1\r\na\r\n0\r\nX-T: 1\r\n\r\n"],
        GET,
        ALL_FAST,
    ),
    ("none", [b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"], GET, ALL_FAST),
    ("none, with a length", [b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"], GET, ALL_FAST),
    ("not modified", [b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\nContent-Length: 5\r\n\r\n'], GET, ALL_FAST),
    (
        "redirect",
        [b"HTTP/1.1 302 Found\r\nLocation: https://e.com/?a=\xc3\xa9\r\nContent-Length: 0\r\n\r\n"],
        GET,
        ALL_FAST,
    ),
    ("not found", [b"HTTP/1.1 404 Nope\r\nContent-Length: 2\r\n\r\n{}"], GET, ALL_FAST),
    ("teapot", [b"HTTP/1.1 418 I am\r\nContent-Length: 2\r\n\r\n{}"], GET, ALL_FAST),
    ("nameless", [b"HTTP/1.1 299 Odd\r\nContent-Length: 2\r\n\r\n{}"], GET, ALL_FAST),
    (
        "cookies",
        [OKAY + b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 2\r\n\r\nok"],
        GET,
        ALL_FAST,
    ),
    (
        "ours",
        [
            OKAY + b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nX-Correlation-ID: theirs\r\nServer: x\r\n",
            b"X-Content-Type-Options: sniff\r\nX_Correlation_ID: odd\r\nKeep-Alive: 5\r\n" + TWO,
        ],
        GET,
        ALL_FAST,
    ),
    ("kept", [OKAY + b"Connection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok"], GET, ALL_FAST),
    ("to head", [OKAY + b"Content-Length: 7\r\n\r\n"], head("HEAD", "/r/abc"), ALL_FAST),
    ("to head, chunked", [CHUNKED], head("HEAD", "/r/abc"), ALL_FAST),
    ("to head, none", [OKAY + b"X-A: 1\r\n\r\n"], head("HEAD", "/r/abc"), ALL_FAST),
    ("interim", [b"HTTP/1.1 103 Hints\r\nX-Not: this\r\n\r\n", PAUSE, OK], GET, ALL_FAST),
    ("head in pieces", [OKAY + b"Conte", PAUSE, b"nt-Length: 2\r\n\r\nok"], GET, ALL_FAST),
    ("drops", [OKAY + b"X-A: 1\r\nConnection: x-a\r\nContent-Length: 2\r\n\r\nok"], GET, UNWELL),
    ("body later", [OKAY + b"Content-Length: 4\r\n\r\n", PAUSE, b"abcd"], GET, UNWELL),
    ("body in pieces", [OKAY + b"Content-Length: 4\r\n\r\nab", PAUSE, b"cd"], GET, UNWELL),
    (
        "chunks in pieces",
        [
            CHUNKED + b"2\r\nab\r\n",
            PAUSE,
            b"2\r\ncd\r\n",
            PAUSE,
            b"0\r\n\r\n",
        ],
        GET,
        UNWELL,
    ),
    ("large", [OKAY + b"Content-Length: 3000000\r\n\r\n", b"0123456789" * 300_000], GET, UNWELL),
    ("trouble", [b"HTTP/1.1 500 Oops\r\nX-A: 1\r\nContent-Length: 2\r\n\r\n{}"], GET, UNWELL),
    ("overload", [b"HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}"], GET, UNWELL),
    ("no status", [b"HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\nab"], GET, (1, 1, 2)),
    ("another protocol", [b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"], GET, (1, 1, 2)),
    ("unwritable", [OKAY + b"X-Odd: a\x01b\r\nContent-Length: 2\r\n\r\nab"], GET, (1, 1, 2)),
    (
        "unwritable, ours",
        [OKAY + b"X-Correlation-ID: a\x01b\r\nContent-Length: 2\r\n\r\nab"],
        GET,
        (1, 1, 2),
    ),
    ("deletes", [OKAY + b"X-Odd: a\x7fb\r\n" + TWO], GET, (1, 1, 2)),
    ("unnamable", [OKAY + b"X(Odd): a\r\nContent-Length: 2\r\n\r\nab"], GET, (1, 1, 2)),
    ("two lengths", [OKAY + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nab"], GET, (1, 1, 2)),
    ("coding", [OKAY + b"Transfer-Encoding: gzip\r\n\r\nab"], GET, (1, 1, 2)),
    ("no http", [b"hello\r\n\r\n"], GET, (1, 1, 2)),
    ("says nothing", [CUT], GET, (1, 1, 2)),
    ("half a head", [OKAY + b"Cont", PAUSE, CUT], GET, (1, 1, 2)),
    ("breaks off", [OKAY + b"Content-Length: 9\r\n\r\nab", PAUSE, CUT], GET, (1, 1, 0)),
    (
        "breaks off in chunks",
        [CHUNKED + b"2\r\nab\r\n", PAUSE, CUT],
        GET,
        (1, 1, 0),
    ),
    ("ends with its connection", [OKAY + b"X-A: 1\r\n\r\nab", PAUSE, CUT], GET, (1, 1, 2)),
]


async def compared(
    bares: tuple[Bare, Bare], requests: Sequence[bytes], caplog: pytest.LogCaptureFixture, **options: Any
) -> list[bytes]:
    """Send the requests to both: what the client got. Whatever differs is a failure."""
    sides: list[Side] = []
    seen: list[tuple[list[bytes], ...]] = []
    logged: list[list[tuple[str, str]]] = []
    async with AsyncExitStack() as stack:
        for bare, fast in zip(bares, (True, False), strict=True):
            place = await stack.enter_async_context(side(bare, fast=fast, **options))
            await place.warm_up()
            caplog.clear()
            answers = await asked(place, *requests)
            await settled(place, 1 + len(answers))
            sides.append(place)
            seen.append((answers, [masked(each) for each in bare.heads]))
            logged.append(sorted((line.levelname, line.getMessage()) for line in caplog.records))
    assert seen[0] == seen[1]
    assert logged[0] == logged[1]
    assert sides[0].counted() == sides[1].counted()
    assert sides[0].results() == sides[1].results()
    return seen[0][0]


@pytest.mark.parametrize(("name", "request_", "ways"), REQUESTS, ids=[each[0] for each in REQUESTS])
async def test_requests_are_passed_on_in_the_same_words(
    name: str,
    request_: bytes,
    ways: tuple[int, int, int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "refract")
    watched = Ways(monkeypatch)
    trusted = [ip_network("127.0.0.0/8")] if name.startswith("trusted") else []
    answers = await compared((Bare(), Bare()), [request_] * AGAIN, caplog, trusted_proxies=trusted)
    assert watched.seen == (ways[0], ways[1], 2 + ways[2] + len(answers))  # warming up, and the other side


@pytest.mark.parametrize(("name", "pieces", "request_", "ways"), ANSWERS, ids=[each[0] for each in ANSWERS])
async def test_answers_are_passed_on_in_the_same_words(
    name: str,
    pieces: Sequence[Piece],
    request_: bytes,
    ways: tuple[int, int, int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "refract")
    watched = Ways(monkeypatch)
    answers = await compared((Bare(*pieces), Bare(*pieces)), [request_] * AGAIN, caplog)
    assert len(answers) == (1 if name.startswith("breaks off") else AGAIN)
    assert watched.seen == (ways[0], ways[1], 2 + ways[2] + len(answers))
