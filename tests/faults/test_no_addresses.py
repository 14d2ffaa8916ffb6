"""ACCEPTANCE 38 in full: clicks from thousands of addresses, kills and an outage, and no trace of any of them.

And in short, that whoever looks finds an address also where it is packed.
"""

import asyncio
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from refract.runtime.embedded.packing import packed
from tests.support.http import Answer, Client
from tests.support.ledger import Ledger
from tests.support.load import PAUSE, Following
from tests.support.platforms import DistributedPlatform, Platform, platform_in
from tests.support.servers import PostgreSQL, RabbitMQ, Redis
from tests.support.traces import Search, Strangers, files_in, listening, search, sqlite_tables
from tests.support.waiting import eventually

REDIRECTS, ADDRESSES, LINKS, CONNECTIONS = 20_000, 2_000, 10, 16
UNLIMITED = {"RATE_LIMIT_REDIRECT": "0", "RATE_LIMIT_SHORTEN": "0"}


@dataclass
class FromEverywhere(Following):
    """Clients behind a proxy: each request comes from another of these addresses."""

    addresses: Sequence[str] = ()

    async def _ask(self, client: Client, number: int) -> Answer:
        address = self.addresses[number % len(self.addresses)]
        answer = await client.get(f"/{self.code(number)}?n={number}", *self.headers, f"X-Forwarded-For: {address}")
        if answer.status >= 500:
            await asyncio.sleep(PAUSE)  # somebody is on the way up again
        return answer


LEAVE_AS_IT_IS = """
SELECT format('ALTER TABLE %s ALTER COLUMN %I SET STORAGE EXTERNAL', attrelid::regclass, attname)
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND attstorage = 'x' AND NOT attisdropped
"""


async def leave_long_values(platform: Platform) -> None:
    """Have PostgreSQL write long values as they are, in what it does from now on.

    It packs what is over 2 KB: an address could hide there, and a network, which may be kept, run into a byte of the
    packing that looks like the last digit of an address.
    """
    if not isinstance(platform, DistributedPlatform):
        return
    for variables in platform.environments.values():
        if "DATABASE_DSN" in variables:
            connection = await asyncpg.connect(variables["DATABASE_DSN"])
            try:
                statements = [row[0] for row in await connection.fetch(LEAVE_AS_IT_IS)]
                assert statements
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close()


@pytest.fixture(params=["embedded", "distributed"])
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Platform]:
    settings = UNLIMITED | {"TRUSTED_PROXIES": "127.0.0.1", "LOG_LEVEL": "debug"}
    own = (PostgreSQL, RabbitMQ, Redis)
    with platform_in(request.param, tmp_path, request, own=own, **settings) as platform:
        yield platform


async def disturb(platform: Platform, load: FromEverywhere, strangers: Strangers) -> None:
    """Kill what reads and writes clicks, and take the databases away, while the clicks come."""
    await load.answered(REDIRECTS // 5)
    await platform.kill("links")
    if isinstance(platform, DistributedPlatform):
        await platform.turn_clock()  # the gateway would leave it alone for half a minute
    await load.answered(2 * REDIRECTS // 5)
    await platform.kill("analytics")
    if isinstance(platform, DistributedPlatform):
        [database] = [server for server in platform.servers if isinstance(server, PostgreSQL)]
        spool = Path(platform.environments["links"]["CLICK_SPOOL_DIR"])
        await load.answered(3 * REDIRECTS // 5)
        await asyncio.to_thread(database.kill)
        await eventually(lambda: any(path.stat().st_size for path in spool.rglob("*") if path.is_file()), timeout=30)
        outage = Search(strangers, frozenset({b"ledger"}))
        for name, content in files_in(spool):
            outage.look(name, content)
        assert (outage.traces, list(outage.seen)) == ([], [b"ledger"]), "clicks wait there without their addresses"
        await asyncio.to_thread(database.start)


async def counted(platform: Platform, codes: Sequence[str], token: str) -> int:
    """How many clicks the owner sees in all."""
    answers = [await platform.call("GET", f"/api/stats/{code}", token=token) for code in codes]
    return sum(int(answer.json["total_clicks"]) for answer in answers)


def test_an_address_is_found_in_a_body_that_is_packed(tmp_path: Path) -> None:
    strangers = Strangers()
    # Four letters or more that came before are packed away: the address is nowhere in the file as it is.
    first, *rest = strangers.behind_proxy().split(".")
    parts = [f"{first}.{rest[0]}.", f"{rest[0]}.{rest[1]}.", f"{rest[1]}.{rest[2]}"]
    body = packed(f"{' '.join(parts * 100)} {strangers.known[0]} {' '.join(parts)}".encode())
    with closing(sqlite3.connect(tmp_path / "links.sqlite3")) as connection:
        connection.execute("CREATE TABLE outbox (payload BLOB)")
        connection.execute("INSERT INTO outbox VALUES (?)", (body,))
        connection.commit()
    found = Search(strangers)
    for name, content in files_in(tmp_path):
        found.look(name, content)
    assert found.traces == []

    for name, content in sqlite_tables(tmp_path):
        found.look(name, content)
    [trace] = found.traces
    assert trace.startswith("links: outbox")


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_twenty_thousand_clicks_leave_no_address(platform: Platform, tmp_path: Path) -> None:
    strangers = Strangers()
    await leave_long_values(platform)
    addresses = [strangers.behind_proxy() if number % 2 else strangers.behind_proxy_6() for number in range(ADDRESSES)]
    async with listening(platform) as listener:
        _, token = await platform.sign_up(source=strangers.peer())
        places = {}
        for _ in range(LINKS):
            url = f"https://example.com/{secrets.token_hex(6)}"
            places[await platform.shorten(token, url, source=strangers.peer())] = url
        with Ledger(tmp_path / "ledger") as ledger:
            load = FromEverywhere(platform.port, ledger, places=places, addresses=addresses)
            async with load.running(CONNECTIONS):
                await disturb(platform, load, strangers)
                await load.answered(REDIRECTS)

            async def is_all_there() -> bool:
                return ledger.answered <= await counted(platform, list(places), token) <= ledger.attempted

            await eventually(is_all_there, timeout=120, interval=0.5)
        shown = b""
        for code in places:
            for target in ("clicks", "export?format=csv", "export?format=jsonl", "visitors"):
                answer = await platform.call("GET", f"/api/stats/{code}/{target}", token=token)
                assert answer.status == 200, answer.body
                shown += answer.body
        told = await platform.notifications(token)
    some = sorted(Strangers(known=addresses).networks())[::60]
    found = await search(platform, listener, strangers, b"ledger", *some)
    found.look("what the owner is shown", shown)

    assert found.traces == []
    assert found.seen.keys() == {b"ledger", *some}, "networks are kept, and addresses are not"
    assert "milestone.reached" in {it["event_type"] for it in told}
    assert load.wrong == []
