"""SMS gateways that are killed while clients send, and the account of what became of each message."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.ledger import Ledger, Verdict
from tests.support.servers import Kafka, Redis, Server
from tests.support.servers.selection import started as started_servers
from tests.support.sms_processes import DistributedSms, SmsProcess, Texting, texting
from tests.support.waiting import eventually

CONNECTIONS = 8
USERS = tuple(range(1, 21))
ENOUGH = 1_000_000
SENT = "SELECT count(*) FROM sent_messages"
COUNTS = "SELECT user_id, current_count FROM rate_limits ORDER BY user_id"

Kill = Callable[[], Awaitable[None]]


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    """A broker of the test's own: topics have the same names everywhere, and it is to be killed."""
    with started_servers([Kafka]) as [server]:
        assert isinstance(server, Kafka)
        yield server


@pytest.fixture
def redis() -> Iterator[Redis]:
    """One of the test's own, too: its users have the numbers that they have in other tests, and other limits there."""
    with started_servers([Redis]) as [server]:
        assert isinstance(server, Redis)
        yield server


def distributed(
    request: pytest.FixtureRequest, folder: Path, dsn: str, kafka: Server, **changes: str
) -> DistributedSms:
    """One on servers of this run, and on a broker and a Redis of the test's own."""
    return DistributedSms(
        folder,
        changes,
        postgres=dsn,
        redis=request.getfixturevalue("redis").address,
        rabbitmq=request.getfixturevalue("rabbitmq_url"),
        kafka=kafka.address,
    )


def restarting(process: SmsProcess) -> Kill:
    """Kills the gateway in the midst of its sending, and starts it again."""

    async def kill() -> None:
        await eventually(lambda: process.sent(processes=1), timeout=60)
        await asyncio.sleep(0.15)  # not just behind a line, when everything is in order
        await process.kill()
        await process.start()

    return kill


def restarting_server(server: Server, seconds: float = 0.0) -> Kill:
    """Kills a server and starts it again, perhaps after a while."""

    async def kill() -> None:
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(server.start)

    return kill


async def send_and_kill(process: SmsProcess, folder: Path, messages: int, kills: list[Kill]) -> Texting:
    """Clients send messages while somebody is killed, spread over all they do; nothing that was answered is lost."""
    await process.configure(USERS, ENOUGH)
    with Ledger(folder / "ledger") as ledger:
        load = texting(process, ledger, USERS)
        async with load.running(CONNECTIONS):
            for number, kill in enumerate(kills, 1):
                await load.answered(number * messages // (len(kills) + 1))
                await kill()
            await load.answered(messages)
        assert set(load.refused) <= {503}, load.refused
        found: list[int] = []

        async def all_sent() -> bool:
            found[:] = process.sent()
            return ledger.compare(found).lost == ()

        await eventually(all_sent, timeout=60, interval=0.25)
        assert await process.stop() == 0
        verdict = ledger.compare(found)
        assert (verdict.lost, verdict.unexpected) == ((), ())
        kept = (await process.fetch(SENT))[0][0]
        assert kept == len(set(found)), "what was sent is marked"
        written = await process.in_topic()
        assert ledger.compare(written) == Verdict(), "each is in the topic once"
        assert set(found) <= set(written)
        assert len(found) - len(set(found)) <= 500 * len(kills), "only what a kill cut off before its marks comes twice"
    return load
