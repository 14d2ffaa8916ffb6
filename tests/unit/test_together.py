"""Work that is done together: in batches, in order, each with its own outcome, and nobody left behind."""

import asyncio
from collections.abc import Sequence

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime import together
from refract.runtime.together import Together
from tests.support.waiting import eventually


async def test_what_waits_while_one_is_written_is_the_next_batch_in_its_order() -> None:
    batches: list[list[int]] = []

    async def write(items: Sequence[int]) -> Sequence[str]:
        batches.append(list(items))
        await asyncio.sleep(0)
        return [str(item) for item in items]

    line = Together("test", write, at_once=4, writers=1)
    outcomes = await asyncio.gather(*(line.add(number) for number in range(10)))
    assert outcomes == [str(number) for number in range(10)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_a_failure_is_that_of_its_batch_alone_and_each_has_its_own() -> None:
    async def write(items: Sequence[int]) -> Sequence[int]:
        await asyncio.sleep(0)
        if 0 in items:
            raise Unavailable("database", "gone")
        return items

    line = Together("test", write, at_once=2, writers=1)
    outcomes = await asyncio.gather(*(line.add(number) for number in range(4)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes[:2]] == ["database is unavailable: gone"] * 2
    assert outcomes[0] is not outcomes[1]
    assert outcomes[2:] == [2, 3]


async def test_whoever_comes_just_when_a_writer_leaves_is_written_too() -> None:
    async def write(items: Sequence[int]) -> Sequence[int]:
        return items

    line = Together("test", write, writers=1)
    first = asyncio.create_task(line.add(0))

    async def come_late(steps: int) -> int:
        for _ in range(steps):
            await asyncio.sleep(0)
        return await line.add(steps)

    async with asyncio.timeout(60):
        assert await asyncio.gather(*(come_late(steps) for steps in range(8))) == list(range(8))
    assert await first == 0


async def test_one_who_left_is_not_missed() -> None:
    gate = asyncio.Event()

    async def write(items: Sequence[int]) -> Sequence[int]:
        await gate.wait()
        return items

    line = Together("test", write)
    leaving, staying = (asyncio.create_task(line.add(number)) for number in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    gate.set()
    assert await staying == 1
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_what_nobody_waits_for_any_more_when_its_turn_comes_is_not_written() -> None:
    gate = asyncio.Event()
    written: list[int] = []

    async def write(items: Sequence[int]) -> Sequence[int]:
        written.extend(items)
        await gate.wait()
        return items

    line = Together("test", write, at_once=2, writers=1)
    tasks = [asyncio.create_task(line.add(number)) for number in range(8)]
    await eventually(lambda: written == [0, 1])
    for number in (1, 3, 4, 5, 6):
        tasks[number].cancel()
    gate.set()
    assert [await tasks[number] for number in (0, 2, 7)] == [0, 2, 7]
    assert written == [0, 1, 2, 7], "one left when it was being written, and four before"


async def test_a_line_has_an_end_and_whoever_comes_behind_it_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "LONGEST_LINE", 3)
    gate, begun = asyncio.Event(), asyncio.Event()

    async def write(items: Sequence[int]) -> Sequence[int]:
        begun.set()
        await gate.wait()
        return items

    line = Together("test", write, at_once=1, writers=1)
    tasks = [asyncio.create_task(line.add(0))]
    await begun.wait()
    tasks += [asyncio.create_task(line.add(number)) for number in range(1, 4)]
    await asyncio.sleep(0)  # one turn, in which each of them takes its place
    with pytest.raises(Unavailable, match="3 wait already"):
        await asyncio.wait_for(line.add(4), 60)
    gate.set()
    assert await asyncio.gather(*tasks) == [0, 1, 2, 3]
    assert await line.add(5) == 5
