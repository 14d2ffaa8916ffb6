"""The sweep: rows say what is true already, each event once, by however many processes."""

import asyncio
import logging
from collections import Counter
from datetime import timedelta

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.caching import CacheEntry
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.links.commands.remembering import REMEMBERED
from refract.services.links.commands.sweeping import SWEEP_BATCH, SWEEP_SECONDS, Sweeper
from refract.services.links.domain.link import Link, Status
from refract.services.links.store import Links
from tests.support.clocks import START, ManualClock
from tests.support.databases import Location, open_database
from tests.support.links import ALICE, LinksWorld, keep, some_link
from tests.support.patience import patient
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["patient"]

STATUSES = Statement("statuses", "Reads how links stand.", "SELECT short_code, status, version, url_key FROM links")
ADD_KEY = Statement(
    "add_key",
    "Remembers a request.",
    """
    INSERT INTO idempotency_keys (caller, key, part, fingerprint, status, answer, created_at)
    VALUES ('c', :key, 0, :fingerprint, 201, '{}', :moment)
    """,
)
KEYS = Statement("keys", "Reads what is remembered.", "SELECT key FROM idempotency_keys ORDER BY key")


def sweeper_of(links: LinksWorld, database: Database | None = None) -> Sweeper:
    return Sweeper(database or links.database, links.cache, links.clock)


async def statuses(links: LinksWorld) -> dict[str, str]:
    return {row["short_code"]: row["status"] for row in await links.database.fetch(STATUSES)}


def due(number: int) -> Link:
    return some_link(number, expires_at=START - timedelta(seconds=1), url_key=number.to_bytes(32, "big"))


async def test_what_is_over_is_marked_announced_and_dropped(links: LinksWorld) -> None:
    await keep(
        links.database,
        due(1),
        some_link(2, expires_at=START),
        some_link(3, expires_at=START + timedelta(microseconds=1)),
        some_link(4),
        some_link(5, expires_at=START - timedelta(days=1), status=Status.DISABLED),
        some_link(6, expires_at=START - timedelta(days=1), status=Status.DELETED),
        some_link(7, expires_at=START - timedelta(days=1), status=Status.EXPIRED, version=2),
    )
    await links.cache.set_many([CacheEntry("url:code-1", 1, b"copy", 60.0), CacheEntry("url:code-4", 1, b"x", 60.0)])
    assert await sweeper_of(links).sweep() == 2
    assert await statuses(links) == {
        "code-1": "expired",
        "code-2": "expired",
        "code-3": "active",
        "code-4": "active",
        "code-5": "disabled",
        "code-6": "deleted",
        "code-7": "expired",
    }
    [event] = await links.events("code-1")
    assert (event["event_type"], event["status"], event["order"]) == ("url.updated", "expired", 2)
    assert len(await links.events()) == 2
    assert await links.cache.get_many(["url:code-1", "url:code-4"]) == [None, b"x"]
    shown = await links.queries.one(ALICE, "code-1")
    assert (shown.status, shown.updated_at) == ("expired", START)
    assert await sweeper_of(links).sweep() == 0
    assert len(await links.events()) == 2


async def test_an_expired_link_frees_its_url(links: LinksWorld) -> None:
    plain = {"url": "https://example.com/plain"}
    code = (await links.call("POST", "/shorten", plain)).json["short_code"]
    expiry = {"expires_at": "2026-03-01T12:00:30Z"}
    assert (await links.call("PATCH", f"/urls/{code}", expiry)).status == 200
    links.clock.advance(30)
    await sweeper_of(links).sweep()
    again = await links.call("POST", "/shorten", plain)
    assert again.status == 201
    assert again.json["short_code"] != code


async def test_many_links_are_marked_in_batches(links: LinksWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * SWEEP_BATCH + 1
    await keep(links.database, *map(due, range(1, count + 1)))
    batches: list[int] = []
    mark = Sweeper._mark_batch

    async def noted(self: Sweeper) -> object:
        marked = await mark(self)
        batches.append(len(marked))
        return marked

    monkeypatch.setattr(Sweeper, "_mark_batch", noted)
    assert await sweeper_of(links).sweep() == count
    assert batches == [SWEEP_BATCH, SWEEP_BATCH, 1]
    assert len(await links.events()) == count


@pytest.mark.usefixtures("patient")
async def test_several_processes_mark_each_link_once(links: LinksWorld, database_location: Location) -> None:
    count = 3 * SWEEP_BATCH
    await keep(links.database, *map(due, range(1, count + 1)))
    others = [await open_database(database_location) for _ in range(2)]
    marked = await asyncio.gather(*(sweeper_of(links, one).sweep() for one in (links.database, *others)))
    for other in others:
        await other.close()
    # One that finds all the rest in others' hands is done; what is left over is the next round's.
    assert sum(marked) + await sweeper_of(links).sweep() == count
    orders = Counter((event["short_code"], event["order"]) for event in await links.events())
    assert orders == {(f"code-{number}", 2): 1 for number in range(1, count + 1)}
    assert set((await statuses(links)).values()) == {"expired"}


async def test_a_link_in_somebodys_hands_is_left_to_them(links: LinksWorld, database_location: Location) -> None:
    await keep(links.database, due(1), due(2))
    if links.database.dialect == "sqlite":
        return  # there, one transaction after the other has the whole file
    other = await open_database(database_location)
    async with other.transaction() as tx:
        await Links().get(tx, "code-1")
        async with asyncio.timeout(30):
            assert await sweeper_of(links).sweep() == 1
        assert await statuses(links) == {"code-1": "active", "code-2": "expired"}
    await other.close()
    assert await sweeper_of(links).sweep() == 1


async def test_requests_are_forgotten_after_a_day(links: LinksWorld) -> None:
    ages = {"fresh": timedelta(0), "almost": REMEMBERED - timedelta(seconds=1), "over": REMEMBERED}
    async with links.database.transaction() as tx:
        for key, age in ages.items():
            await tx.execute(ADD_KEY, key=key, fingerprint=b"f", moment=START - age)
    assert await sweeper_of(links).forget() == 1
    assert [row["key"] for row in await links.database.fetch(KEYS)] == ["almost", "fresh"]


class Rounds:
    """A pause that ends when the test says so."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._next = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self._next.wait()
        self._next.clear()

    def begin(self) -> None:
        self._next.set()


async def test_it_goes_round_twice_a_minute_and_survives_a_database_that_is_away(
    links: LinksWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds, clock = Rounds(), ManualClock()
    sweeper = Sweeper(links.database, links.cache, clock, pause=rounds)
    await keep(links.database, due(1), some_link(2, expires_at=START + timedelta(seconds=10)))
    async with links.database.transaction() as tx:
        await tx.execute(ADD_KEY, key="over", fingerprint=b"f", moment=START - REMEMBERED)
    async with running(sweeper.run):
        await eventually(lambda: rounds.asked == [SWEEP_SECONDS] == [30.0])
        assert await statuses(links) == {"code-1": "expired", "code-2": "active"}
        assert await links.database.fetch(KEYS) == []

        async def away(_self: Sweeper) -> int:
            raise Unavailable("database", "nobody answers")

        clock.advance(30)
        with monkeypatch.context() as patched:
            patched.setattr(Sweeper, "sweep", away)
            rounds.begin()
            await eventually(lambda: len(rounds.asked) == 2)
        assert "sweep failed; will retry" in [
            record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
        ]
        rounds.begin()
        await eventually(lambda: len(rounds.asked) == 3)
        assert await statuses(links) == {"code-1": "expired", "code-2": "expired"}
