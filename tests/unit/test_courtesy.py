"""Long work goes in short pieces, and others have their turn between them."""

import asyncio

from refract.runtime.courtesy import PIECE_SECONDS, Courtesy
from tests.support.clocks import ManualClock


async def test_others_have_their_turn_after_a_piece() -> None:
    clock = ManualClock()
    polite = Courtesy(clock)
    assert not polite.due
    clock.advance(2 * PIECE_SECONDS)
    assert polite.due
    heard: list[str] = []
    asyncio.get_running_loop().call_soon(heard.append, "another")
    await polite.breathe()
    assert heard == ["another"]
    assert not polite.due
    asyncio.get_running_loop().call_soon(heard.append, "a third")
    await polite.breathe()
    assert heard == ["another"], "a piece that has only begun goes on"
