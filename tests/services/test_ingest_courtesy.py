"""The reader of clicks gives way between its steps, and announces few totals while many requests are answered."""

from refract.runtime.courtesy import Courtesy
from refract.services.analytics.commands import announcing
from refract.services.analytics.commands.announcing import Announcer
from refract.services.analytics.commands.ingesting import TOGETHER
from tests.support.counting import clicked, ingesting, totals_in
from tests.support.following import Between, analytics

__all__ = ["analytics"]


class Impatient(Courtesy):
    """Finds every step long enough, and counts how often it gave way."""

    times = 0
    breaths = 0
    due = True

    async def give_way(self) -> None:
        self.times += 1
        await super().give_way()

    async def breathe(self) -> None:
        self.breaths += 1
        await super().breathe()


async def test_others_have_their_turn_between_two_links(analytics: Between) -> None:
    polite = Impatient(analytics.clock)
    async with analytics.database.transaction() as tx:
        await ingesting(analytics.clock, courtesy=polite).ingest(tx, [clicked(f"code-{n}") for n in range(30)])
    assert polite.times >= 30
    assert len(await totals_in(analytics.database)) == 30


async def test_they_have_it_while_clicks_are_looked_at_too(analytics: Between) -> None:
    polite = Impatient(analytics.clock)
    number = 3 * TOGETHER + 1
    async with analytics.database.transaction() as tx:
        await ingesting(analytics.clock, courtesy=polite).ingest(tx, [clicked("one") for _ in range(number)])
    assert polite.breaths == 4
    assert (await totals_in(analytics.database))["one"][0] == number


async def test_they_have_it_between_two_notes_of_totals(analytics: Between) -> None:
    polite = Impatient(analytics.clock)
    for code in ("one", "two", "three"):
        async with analytics.database.transaction() as tx:
            await ingesting(analytics.clock).ingest(tx, [clicked(code)])
    await analytics.own.declare(analytics.buses.queue("totals", "stats.totals"))
    assert await Announcer(analytics.database, analytics.own, analytics.clock, courtesy=polite).announce() == 3
    assert polite.breaths == 3


async def test_a_busy_process_announces_a_few_totals_a_turn_and_the_others_later(analytics: Between) -> None:
    answered = 0
    polite = Courtesy(analytics.clock, lambda: answered)
    number = announcing.TOTALS_A_BUSY_TURN + 20
    async with analytics.database.transaction() as tx:
        await ingesting(analytics.clock).ingest(tx, [clicked(f"code-{n:03}") for n in range(number)])
    await analytics.own.declare(analytics.buses.queue("totals", "stats.totals"))
    announcer = Announcer(analytics.database, analytics.own, analytics.clock, courtesy=polite)
    answered = 10**9
    analytics.clock.advance(2)
    await polite.give_way()
    assert await announcer.announce() == announcing.TOTALS_A_BUSY_TURN
    analytics.clock.advance(2)
    await polite.give_way()
    assert await announcer.announce() == 20
