"""Work that can wait goes in short pieces, and rests while many requests are answered."""

import asyncio

import pytest

from refract.runtime import courtesy
from refract.runtime.courtesy import MANY, PIECE_SECONDS, Courtesy
from tests.support.clocks import ManualClock


async def test_a_piece_of_work_is_over_after_its_time_and_begins_anew_when_others_had_their_turn() -> None:
    clock = ManualClock()
    polite = Courtesy(clock)
    assert not polite.due
    clock.advance(2 * PIECE_SECONDS)
    assert polite.due
    heard: list[str] = []
    asyncio.get_running_loop().call_soon(heard.append, "another")
    await polite.give_way()
    assert heard == ["another"]
    assert not polite.due


async def test_it_rests_only_while_many_requests_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr("refract.runtime.courtesy.asyncio.sleep", rest)
    clock = ManualClock()
    answered = 0
    polite = Courtesy(clock, lambda: answered)
    for number in (0, 2 * MANY, MANY // 2):
        clock.advance(1)
        answered += number
        await polite.give_way()
    assert rests == [0, courtesy.REST_SECONDS, 0]
    assert not polite.is_busy


async def test_a_burst_within_a_moment_is_not_yet_many() -> None:
    clock = ManualClock()
    answered = 0
    polite = Courtesy(clock, lambda: answered)
    clock.advance(courtesy.LOOK_SECONDS / 2)
    answered = MANY
    await polite.give_way()
    assert not polite.is_busy


async def test_between_two_pieces_it_only_breathes_however_many_are_answered() -> None:
    clock = ManualClock()
    answered = 0
    polite = Courtesy(clock, lambda: answered)
    clock.advance(1)
    answered = 2 * MANY
    heard: list[str] = []
    asyncio.get_running_loop().call_soon(heard.append, "another")
    await polite.breathe()
    assert heard == ["another"]
    assert not polite.due
    asyncio.get_running_loop().call_soon(heard.append, "a third")
    await polite.breathe()
    assert heard == ["another"], "a piece that has only begun goes on"
