"""ACCEPTANCE 28 in full: a thousand clients that trickle, while the others notice nothing."""

import asyncio
import time
from statistics import quantiles

import pytest

from refract.runtime.server import ServerLimits
from tests.support.applications import echo
from tests.support.http import Client, running

pytestmark = pytest.mark.full


async def _p99(port: int, requests: int) -> float:
    """The 99th percentile of so many requests on one connection, in seconds."""
    taken = []
    async with await Client.connect(port) as client:
        for _ in range(requests):
            begun = time.perf_counter()
            assert (await client.get("/")).status == 200
            taken.append(time.perf_counter() - begun)
            await asyncio.sleep(0.001)
    return quantiles(taken, n=100)[98]


async def _trickle(client: Client) -> float:
    """Send one byte every 5 s until the server has enough of it; how many seconds that took."""
    begun = time.perf_counter()
    await client.send(b"GET / HTTP/1.1\r\nHost: test\r\nX-Slow: ")
    answer = asyncio.create_task(client.answer())
    while not (await asyncio.wait({answer}, timeout=5))[0]:
        client.writer.write(b"a")
    assert answer.result().status == 408
    client.close()
    return time.perf_counter() - begun


@pytest.mark.timeout(120)
async def test_a_thousand_trickling_clients_are_closed_while_others_are_served() -> None:
    async with running(echo, limits=ServerLimits()) as server:
        usual = await _p99(server.port, 2000)
        clients = [await Client.connect(server.port) for _ in range(1000)]
        trickling = asyncio.gather(*(_trickle(client) for client in clients))
        meanwhile = await _p99(server.port, 2000)
        assert max(await trickling) < 15
        # Client and server share this loop, which makes the usual figure small and the comparison harsh.
        assert meanwhile < max(2 * usual, 0.010)
