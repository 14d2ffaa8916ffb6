"""The SMS gateway while its database or its broker is killed, and two of them on one limit: none lost or too many."""

import asyncio
from pathlib import Path

import pytest

from tests.support.ledger import Ledger
from tests.support.servers import Kafka, PostgreSQL
from tests.support.servers.selection import started as started_servers
from tests.support.sms_kills import COUNTS, distributed, kafka, redis, restarting_server, send_and_kill
from tests.support.sms_processes import started, texting
from tests.support.waiting import eventually

__all__ = ["kafka", "redis"]


@pytest.mark.parametrize("fast_path", ["true", "false"])
async def test_a_postgresql_that_is_killed_loses_no_message(
    tmp_path: Path, request: pytest.FixtureRequest, fast_path: str
) -> None:
    """What was answered is sent and counted, and the gateway goes on by itself."""
    with started_servers([PostgreSQL, Kafka]) as [postgres, broker]:
        process = distributed(request, tmp_path, postgres.address, broker, SMS_FAST_PATH=fast_path)
        async with started(process):
            load = await send_and_kill(process, tmp_path, 300, [restarting_server(postgres, 0.3)])
            assert len(process.processes) == 1
            counts = {row[0]: row[1] for row in await process.fetch(COUNTS)}
        assert all(load.sent_by[user] <= counts[user] for user in load.sent_by), "sent and not counted"


async def test_two_processes_admit_the_limit_together(
    tmp_path: Path, request: pytest.FixtureRequest, kafka: Kafka, fresh_database: str
) -> None:
    """Each with a memory of its own; what they share is the database."""
    one, other = (distributed(request, tmp_path, fresh_database, kafka) for _ in range(2))
    async with started(one, other):
        await one.configure([7], 100)
        with Ledger(tmp_path / "one") as first, Ledger(tmp_path / "other") as second:
            loads = [texting(process, ledger, [7], 10) for process, ledger in ((one, first), (other, second))]
            await asyncio.gather(*(load.run(10) for load in loads))
            assert first.answered == second.answered == 10, "each has its share, whoever is quicker afterwards"
            for load in loads:
                load.attempts = 500
            await asyncio.gather(*(load.run(50) for load in loads))
            assert first.answered + second.answered == 100
            assert [set(load.refused) for load in loads] == [{429}, {429}]

        def sent() -> list[int]:
            return one.sent() + other.sent()

        await eventually(lambda: len(sent()) == 100, timeout=60)
        await asyncio.gather(one.stop(), other.stop())
        assert len(sent()) == 100
    [(user, count)] = await one.fetch(COUNTS)
    assert (user, count) == (7, 100)


async def test_a_broker_that_is_away_refuses_quickly_and_comes_back_by_itself(
    tmp_path: Path, request: pytest.FixtureRequest, kafka: Kafka, fresh_database: str
) -> None:
    """Also at the start of the gateway. What was attempted meanwhile is in the audit afterwards."""
    process = distributed(request, tmp_path, fresh_database, kafka, SMS_FAST_PATH="false")
    await asyncio.to_thread(kafka.kill)
    async with started(process):
        await process.configure([7], 100)
        with Ledger(tmp_path / "ledger") as ledger:
            load = texting(process, ledger, [7], 60)
            await load.run(10)
            assert load.refused == {503: 60}
            assert [tuple(row) for row in await process.fetch(COUNTS)] == [(7, 0)], "nothing was sent or counted"
            await asyncio.to_thread(kafka.start)
            load.attempts = None
            async with load.running(2):
                await load.answered(20)
            await eventually(lambda: ledger.compare(process.sent()).lost == (), timeout=60)
            attempted = ledger.attempted
        audited = "SELECT count(*) FROM attempts"

        async def all_noted() -> bool:
            return bool((await process.fetch(audited))[0][0] == attempted)

        await eventually(all_noted, timeout=60)
