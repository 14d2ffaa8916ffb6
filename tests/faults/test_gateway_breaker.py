"""ACCEPTANCE 24 at the gateway's own process, as distributed mode runs it: what its breakers do to real traffic."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from itertools import count
from pathlib import Path
from resource import RLIMIT_NOFILE, prlimit
from statistics import quantiles

import pytest
import pytest_asyncio

from tests.support.doors import PATIENT, Backstage, Door, doors, one_door
from tests.support.http import Answer, Client, fetch, head, running
from tests.support.waiting import eventually

World = tuple[Door, Backstage]

REFUSED = (503, {"error": "service unavailable"})
OPEN, CLOSED = 1.0, 0.0


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(tmp_path_factory: pytest.TempPathFactory, redis_address: str) -> AsyncIterator[World]:
    """One for all tests: to start it takes longer than most of them."""
    async with one_door(tmp_path_factory.mktemp("gateway"), redis_address) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def world(process: World) -> World:
    """The process with its breakers closed, before services that answer."""
    door, backstage = process
    backstage.statuses.clear()
    backstage.gate = None
    if await state(door) != CLOSED:
        await door.turn_clock()

        async def is_back() -> bool:
            return await ask(door) == [200]

        await eventually(is_back)
    backstage.reached.clear()
    return process


async def ask(door: Door, target: str = "/r/abc", times: int = 1) -> list[int]:
    """The statuses of so many requests, one after the other."""
    return [(await fetch(door.port, target)).status for _ in range(times)]


async def fail(door: Door, backstage: Backstage, times: int) -> None:
    """So many failures in a row."""
    backstage.statuses["/abc"] = 500
    assert await ask(door, times=times) == [500] * times


async def state(door: Door) -> float:
    return await door.metric('gateway_breaker_state{target="links"}')


async def told(door: Door) -> tuple[float, float, list[tuple[str, str, str]]]:
    """How often it opened and refused, and what it logged of its changes."""
    lines = [(line["msg"], line["level"], line["target"]) for line in door.log if "circuit breaker" in line["msg"]]
    opens = await door.metric('gateway_breaker_opens_total{target="links"}')
    return opens, await door.metric('gateway_breaker_refusals_total{target="links"}'), lines


async def leave(door: Door, backstage: Backstage, clients: int) -> None:
    """So many clients ask, and hang up before the answer."""
    backstage.gate = asyncio.Event()
    for _ in range(clients):
        async with await Client.connect(door.port) as client:
            await client.send(head("GET", "/r/abc"))
            await eventually(lambda: backstage.waiting == 1)
        await eventually(lambda: backstage.waiting == 0)
    backstage.gate = None


async def test_five_failures_in_a_row_and_nothing_else_open_it(world: World) -> None:
    door, backstage = world
    opens, refusals, lines = await told(door)
    await fail(door, backstage, 4)
    assert await ask(door, "/r/good") == [200]  # a success ends the row
    await fail(door, backstage, 4)
    backstage.statuses["/missing"] = 404
    assert await ask(door, "/r/missing", 20) == [404] * 20  # so does a 4xx, which is the client's fault
    await fail(door, backstage, 4)
    await door.turn_clock()  # so long after the last of them, the next is the first of a new row
    await fail(door, backstage, 4)
    await leave(door, backstage, 6)  # those who left say nothing of the target, good or bad
    assert await state(door) == CLOSED
    await fail(door, backstage, 1)
    reached = backstage.reached.total()

    refused = [await fetch(door.port, target) for target in ("/r/abc", "/good", "/r/other")]
    assert [(answer.status, answer.json) for answer in refused] == [REFUSED] * 3
    assert all(1 <= int(answer.headers["retry-after"]) <= 30 for answer in refused)
    assert backstage.reached.total() == reached, "an open breaker makes no call"
    assert (await fetch(door.port, "/api/me", door.authorization)).status == 200, "each target has its own"
    assert (await fetch(door.port, "/api/urls")).status == 401, "a stranger is not told how the target is"

    assert await state(door) == OPEN
    assert await told(door) == (opens + 1, refusals + 3, [*lines, ("circuit breaker is open", "warn", "links")])


async def test_half_open_lets_exactly_one_of_a_hundred_through(world: World) -> None:
    door, backstage = world
    await fail(door, backstage, 5)
    backstage.statuses.clear()
    backstage.reached.clear()
    backstage.gate = gate = asyncio.Event()
    await door.turn_clock()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(fetch(door.port, "/r/abc")) for _ in range(100)]
        await eventually(lambda: sum(task.done() for task in tasks) == 99)
        assert [task.result().status for task in tasks if task.done()] == [503] * 99
        assert backstage.reached.total() == 1
        # The probe hangs: when its time is over, the next request takes its place.
        backstage.gate = None
        await door.turn_clock()
        assert await ask(door) == [200]
        assert await state(door) == CLOSED
        gate.set()
    assert sorted(task.result().status for task in tasks) == [200] + [503] * 99
    assert backstage.reached.total() == 2


async def test_a_result_from_before_a_change_does_not_count(world: World) -> None:
    door, backstage = world
    backstage.gate = gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        early = [group.create_task(fetch(door.port, "/r/early")) for _ in range(10)]
        await eventually(lambda: backstage.waiting == 10)
        backstage.gate = None
        await fail(door, backstage, 5)
        backstage.statuses.clear()
        gate.set()
    assert [task.result().status for task in early] == [200] * 10
    assert await state(door) == OPEN, "answers to what began before it opened do not close it"
    assert await ask(door) == [503]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_our_own_want_of_files_is_not_the_targets_fault(tmp_path: Path, redis_address: str, host: str) -> None:
    backstage = Backstage()
    async with AsyncExitStack() as stack:
        port = (await stack.enter_async_context(running(backstage, limits=PATIENT))).port
        changes = {"URL_SERVICE_URL": f"http://{host}:{port}"}
        (door,) = await stack.enter_async_context(doors(tmp_path, port, redis_address, changes))
        clients = [await stack.enter_async_context(await Client.connect(door.port)) for _ in range(5)]
        assert [(await client.get("/r/abc")).status for client in clients] == [200] * 5
        backstage.gate = gate = asyncio.Event()
        held = clients[1:]  # more than the gateway can have connections left over from its start
        for client in held:
            await client.send(head("GET", "/r/abc"))
        await eventually(lambda: backstage.waiting == len(held))
        with no_more_files(door):
            answers = [await clients[0].get("/r/abc") for _ in range(10)]
        gate.set()
        assert [(await client.answer()).status for client in held] == [200] * len(held)
        assert {(one.status, one.headers.get("retry-after"), str(one.json)) for one in answers} == {
            (503, "1", str(REFUSED[1]))
        }
        assert await state(door) == CLOSED
        assert await ask(door, times=3) == [200] * 3
        told = [(line["level"], line["target"]) for line in door.log if line["msg"] == "a service cannot be asked"]
        assert told == [("warn", "links")] * 10


@contextmanager
def no_more_files(door: Door) -> Iterator[None]:
    """Lets a process open nothing any more for a while."""
    pid = door.process.pid
    used = {int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()}
    lowest_free = next(number for number in count() if number not in used)
    before = prlimit(pid, RLIMIT_NOFILE)
    prlimit(pid, RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        yield
    finally:
        prlimit(pid, RLIMIT_NOFILE, before)


def p99(taken: list[float]) -> float:
    return quantiles(taken, n=100)[98]


@pytest.mark.full
@pytest.mark.timeout(120)
async def test_it_opens_refuses_and_probes_within_the_figures(world: World) -> None:
    door, backstage = world
    begun = time.perf_counter()
    await fail(door, backstage, 5)
    opened = time.perf_counter()
    assert opened - begun < 0.5
    backstage.statuses.clear()

    async def timed(client: Client, target: str) -> tuple[float, Answer]:
        asked = time.perf_counter()
        answer = await client.get(target)
        return time.perf_counter() - asked, answer

    async with await Client.connect(door.port) as client:
        usual, refused = [], []
        for _ in range(1_000):
            # Beside the cheapest answer that there is: what a busy machine does to it, it does to a refusal, too.
            usual.append((await timed(client, "/health"))[0])
            seconds, answer = await timed(client, "/r/abc")
            assert answer.status == 503
            refused.append(seconds)
        print(f"p99 of refusals {p99(refused) * 1e3:.2f} ms, of /health {p99(usual) * 1e3:.2f} ms")
        assert p99(refused) < 0.005
        while True:
            _, answer = await timed(client, "/r/abc")
            if answer.status != 503:
                break
            await asyncio.sleep(0.02)
        assert 29 <= time.perf_counter() - opened <= 31
    assert await state(door) == CLOSED
