"""Bad destinations leave no trace, and neither does the address of anybody who comes."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from redis.asyncio import Redis

from tests.support.commands import Running
from tests.support.http import Client
from tests.support.instances import DistributedInstance, EmbeddedInstance, Instance, servers, started
from tests.support.servers.places import free_port

__all__ = ["servers"]

SCHEME = "url scheme must be http or https"
SHAPE = "url must include scheme and host"
CONTROLS = "url must not contain control characters"
OWN = "url must not lead to a short domain of this service"
CREDENTIALS = "url must not contain credentials"
HOST = "url has a host or port that is not valid"

BAD = {
    "": "url is required",
    " \t ": "url is required",
    "javascript:alert(1)": SCHEME,
    "JaVaScRiPt://example.com/%0aalert(1)": SCHEME,
    " javascript:alert(1)": SCHEME,
    "data:text/html,<script>alert(1)</script>": SCHEME,
    "file:///etc/passwd": SCHEME,
    "ftp://example.com/": SCHEME,
    "vbscript:msgbox(1)": SCHEME,
    "//example.com/": SHAPE,
    "example.com": SHAPE,
    "http:example.com": SHAPE,
    "http:///example.com": SHAPE,
    "https://": SHAPE,
    "https://example.com/\r\nSet-Cookie: a=b": CONTROLS,
    "https://example.com/\n": CONTROLS,
    "\thttps://example.com/": CONTROLS,
    "java\nscript:alert(1)": CONTROLS,
    "https://example.com/\0": CONTROLS,
    "https://example.com/\u202egpj.exe": CONTROLS,
    "https://user:secret@example.com/": CREDENTIALS,
    "https://user@example.com/": CREDENTIALS,
    "https://@example.com/": CREDENTIALS,
    "https://example.com\\@evil.example/": "url must not have a backslash in its host",
    "https://exa mple.com/": HOST,
    "https://example.com:99999/": HOST,
    "https://[::1/": HOST,
    f"https://example.com/{'a' * 2_029}": "url must be at most 2048 characters",
    "https://sho.rt/abc": OWN,
    "http://SHO.RT./abc": OWN,
    "https://sho.rt:443/abc": OWN,
    "https://\uff53\uff48\uff4f.\uff52\uff54/abc": OWN,  # the same in letters of full width
    "https://sh%6f.rt/abc": OWN,
}
ROWS = "SELECT (SELECT count(*) FROM links), (SELECT count(*) FROM outbox), (SELECT count(*) FROM idempotency_keys)"


@pytest.fixture
async def instance(servers: dict[str, str] | None, tmp_path: Path) -> AsyncIterator[Instance]:
    """Links with a short domain, all of whose requests are logged."""
    settings = {"SHORT_DOMAINS": "sho.rt", "REDIRECT_LOG_SAMPLE": "1", "LOG_LEVEL": "debug"}
    if servers is None:
        settings["METRICS_ADDR"] = f"127.0.0.1:{free_port()}"
    async with started(tmp_path, servers, **settings) as instance:
        yield instance


async def test_bad_destinations_are_refused_with_the_reason_and_leave_nothing_behind(instance: Instance) -> None:
    bad = BAD | {f"http://127.0.0.1:{instance.port}/abc": OWN, f"http://2130706433:{instance.port}/abc": OWN}
    said: dict[str, Any] = {}
    for number, url in enumerate(bad):
        body: dict[str, Any] = {"url": url}
        keyed = [f"Idempotency-Key: {number}"] if number % 2 else []
        answer = await instance.call("POST", "/shorten", body, *keyed)
        said[url] = answer.status, answer.json["error"]
    assert said == {url: (400, reason) for url, reason in bad.items()}
    report = await instance.call("POST", "/shorten/bulk", {"urls": list(bad)})
    expected = [{"row": row, "status": 400, "error": reason} for row, reason in enumerate(bad.values(), 1)]
    assert report.json["results"] == expected
    assert [tuple(row) for row in await instance.fetch(ROWS)] == [(0, 0, 0)]


async def test_a_link_cannot_be_turned_to_a_bad_destination(instance: Instance) -> None:
    [(code, url)] = (await instance.make_links(1)).items()
    before = [tuple(row) for row in await instance.fetch(ROWS)]
    for bad, reason in BAD.items():
        answer = await instance.call("PATCH", f"/urls/{code}", {"url": bad})
        assert (answer.status, answer.json["error"]) == (400, reason), bad
    assert (await instance.call("GET", f"/urls/{code}")).json["original_url"] == url
    assert [tuple(row) for row in await instance.fetch(ROWS)] == before


# Addresses

_SOME, _MORE = random.SystemRandom().sample(range(16, 250), 2)
ADDRESSES = {
    f"198.18.{_SOME}.{_MORE}": f"198.18.{_SOME}.0",
    f"2001:db8:5e{_SOME:02x}:ca{_MORE:02x}::77": f"2001:db8:5e{_SOME:02x}::",
}
"""Distinctive ones, and what may be kept of them. Others write into the same Redis, and have addresses of their own."""


async def visit(instance: Instance, address: str) -> None:
    """Do all that can be done at an instance in the name of an address, rightly and wrongly."""
    from_there = f"X-Forwarded-For: {address}"
    answer = await instance.call("POST", "/shorten", {"url": "https://example.com/", "force_new": True}, from_there)
    code = answer.json["short_code"]
    wishes: list[Any] = [{"url": "nowhere"}, {"url": "https://example.com/", "custom_code": "metrics"}, 1]
    for wish in wishes:
        await instance.call("POST", "/shorten", wish, from_there)
    await instance.call("POST", "/shorten/bulk", {"urls": ["https://example.com/1", "x"]}, from_there)
    await instance.call("GET", "/urls", None, from_there)
    await instance.call("PATCH", f"/urls/{code}", {"title": "a"}, from_there)
    await instance.call("GET", "/urls", None, from_there, f"Forwarded: for={address}", "X-Real-IP: " + address)
    async with await Client.connect(instance.port) as client:
        for _ in range(3):
            assert (await client.get(f"/{code}", from_there)).status == 301
        assert (await client.get(f"/{code}?utm_source=test", from_there, "X-Correlation-ID: one")).status == 301
        assert (await client.get(f"/{code}", from_there, "Accept: text/html", "Accept: text/plain")).status == 301
        assert (await client.get("/absent", from_there)).status == 404
        assert (await client.get(f"{instance.api}/urls", from_there, "Authorization: Bearer wrong")).status == 401
        assert (await client.get("/health", from_there)).status == 200
        assert (await client.get("/%00", from_there)).status in {400, 404}
    async with await Client.connect(instance.port) as client:
        assert (await client.get("/", from_there, f"X-Long: {'a' * 20_000}")).status == 431


async def everything(instance: Instance) -> dict[str, bytes]:
    """All that an instance has written, by where it lies; it is stopped on the way."""
    address = instance.changes.get("METRICS_ADDR")
    seen = instance.process if address is None else Running(instance.process.process, f"http://{address}", Path())
    found = {"metrics": (await asyncio.to_thread(seen.get, "/metrics"))[1]}
    await instance.drained()
    assert await instance.stop() == 0
    found["events"] = b"\n".join(message.body for message in await instance.messages())
    found |= {str(path): path.read_bytes() for path in instance.folder.rglob("*") if path.is_file()}
    if isinstance(instance, DistributedInstance):
        found["database"] = await tables(instance.dsn)
        found["redis"] = await copies(instance.servers["TEST_REDIS_ADDR"])
    else:
        assert isinstance(instance, EmbeddedInstance)
        found["database"] = instance.data.database("links").read_bytes()
    return found


async def tables(dsn: str) -> bytes:
    """Every row of every table, as text."""
    connection = await asyncpg.connect(dsn)
    try:
        names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        rows = [await connection.fetch(f'SELECT one::text FROM "{name}" AS one') for (name,) in names]
    finally:
        await connection.close()
    return "\n".join(row[0] for table in rows for row in table).encode()


async def copies(address: str) -> bytes:
    """Every key and every copy of a link that Redis has."""
    host, _, port = address.rpartition(":")
    async with Redis(host=host, port=int(port)) as client:
        keys = [key async for key in client.scan_iter(count=1000)]
        values = [await client.dump(key) or b"" for key in keys if key.startswith(b"url:")]
    return b"\n".join([*keys, *values])


async def test_no_address_of_a_visitor_is_kept(instance: Instance) -> None:
    for address in ADDRESSES:
        await visit(instance, address)
    found = await everything(instance)
    log = next(content for place, content in found.items() if place.endswith("stdout"))
    assert b'"/absent"' in log, "the search would not find what is logged"
    for address, kept in ADDRESSES.items():
        assert [place for place, content in found.items() if address.encode() in content] == []
        for place in ("events", "database"):
            assert kept.encode() in found[place], "nobody believed in the address at all"
