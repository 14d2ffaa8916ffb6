"""From the redirect to the count while processes are killed and brokers go away: each answered is counted, and once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.chains import Chain, DistributedChain, Numbered, chained
from tests.support.ledger import Ledger, Verdict
from tests.support.servers import RabbitMQ

CONNECTIONS = 16
PUBLISHERS = 100
LINKS = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitMQ]:
    """A broker of these tests' own: the queues have their real names, and others have readers too."""
    with RabbitMQ() as server:
        yield server


@pytest.fixture(params=["embedded", "distributed"])
async def chain(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Chain]:
    """Links and analytics in either mode."""
    servers: tuple[str, str, str] | None = None
    if request.param == "distributed":
        servers = request.getfixturevalue("servers")
    async with chained(tmp_path, servers) as chain:
        yield chain


@pytest.fixture
def servers(broker: RabbitMQ, postgres_dsn: str, redis_address: str) -> tuple[str, str, str]:
    """PostgreSQL, Redis, and the broker, which a test may have left stopped."""
    broker.start()
    return postgres_dsn, redis_address, broker.address


@pytest.fixture
async def processes(servers: tuple[str, str, str], tmp_path: Path) -> AsyncIterator[DistributedChain]:
    """The chain that has a broker."""
    async with chained(tmp_path, servers) as chain:
        assert isinstance(chain, DistributedChain)
        yield chain


async def check(chain: Chain, ledger: Ledger, load: Numbered, timeout: float) -> None:
    """Wait for the last count, end everything, and hold what is counted against what was answered."""
    await chain.settled(timeout)
    assert await chain.stop() == [0] * len(chain.victims)
    assert ledger.compare(await chain.numbers()) == Verdict()
    await chain.check_sums()
    assert await chain.dead() == []
    assert (load.wrong, load.refused) == ([], Counter())


# Processes that are killed (ACCEPTANCE 1)


async def follow_and_kill(chain: Chain, folder: Path, redirects: int, kills: int) -> None:
    """Clients follow links while processes are killed in turn, spread over all they do."""
    places = await chain.links.make_links(LINKS)
    with Ledger(folder / "ledger") as ledger:
        load = Numbered(chain.links.port, ledger, redirects, places=places)
        async with load.running(CONNECTIONS) as following:
            for kill in range(1, kills + 1):
                await load.answered(kill * redirects // (kills + 1))
                await chain.kill(kill - 1)
            await following
        await check(chain, ledger, load, timeout=60 + redirects / 500)
        assert ledger.answered == redirects == ledger.attempted - load.unanswered
        kills_of_links = len(range(0, kills, len(chain.victims)))
        assert kills_of_links <= load.unanswered < redirects / 10, "the kills did not come in mid-load"


async def test_three_thousand_redirects_and_three_kills(chain: Chain, tmp_path: Path) -> None:
    await follow_and_kill(chain, tmp_path, 3_000, 3)


@pytest.mark.full
@pytest.mark.timeout(1_800)
async def test_two_hundred_thousand_redirects_and_twenty_kills(chain: Chain, tmp_path: Path) -> None:
    await follow_and_kill(chain, tmp_path, 200_000, 20)


# A broker that goes away (ACCEPTANCE 5)


async def follow_and_restart(chain: DistributedChain, broker: RabbitMQ, folder: Path, redirects: int) -> None:
    """A hundred clients follow links; at a third and at a half the broker is restarted, and dies the second time."""
    places = await chain.links.make_links(LINKS)
    with Ledger(folder / "ledger") as ledger:
        load = Numbered(chain.links.port, ledger, redirects, places=places)
        async with load.running(PUBLISHERS) as following:
            await load.answered(redirects // 3)
            await asyncio.to_thread(broker.restart)
            await load.answered(redirects // 2)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            await following
        await check(chain, ledger, load, timeout=90 + redirects / 500)
        assert (ledger.answered, load.unanswered) == (redirects, 0), "the broker's absence reached a client"


async def test_a_broker_that_is_restarted_twice_among_two_thousand(
    processes: DistributedChain, broker: RabbitMQ, tmp_path: Path
) -> None:
    await follow_and_restart(processes, broker, tmp_path, 2_000)


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_a_broker_that_is_restarted_twice_among_ten_thousand(
    processes: DistributedChain, broker: RabbitMQ, tmp_path: Path
) -> None:
    await follow_and_restart(processes, broker, tmp_path, 10_000)


# Everything behind the redirect is away (ACCEPTANCE 25)


async def test_redirects_with_analytics_and_the_broker_away(
    processes: DistributedChain, broker: RabbitMQ, tmp_path: Path
) -> None:
    """There is no notifications at all in this chain. Nobody who follows a link is told of any of it."""
    chain = processes
    places = await chain.links.make_links(LINKS)
    assert await chain.analytics.stop() == 0
    await asyncio.to_thread(broker.stop)
    with Ledger(tmp_path / "ledger") as ledger:
        load = Numbered(chain.links.port, ledger, 2_000, places=places)
        await load.run(CONNECTIONS)
        assert (ledger.answered, load.unanswered, load.refused, load.wrong) == (2_000, 0, Counter(), [])
        await asyncio.to_thread(broker.start)
        await chain.analytics.start()
        await check(chain, ledger, load, timeout=90)
