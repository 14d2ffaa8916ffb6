"""Processes that send what they have just saved, killed in the midst of it: nothing saved is lost, or marked unsent."""

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from refract.kernel.clock import SystemClock
from refract.runtime.handover import HELD_SECONDS
from tests.support import handover_victim
from tests.support.clocks import ManualClock
from tests.support.databases import Location, empty_location
from tests.support.handover_victim import BEFORE_THE_BUS, BEFORE_THE_MARK, MOMENTS
from tests.support.waiting import eventually
from tests.support.worlds import World, buses_beside, open_world, running

__all__ = ["empty_location"]

ROOT = Path(__file__).parents[2]
MOST = 10_000
"""More numbers than a victim comes to."""


@pytest.fixture
async def world(empty_location: Location, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A world with a queue, in real time."""
    async with open_world(empty_location, buses_beside(empty_location, request), clock=SystemClock()) as world:
        await world.bus.declare(world.queue)
        yield world


async def killed(world: World, moment: str, seed: int, first: int) -> set[int]:
    """Start a victim and see it die; the numbers of which it was told that they are saved."""
    command = [sys.executable, "-m", handover_victim.__name__, moment, str(seed), str(first)]
    pipe = asyncio.subprocess.PIPE
    victim = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT)
    async with asyncio.timeout(60):
        said, _ = await victim.communicate(world.address().encode())
    assert victim.returncode == -signal.SIGKILL
    await eventually(world.is_left)
    return set(map(int, said.split()))


async def rows(world: World, first: int) -> dict[int, bool]:
    """Whether each number that a victim has saved is marked as published."""
    found = {}
    for row in await world.outbox():
        [number] = msgspec.json.decode(row["payload"])
        found[number] = row["published_at"] is not None
    return {number: marked for number, marked in found.items() if number >= first}


async def kill_and_compare(world: World, times: int) -> None:
    """Kill so many, each at a moment of its kind; after each the relay sends what is left, and all that was saved has
    come."""
    received: Counter[int] = Counter()

    async def receive() -> None:
        async with world.bus.reader(world.queue) as reader:
            while True:
                batch = await reader.next_batch()
                for delivery in batch:
                    received.update(msgspec.json.decode(delivery.message.body))
                await reader.acknowledge(batch)

    chance = random.Random()
    async with running(receive):
        for kill in range(times):
            moment, seed, first = MOMENTS[kill % len(MOMENTS)], chance.randrange(1_000_000), kill * MOST
            told = await killed(world, moment, seed, first)
            saved = await rows(world, first)
            marked = {number for number, is_marked in saved.items() if is_marked}
            where = f"killed at {moment!r} with seed {seed}"
            assert told <= saved.keys(), f"{where}: acknowledged and not saved"

            def all_came(expected: set[int], where: str) -> bool:
                missing = expected - received.keys()
                assert not missing, f"{where}: {sorted(missing)} never came"
                return True

            await eventually(lambda: all_came(marked, f"{where}, marked and not sent"), timeout=20)  # noqa: B023
            unmarked = saved.keys() - marked
            if moment in BEFORE_THE_BUS:
                assert unmarked - received.keys(), f"{where}: nothing was on its way to the bus"
            if moment in BEFORE_THE_MARK:
                # The window was hit: the bus has what the database does not know to be published.
                await eventually(lambda: unmarked & received.keys())  # noqa: B023
            # No other clock than one that has passed the holds: nobody has to wait for them.
            later = ManualClock(world.clock.now() + timedelta(seconds=HELD_SECONDS + 1))
            await replace(world, clock=later).relay().drain()
            await eventually(lambda: all_came(set(saved), f"{where}, saved and not sent"), timeout=20)  # noqa: B023
            assert await world.unpublished() == 0, where
        assert {number // MOST for number in received} == set(range(times)), "a victim died before it had done anything"


async def test_ten_that_are_killed_between_save_and_send_and_between_confirm_and_mark(world: World) -> None:
    await kill_and_compare(world, 10)


@pytest.mark.full
@pytest.mark.timeout(1_200)
async def test_two_hundred_that_are(world: World) -> None:
    await kill_and_compare(world, 200)
