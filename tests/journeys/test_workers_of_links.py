"""Links in two processes behind one port: what one of them changes is changed wherever a client comes in."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.journeys.test_workers import three_free_ports
from tests.support.commands import Running
from tests.support.http import fetch
from tests.support.instances import Instance, started
from tests.support.waiting import eventually

CLIENTS = 40
"""Each with a connection of its own, which the kernel gives to one of two workers by chance."""

SOON = 15.0
"""Seconds that a change may take on a busy machine: far less than a worker that does not hear of it goes on for."""

Told = tuple[int, str | None]


class Crew:
    """Links in two workers, each of which says what it has answered."""

    def __init__(self, instance: Instance, metrics: int, code: str) -> None:
        self._instance = instance
        self._metrics = metrics, metrics + 1
        self._code = code

    async def change(self, method: str, body: object = None) -> int:
        """A request of the owner's, to whichever worker gets it; its status."""
        return (await self._instance.call(method, f"/urls/{self._code}", body)).status

    async def become(self, expected: Told, timeout: float = SOON) -> None:
        """Wait until clients are told so; from then on every worker tells so, again and again, and nothing else."""

        async def all_are_told() -> bool:
            return await self._told() == {expected}

        await eventually(all_are_told, timeout=timeout)
        before = await eventually(lambda: self._answered(expected[0]), timeout=60)  # the second may still be starting
        others: set[Told] = set()

        async def both_have_told() -> bool:
            others.update(await self._told() - {expected})
            after = await self._answered(expected[0])
            return bool(others) or all(late >= early + CLIENTS for early, late in zip(before, after, strict=True))

        await eventually(both_have_told, timeout=60)
        assert not others

    async def _told(self) -> set[Told]:
        """What new clients are told, each a status and a place."""
        answers = await asyncio.gather(*(fetch(self._instance.port, f"/{self._code}") for _ in range(CLIENTS)))
        return {(answer.status, answer.headers.get("location")) for answer in answers}

    async def _answered(self, status: int) -> list[float]:
        """How often each worker has answered so."""
        counts = []
        for port in self._metrics:
            inside = Running(self._instance.process.process, f"http://127.0.0.1:{port}", self._instance.folder)
            text = (await asyncio.to_thread(inside.get, "/metrics"))[1].decode()
            found = re.findall(rf'http_requests_total{{.*route="/{{code}}".*status="{status}"}} (\S+)', text)
            counts.append(sum(map(float, found)))
        return counts


@pytest.fixture
async def crew(fresh_database: str, redis_address: str, rabbitmq_url: str, tmp_path: Path) -> AsyncIterator[Crew]:
    """Two workers that have both led clients to the first place of a link."""
    servers = {"postgres": fresh_database, "redis": redis_address, "rabbitmq": rabbitmq_url}
    metrics = three_free_ports()
    async with started(tmp_path, servers, WORKERS="2", METRICS_ADDR=f"127.0.0.1:{metrics}") as instance:
        [(code, place)] = (await instance.make_links(1)).items()
        crew = Crew(instance, metrics, code)
        await crew.become((301, place), timeout=60)
        yield crew


async def test_every_worker_leads_to_where_a_link_was_changed_to_until_it_is_gone(crew: Crew) -> None:
    for place in ("https://example.com/second", "https://example.com/third", "https://example.com/fourth"):
        assert await crew.change("PATCH", {"url": place}) == 200
        await crew.become((301, place))
    assert await crew.change("DELETE") == 204
    await crew.become((410, None))
