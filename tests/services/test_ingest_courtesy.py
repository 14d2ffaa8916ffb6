"""The reader of clicks lets others have their turn between its steps, and totals wait while there is a rush."""

import asyncio

from refract.runtime.courtesy import Courtesy
from refract.services.analytics.commands.announcing import Announcer
from refract.services.analytics.commands.ingesting import TOGETHER
from tests.support.buses import drain
from tests.support.counting import clicked, ingesting, totals_in
from tests.support.following import Between, analytics
from tests.support.rushes import ToldRush
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["analytics"]


class Impatient(Courtesy):
    """Finds every step long enough, and counts them."""

    breaths = 0
    due = True

    async def breathe(self) -> None:
        self.breaths += 1
        await super().breathe()


async def test_others_have_their_turn_between_two_links(analytics: Between) -> None:
    polite = Impatient(analytics.clock)
    async with analytics.database.transaction() as tx:
        await ingesting(analytics.clock, courtesy=polite).ingest(tx, [clicked(f"code-{n}") for n in range(30)])
    assert polite.breaths >= 30
    assert len(await totals_in(analytics.database)) == 30


async def test_they_have_it_while_clicks_are_looked_at_too(analytics: Between) -> None:
    polite = Impatient(analytics.clock)
    number = 3 * TOGETHER + 1
    async with analytics.database.transaction() as tx:
        await ingesting(analytics.clock, courtesy=polite).ingest(tx, [clicked("one") for _ in range(number)])
    assert polite.breaths >= 4
    assert (await totals_in(analytics.database))["one"][0] == number


async def test_they_have_it_between_two_notes_of_totals(analytics: Between) -> None:
    polite = Impatient(analytics.clock)
    for code in ("one", "two", "three"):
        async with analytics.database.transaction() as tx:
            await ingesting(analytics.clock).ingest(tx, [clicked(code)])
    await analytics.own.declare(analytics.buses.queue("totals", "stats.totals"))
    assert await Announcer(analytics.database, analytics.own, analytics.clock, courtesy=polite).announce() == 3
    assert polite.breaths == 3


async def test_totals_wait_until_a_rush_is_over(analytics: Between) -> None:
    async with analytics.database.transaction() as tx:
        await ingesting(analytics.clock).ingest(tx, [clicked("one")])
    queue = analytics.buses.queue("totals", "stats.totals")
    told = ToldRush()
    async with (
        analytics.own.reader(queue) as reader,
        running(Announcer(analytics.database, analytics.own, analytics.clock, rush=told).run),
        asyncio.timeout(30),
    ):
        await eventually(lambda: _is_waited_for(told))
        told.end()
        await drain(reader, 1)


async def _is_waited_for(told: ToldRush) -> bool:
    return told.waits == 1
