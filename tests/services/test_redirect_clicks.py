"""Clicks of redirects: one for each that was answered, the same on both paths, and no address that can be told."""

import asyncio
import hashlib
import re
from collections.abc import Iterable
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest

from refract.kernel.ids import new_event_id
from refract.runtime.client_address import Network
from refract.runtime.ports import Database
from refract.runtime.server import HttpServer
from refract.runtime.statements import Statement
from refract.services.links.api import UrlClicked
from refract.services.links.domain.link import Status
from tests.support.clocks import START
from tests.support.http import Client, fetch, head
from tests.support.links import ALICE, BOB
from tests.support.redirects import CLOSE, LAST, SALT, Instance, RedirectWorld, asked, exchange, redirects, words
from tests.support.waiting import eventually

__all__ = ["redirects"]

TRUSTED = (ip_network("127.0.0.1/32"), ip_network("10.0.0.0/8"))
TABLES = Statement(
    "tables",
    "Lists the tables.",
    "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public'",
    sqlite="SELECT name FROM sqlite_master WHERE type = 'table'",
)


async def click_of(world: RedirectWorld, server: HttpServer, sent: bytes) -> UrlClicked:
    """The one click that a request makes."""
    before = await world.clicks()
    answer = await exchange(server, sent)
    assert answer.startswith(b"HTTP/1.1 30"), answer
    [click] = await world.clicks(before)
    return click


async def both(world: RedirectWorld, instance: Instance, sent: bytes) -> UrlClicked:
    """The click that a request makes on either path, the first of them for the second time."""
    await exchange(instance.fast, sent)  # from here on the link is remembered
    fast = await click_of(world, instance.fast, sent)
    slow = await click_of(world, instance.slow, sent)
    assert words(fast) == words(slow), sent
    return fast


async def every_text(database: Database) -> str:
    """All that lies in the database."""
    texts = []
    for row in await database.fetch(TABLES):
        name = row["name"]
        table = Statement(f"table_{name}", "Reads a table.", f'SELECT * FROM "{name}"')
        texts.append(str([dict(one) for one in await database.fetch(table)]))
    return "".join(texts)


def hash_of(address: str) -> str:
    return hashlib.sha256(f"{address}{SALT}".encode()).hexdigest()


async def test_one_click_for_each_answer_with_all_its_fields(redirects: RedirectWorld) -> None:
    code = await redirects.link("full", owner=BOB)
    instance = await redirects.instance()
    sent = asked(
        f"/{code}?utm_source=a&b=%20",
        *(b"User-Agent: Mozilla/5.0 (X11)", b"Referer: https://news.example/?q=1", b"Accept-Language: de-DE,de;q=0.9"),
        *(b"X-Correlation-ID: trace-7", CLOSE),
    )
    redirects.clock.advance(12.345678)
    click = await both(redirects, instance, sent)
    assert click == UrlClicked(
        occurred_at=START + timedelta(milliseconds=12_345),
        event_id=click.event_id,
        correlation_id="trace-7",
        short_code=code,
        user_id=BOB.user_id,
        user_email=BOB.email,
        ip_hash=hash_of("127.0.0.1"),
        ip_anonymized="127.0.0.0",
        user_agent="Mozilla/5.0 (X11)",
        referer="https://news.example/?q=1",
        query="utm_source=a&b=%20",
        accept_language="de-DE,de;q=0.9",
    )
    redirects.clock.advance(0.001)
    assert (await both(redirects, instance, sent)).occurred_at == START + timedelta(milliseconds=12_346)
    assert len({one.event_id for one in await redirects.clicks()}) == 6


async def test_every_redirect_counts_and_its_answer_names_the_click(redirects: RedirectWorld) -> None:
    codes = {status: await redirects.link(f"to-{status}", redirect_status=status) for status in (301, 302, 307, 308)}
    instance = await redirects.instance()
    for status, code in codes.items():
        for server in (instance.fast, instance.fast, instance.slow):
            before = await redirects.clicks()
            answer = await fetch(server.port, f"/{code}")
            assert answer.status == status
            [click] = await redirects.clicks(before)
            assert (click.short_code, click.correlation_id) == (code, answer.headers["x-correlation-id"])
    assert len(await redirects.clicks()) == 12


async def test_what_is_no_click(redirects: RedirectWorld) -> None:
    code = await redirects.link("quiet")
    gone = [await redirects.link(status.value, status=status) for status in Status if status is not Status.ACTIVE]
    over = await redirects.link("over", expires_at=START - timedelta(seconds=1))
    instance = await redirects.instance()
    limited = await redirects.gateway(instance, limit=1)
    headers = [
        f"{name}: {value}"
        for name in ("Purpose", "Sec-Purpose", "X-Purpose", "X-Moz")
        for value in ("prefetch", "Prefetch;prerender", "preview")
    ]
    for server in (instance.fast, instance.slow, instance.fast):
        for header in headers:
            ahead = await fetch(server.port, f"/{code}", header)
            # Or the browser would follow what it has kept when somebody clicks, and that click would be nobody's.
            assert (ahead.status, ahead.headers["cache-control"]) == (301, "no-store"), header
            asked_for_head = await fetch(server.port, f"/{code}", header, method="HEAD")
            assert asked_for_head.headers["cache-control"] == "private, max-age=90", header
        assert (await fetch(server.port, f"/{code}", method="HEAD")).status == 301
        assert (await fetch(server.port, f"/{redirects.code('absent')}")).status == 404
        assert (await fetch(server.port, f"/{code}", method="POST")).status == 405
        assert [(await fetch(server.port, f"/{other}")).status for other in (*gone, over)] == [410] * 4
    assert (await fetch(limited.port, f"/{code}", method="HEAD")).status == 301
    assert [(await fetch(limited.port, f"{path}{code}")).status for path in ("/", "/r/", "/%2d")] == [429] * 3
    assert await redirects.clicks() == []
    clicked = await fetch(instance.fast.port, f"/{code}", "Purpose: something else")
    assert (clicked.status, clicked.headers["cache-control"]) == (301, "private, max-age=90")
    assert len(await redirects.clicks()) == 1


ROCKET = "\N{ROCKET}".encode()
ODD = {
    "quotes": (b"\"\\'</script>{}", "\"\\'</script>{}"),
    "tab": (b"a\tb", "a\tb"),
    "no UTF-8": (b"a\xff\xfe\x80b", "a\ufffd\ufffd\ufffdb"),
    "half a character": (ROCKET[:2] + b"x", "\ufffdx"),
    "emoji": (ROCKET * 3, "\N{ROCKET}" * 3),
    "a surrogate": (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
    "separators": ("\u2028\u2029\x85".encode(), "\u2028\u2029\x85"),
    "escapes": (b"\\u0000 \\n %00 \\", "\\u0000 \\n %00 \\"),
}


async def test_odd_characters(redirects: RedirectWorld) -> None:
    code = await redirects.link("odd")
    instance = await redirects.instance()
    for kind, (raw, text) in ODD.items():
        sent = asked(f"/{code}", b"User-Agent: " + raw, b"Referer: " + raw, b"Accept-Language: " + raw, CLOSE)
        click = await both(redirects, instance, sent)
        assert (click.user_agent, click.referer, click.accept_language) == (text, text, text), kind
    for refused in (b"a\0b", b"a\x01b", b"a\x7fb"):  # by the parser, so that it is nobody's click
        for server in (instance.fast, instance.slow):
            assert (await exchange(server, asked(f"/{code}", b"User-Agent: " + refused))).startswith(b"HTTP/1.1 400")
    assert len(await redirects.clicks()) == 3 * len(ODD)


async def test_lengths_are_cut_and_nothing_is_left_out(redirects: RedirectWorld) -> None:
    code = await redirects.link("long")
    instance = await redirects.instance()
    for letter in (b"x", ROCKET):
        for name in (b"User-Agent", b"Referer", b"Accept-Language"):
            click = await both(redirects, instance, asked(f"/{code}", name + b": " + letter * 3_900, CLOSE))
            lengths = len(click.user_agent), len(click.referer), len(click.accept_language)
            assert lengths in {(512, 0, 0), (0, 2048, 0), (0, 0, 128)}, name
    longest = asked(f"/{code}", b"User-Agent: " + b"x" * (16 * 1024 - 100), CLOSE)
    assert len((await both(redirects, instance, longest)).user_agent) == 512
    query = await both(redirects, instance, asked(f"/{code}?{'q' * 8000}", CLOSE))
    assert query.query == "q" * 1024
    plain = await both(redirects, instance, asked(f"/{code}?", CLOSE))
    assert (plain.user_agent, plain.referer, plain.query, plain.accept_language) == ("", "", "", "")


FORWARDED = {
    "203.0.113.77": "203.0.113.77",
    "198.51.100.1, 203.0.113.77, 10.1.2.3": "203.0.113.77",
    "2001:db8:1:2:3:4:5:6": "2001:db8:1:2:3:4:5:6",
    "::ffff:203.0.113.77": "203.0.113.77",
    "nonsense": "127.0.0.1",
    "": "127.0.0.1",
}
ANONYMOUS = {"127.0.0.1": "127.0.0.0", "203.0.113.77": "203.0.113.0", "2001:db8:1:2:3:4:5:6": "2001:db8:1::"}


@pytest.mark.parametrize("trusted", [TRUSTED, ()])
async def test_only_a_trusted_proxy_says_who_comes(redirects: RedirectWorld, trusted: tuple[Network, ...]) -> None:
    code = await redirects.link("behind")
    instance = await redirects.instance(trusted=trusted)
    for forwarded, believed in FORWARDED.items():
        expected = believed if trusted else "127.0.0.1"
        click = await both(redirects, instance, asked(f"/{code}", b"X-Forwarded-For: " + forwarded.encode(), CLOSE))
        assert (click.ip_hash, click.ip_anonymized) == (hash_of(expected), ANONYMOUS[expected]), forwarded
        other = await both(redirects, instance, asked(f"/{code}", CLOSE))
        assert other.ip_hash == hash_of("127.0.0.1"), "what a proxy said of one request was kept for the next"


async def test_the_gateway_and_links_see_the_same_visitor(redirects: RedirectWorld) -> None:
    code = await redirects.link("seen")
    instance = await redirects.instance(trusted=TRUSTED)
    seen = []
    for with_fast_path in (True, False):
        gateway = await redirects.gateway(instance, limit=100, trusted=TRUSTED, with_fast_path=with_fast_path)
        sent = asked(f"/r/{code}", b"X-Forwarded-For: 203.0.113.77", b"X-Correlation-ID: t", CLOSE)
        seen.append(words(await click_of(redirects, gateway, sent)))
    assert seen[0] == seen[1]
    assert seen[0]["ip_hash"] == hash_of("203.0.113.77")


def files_beside(location: Path) -> Iterable[Path]:
    """The files of a database: itself, its log, and its spools."""
    return (path for path in location.parent.rglob("*") if path.is_file())


async def test_a_click_that_the_gateway_has_named_is_one_however_often_it_is_asked_for(
    redirects: RedirectWorld,
) -> None:
    codes = [await redirects.link(name) for name in ("known", "cold", "colder")]
    instance = await redirects.instance(trusted=TRUSTED)
    await fetch(instance.fast.port, f"/{codes[0]}")
    before, names = await redirects.clicks(), []
    for code, server in zip(codes, (instance.fast, instance.fast, instance.slow), strict=True):
        names.append(new_event_id())
        for _ in range(2):
            # The same head twice on one connection, as if it could be remembered; and in the end on another one.
            sent = asked(f"/{code}", f"X-Click-ID: {names[-1]}".encode())
            await exchange(server, sent * 2 + LAST)
    found = [click.event_id for click in await redirects.clicks(before)]
    assert sorted(found) == sorted(names * 4)


@pytest.mark.parametrize(
    "name", [b"", b"mine", b"0" * 36, b"0199C0DE-0000-7000-8000-000000000000", b'"' * 36, b"\xff" * 36]
)
async def test_what_is_no_name_of_a_click_is_none(redirects: RedirectWorld, name: bytes) -> None:
    code = await redirects.link("odd-name")
    instance = await redirects.instance(trusted=TRUSTED)
    for server in (instance.fast, instance.fast, instance.slow):
        click = await click_of(redirects, server, asked(f"/{code}", b"X-Click-ID: " + name, CLOSE))
        assert re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", click.event_id)
        assert click.event_id.encode() != name


async def test_nobody_else_names_clicks(redirects: RedirectWorld) -> None:
    """Or clicks could be made to be one, and not be counted."""
    code = await redirects.link("unnamed")
    near, far = await redirects.instance(trusted=TRUSTED), await redirects.instance()
    doors = [await redirects.gateway(near, trusted=TRUSTED, with_fast_path=fast) for fast in (True, False)]
    name = new_event_id()
    sent = asked(f"/{code}", f"X-Click-ID: {name}".encode())
    for server in (far.fast, far.slow, *doors):
        before = await redirects.clicks()
        await exchange(server, sent * 3 + LAST)
        assert len({click.event_id for click in await redirects.clicks(before)} - {name}) == 3


async def test_no_address_lies_anywhere(redirects: RedirectWorld) -> None:
    address = "203.0.113.77"
    code = await redirects.link("private")
    instance = await redirects.instance(trusted=TRUSTED)
    sent = asked(f"/{code}", f"X-Forwarded-For: {address}".encode(), CLOSE)
    await both(redirects, instance, sent)
    texts = await every_text(redirects.database)
    assert hash_of(address) in texts, "the search does not look where clicks lie"
    assert address not in texts
    assert "127.0.0.1" not in texts
    if isinstance(redirects.location, Path):
        stored = b"".join(path.read_bytes() for path in files_beside(redirects.location))
        assert hash_of(address).encode() in stored
        assert address.encode() not in stored


async def test_many_at_once_are_as_many_clicks(redirects: RedirectWorld) -> None:
    codes = [await redirects.link(f"many-{number}") for number in range(5)]
    instance = await redirects.instance()

    async def follow(server: HttpServer, number: int) -> int:
        async with await Client.connect(server.port) as client:
            answers = [await client.get(f"/{codes[(number + turn) % 5]}") for turn in range(20)]
            return sum(answer.status == 301 for answer in answers)

    followed = await asyncio.gather(*(follow(instance.slow if n % 4 == 0 else instance.fast, n) for n in range(12)))
    clicks = await redirects.clicks()
    assert sum(followed) == len(clicks) == 240
    assert len({click.event_id for click in clicks}) == 240
    assert all(click.user_id == ALICE.user_id for click in clicks)


# Durability


async def test_no_byte_leaves_before_the_commit(redirects: RedirectWorld) -> None:
    code = await redirects.link("safe")
    instance = await redirects.instance()
    await fetch(instance.fast.port, f"/{code}")
    for server in (instance.fast, instance.slow):
        redirects.guarded.open.clear()
        async with await Client.connect(server.port) as client:
            await client.send(head("GET", f"/{code}") + head("HEAD", f"/{code}") + head("GET", "/health"))
            await eventually(lambda: redirects.guarded.waiting)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.reader.read(1)
            redirects.guarded.open.set()
            statuses = [(await client.answer(to_head=number == 1)).status for number in range(3)]
            assert statuses == [301, 301, 200]
    assert len(await redirects.clicks()) == 3


async def test_async_answers_at_once(redirects: RedirectWorld) -> None:
    code = await redirects.link("soon")
    instance = await redirects.instance(durability="async")
    redirects.guarded.open.clear()
    for server in (instance.fast, instance.fast, instance.slow):
        assert (await fetch(server.port, f"/{code}")).status == 301
    assert await redirects.clicks() == []
    redirects.guarded.open.set()
    await eventually(lambda: _counted(redirects, 3))


async def _counted(world: RedirectWorld, number: int) -> bool:
    return len(await world.clicks()) == number


async def test_who_leaves_before_the_answer_has_clicked_all_the_same(redirects: RedirectWorld) -> None:
    code = await redirects.link("left")
    instance = await redirects.instance()
    redirects.guarded.open.clear()
    async with await Client.connect(instance.fast.port) as client:
        await client.send(head("GET", f"/{code}"))
        await eventually(lambda: redirects.guarded.waiting)
    redirects.guarded.open.set()
    await eventually(lambda: _counted(redirects, 1))
