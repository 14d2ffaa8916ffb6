"""Redirects while the process is killed or told to stop: each that was answered is counted, and counted once."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.instances import PENDING, Instance, instance, servers, started
from tests.support.ledger import Ledger, Verdict
from tests.support.load import Following, Making, Repeating
from tests.support.waiting import eventually

__all__ = ["instance", "servers"]

CONNECTIONS = 16


async def follow_and_kill(instance: Instance, folder: Path, redirects: int, kills: int) -> None:
    """Clients follow links while the process is killed so many times, spread over all they do."""
    places = await instance.make_links(20)
    [(same, place)] = (await instance.make_links(1, "https://example.com/same/")).items()
    with Ledger(folder / "numbered") as ledger, Ledger(folder / "repeated") as other:
        numbered = Following(instance.port, ledger, redirects, places=places)
        repeated = Repeating(instance.port, other, places={same: place})
        async with numbered.running(CONNECTIONS) as following, repeated.running(2):
            for kill in range(1, kills + 1):
                await numbered.answered(kill * redirects // (kills + 1))
                await instance.kill()
                await instance.start()
            await following
        await instance.drained()
        assert await instance.stop() == 0
        clicks = await instance.clicks()
        found = [int(click.query.removeprefix("n=")) for click in clicks if click.query]
        assert ledger.compare(found) == Verdict()
        assert ledger.answered == redirects == ledger.attempted - numbered.unanswered
        assert kills <= numbered.unanswered < redirects / 10, "the kills did not come in mid-load"
        assert numbered.wrong == repeated.wrong == []
        assert numbered.refused == repeated.refused == Counter()
        assert other.answered <= sum(click.short_code == same for click in clicks) <= other.attempted
        assert {click.short_code for click in clicks} == {*places, same}


async def test_three_thousand_redirects_and_three_kills(instance: Instance, tmp_path: Path) -> None:
    await follow_and_kill(instance, tmp_path, 3_000, 3)


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_two_hundred_thousand_redirects_and_twenty_kills(instance: Instance, tmp_path: Path) -> None:
    await follow_and_kill(instance, tmp_path, 200_000, 20)


# A process that is told to stop


async def stop_under_load(instance: Instance, folder: Path, redirects: int) -> None:
    """Clients follow and make links, over one connection or over a new one each time, until nobody listens."""
    places = await instance.make_links(20)
    with Ledger(folder / "kept") as first, Ledger(folder / "new") as second, Ledger(folder / "made") as third:
        kept = Following(instance.port, first, places=places, reconnects=False)
        new = Following(instance.port, second, places=places, headers=(*kept.headers, "Connection: close"))
        making = Making(instance.port, third, target=f"{instance.api}/shorten", token=instance.token())
        loads = kept, new, making
        async with kept.running(CONNECTIONS) as following, new.running(CONNECTIONS), making.running(4):
            await eventually(lambda: first.answered + second.answered >= redirects and third.answered, timeout=120)
            assert not following.done()
            assert await instance.stop() == 0
        assert [(load.unanswered, load.refused, load.wrong) for load in loads] == [(0, Counter(), [])] * 3
        assert instance.spooled == []
        assert await instance.fetch(PENDING) == [(0,)], "the outbox was not drained"
        found = Counter(int(click.query.removeprefix("n=")) for click in await instance.clicks())
        assert found == Counter(range(first.answered)) + Counter(range(second.answered))
        assert await instance.fetch("SELECT count(*) FROM links") == [(20 + third.answered,)]


async def test_a_stop_under_load_fails_no_request(instance: Instance, tmp_path: Path) -> None:
    await stop_under_load(instance, tmp_path, 500)


async def test_a_stop_under_load_flushes_clicks_for_which_nobody_waited(
    servers: dict[str, str] | None, tmp_path: Path
) -> None:
    async with started(tmp_path, servers, CLICK_DURABILITY="async") as instance:
        await stop_under_load(instance, tmp_path, 500)


async def test_a_stop_under_load_of_two_workers_fails_no_request(
    fresh_database: str, redis_address: str, rabbitmq_url: str, tmp_path: Path
) -> None:
    servers = {"postgres": fresh_database, "redis": redis_address, "rabbitmq": rabbitmq_url}
    async with started(tmp_path, servers, WORKERS="2") as instance:
        await stop_under_load(instance, tmp_path, 500)
