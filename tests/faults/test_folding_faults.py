"""Folding that is killed in the middle, and folding beside a stream of clicks."""

import asyncio
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from refract.runtime.embedded import database, sqlite_connections
from refract.runtime.statements import Statement
from refract.services.analytics.commands import folding
from refract.services.analytics.domain.periods import DAY
from tests.support.databases import empty_location, open_database
from tests.support.periods import DAYS, FEBRUARY, HOURS, PeriodsWorld, a_click, periods

__all__ = ["empty_location", "periods"]

ROOT = Path(__file__).parents[2]
MARCH = datetime(2026, 3, 1, tzinfo=UTC)
BE_PATIENT = Statement(
    "be_patient",
    "Waits for a lock for as long as a slow commit may take.",
    "SELECT set_config('lock_timeout', '60s', true)",
    sqlite="SELECT 1",
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three write to one file here, and a commit may take seconds: nobody is to give up his turn."""
    monkeypatch.setattr(sqlite_connections, "BUSY_MILLISECONDS", 60_000)
    monkeypatch.setattr(database, "ACQUIRE_TIMEOUT", 60.0)
    monkeypatch.setattr(folding, "BE_BRIEF", BE_PATIENT)


VICTIM = """
import asyncio, os, signal, sys
from contextlib import asynccontextmanager
from pathlib import Path
from refract.services.analytics.commands import folding
from refract.services.analytics.store.turns import Turn
from tests.support.periods import open_periods

folding.CHUNK_LINKS = 2

async def main(location, deadly, moment):
    transaction, taken = Turn.transaction, 0

    @asynccontextmanager
    async def killed(self):
        nonlocal taken
        taken += 1
        async with transaction(self) as tx:
            yield tx
            if taken == int(deadly) and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        if taken == int(deadly):
            os.kill(os.getpid(), signal.SIGKILL)

    Turn.transaction = killed
    async with open_periods(location if "://" in location else Path(location)) as world:
        await world.fold()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(("deadly", "moment"), [(3, "before"), (3, "after"), (5, "before")])
async def test_a_kill_in_the_middle_costs_nothing(periods: PeriodsWorld, deadly: int, moment: str) -> None:
    codes = [f"code-{number}" for number in range(6)]
    await periods.count(*(a_click(MARCH - HOURS, code, visitor=1, country="DE") for code in codes))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, str(periods.location), str(deadly), moment, cwd=ROOT
    )
    assert await process.wait() == -signal.SIGKILL
    # Closing is the first transaction, each two links one more, and the fifth is the last of the day.
    done = (deadly - 1 if moment == "after" else deadly - 2) * 2
    assert len(await periods.rows(DAY)) == min(done, len(codes))
    await periods.count(a_click(MARCH - HOURS, codes[0], visitor=2, country="FR"))
    for code in codes:
        assert await periods.answer(code, FEBRUARY, MARCH) == periods.recount(code, FEBRUARY, MARCH)
    # Two by its mark, and the days and months that were left.
    assert await periods.fold() == 1 + len(codes) - done + len(codes)
    assert await periods.marks() == []
    for code in codes:
        assert await periods.answer(code, FEBRUARY, MARCH) == periods.recount(code, FEBRUARY, MARCH)


async def test_clicks_stream_in_while_two_processes_fold(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clicks of a month, some late and some on time, while the month goes by and house is kept all the time."""
    monkeypatch.setattr(folding, "CHUNK_LINKS", 3)
    periods.pass_to(FEBRUARY)
    codes = [f"code-{number}" for number in range(5)]
    others = [await open_database(periods.location) for _ in range(2)]
    over = asyncio.Event()

    async def keep_house(number: int) -> None:
        while not over.is_set():
            await periods.house(others[number]).folding.fold()
            await asyncio.sleep(0)

    async def click() -> None:
        for hour in range(0, 30 * 24, 9):
            periods.pass_to(FEBRUARY + hour * HOURS)
            late = [0, 3, 50, 200][hour // 9 % 4]
            moment = max(FEBRUARY, FEBRUARY + (hour - late) * HOURS)
            await periods.count(*(a_click(moment, code, visitor=hour % 13, os="Linux") for code in codes))
        over.set()

    await asyncio.gather(keep_house(0), keep_house(1), click())
    for other in others:
        await other.close()
    for _ in range(2):
        for code in codes:
            assert await periods.answer(code, FEBRUARY, MARCH + 2 * DAYS) == periods.recount(
                code, FEBRUARY, MARCH + 2 * DAYS
            )
        await periods.fold()
    assert await periods.marks() == []
