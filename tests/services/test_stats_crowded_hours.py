"""Hours with more values than a row has room for: what is told of them before their day is folded."""

from collections import Counter
from datetime import timedelta

import pytest

from refract.runtime.statements import Statement
from refract.services.analytics.queries import merging
from refract.services.analytics.queries.owners import OwnerQueries
from refract.services.analytics.queries.ranges import RangeRequest
from refract.services.analytics.queries.reading import Reader
from refract.services.analytics.queries.views import Share
from tests.support.clocks import START
from tests.support.periods import PeriodsWorld, a_click, periods

__all__ = ["periods"]

LOSE_SOME = Statement("lose_some", "As from an incomplete backup.", "DELETE FROM clicks WHERE city = 'Rom'")


@pytest.fixture(autouse=True)
def room_for_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an hour; and what is asked twice is remembered, as of a link with many clicks."""
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 3)
    monkeypatch.setattr(merging, "WORTH_REMEMBERING", 1)


async def test_values_that_did_not_fit_are_counted_from_their_clicks(periods: PeriodsWorld) -> None:
    """Whoever came last and most often is the first of this hour, too, long before its day is folded."""
    cities = Counter({f"city {number}": 2 for number in range(5)})
    for city in cities.elements():  # one by one: each is dropped again before it comes a second time
        await periods.count(a_click(START, city=city), a_click(START - timedelta(hours=1), city=city, bot=True))
    for _ in range(4):
        await periods.count(a_click(START, city="late"), a_click(START))
        await periods.count(a_click(START - timedelta(days=40), city="long ago"))
    request = RangeRequest.read(START, start="2026-01-01")
    queries = OwnerQueries(Reader(periods.database))

    async def look(*, bots: bool) -> tuple[dict[str, int], int, int]:
        shown = await queries.breakdown("owner", "abc", request, "city", limit=9, bots=bots)
        return {one.value: one.clicks for one in shown.values}, shown.clicks, shown.other + shown.unknown

    for _ in range(3):  # at first, when it is remembered, and from memory
        assert await look(bots=False) == ({"late": 4, "long ago": 4} | cities, 22, 4)
        assert await look(bots=True) == ({"late": 4, "long ago": 4} | cities | dict.fromkeys(cities, 4), 32, 4)
    await periods.count(a_click(START, city="city 4"))
    assert (await look(bots=False))[0]["city 4"] == 3


async def test_hours_whose_clicks_are_gone_are_told_by_what_they_know(periods: PeriodsWorld) -> None:
    for city in ("Ulm", "Ulm", "Rom", "Bonn", "Köln"):
        await periods.count(a_click(START, city=city))
    async with periods.database.transaction() as tx:
        await tx.execute(LOSE_SOME)
    request = RangeRequest.read(START, start="2026-02-20")
    shown = await OwnerQueries(Reader(periods.database)).breakdown("owner", "abc", request, "city", limit=9, bots=False)
    assert shown.values[0] == Share("Ulm", 2)
    assert (shown.clicks, shown.other + sum(one.clicks for one in shown.values)) == (5, 5)
