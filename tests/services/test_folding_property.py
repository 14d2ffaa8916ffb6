"""Whatever is clicked, and whenever house is kept: what a stretch of time adds up to is what was clicked in it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, start_of
from tests.support.periods import Answer, PeriodsWorld, a_click, periods

__all__ = ["periods"]

pytestmark = pytest.mark.usefixtures("patient_folding", "patient_locks")

BEGIN = datetime(2026, 1, 20, tzinfo=UTC)
LENGTH = timedelta(days=120)
CODES = ("a", "b")

moments = st.one_of(
    st.timedeltas(timedelta(0), LENGTH),
    # Many at the edges of days and months.
    st.builds(
        lambda day, second: timedelta(days=day, seconds=second),
        st.integers(1, LENGTH.days - 1),
        st.integers(-1, 1),
    ),
).map(lambda since: BEGIN + since)

clicks = st.tuples(
    moments, st.sampled_from(CODES), st.integers(0, 5), st.booleans(), st.sampled_from(["", "DE", "FR", "(other)"])
)

HOUSE = ("nothing", "fold", "expire", "fold, expire", "fold twice at once")

rounds = st.lists(
    st.tuples(
        st.lists(clicks, max_size=6),
        st.lists(st.sampled_from(HOUSE), min_size=1, max_size=2),
        st.timedeltas(timedelta(hours=1), timedelta(days=45)),
    ),
    min_size=2,
    max_size=6,
)


async def count(world: PeriodsWorld, some: list[tuple[datetime, str, int, bool, str]]) -> None:
    """Most are late by the time they come, some very late; none is ahead of its time."""
    if some:
        now = world.clock.now()
        await world.count(
            *(
                a_click(min(moment, now), code, visitor=visitor, bot=bot, country=country)
                for moment, code, visitor, bot, country in some
            )
        )


async def keep(world: PeriodsWorld, what: str) -> None:
    house = world.house()
    if what == "fold twice at once":
        late = a_click(min(BEGIN + LENGTH / 3, world.clock.now()), "a", visitor=9, country="CH")
        await asyncio.gather(world.fold(), world.count(late), house.folding.fold())
    if "fold" in what:
        await house.folding.fold()
    if "expire" in what:
        await house.expiry.expire()


@settings(
    max_examples=30,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(walk=rounds, edges=st.tuples(moments, moments))
async def test_keeping_house_never_changes_what_was_clicked(
    periods: PeriodsWorld, walk: list[tuple[list[Any], list[str], timedelta]], edges: tuple[datetime, datetime]
) -> None:
    await periods.begin_again()
    periods.kept.update(hours_kept=timedelta(days=9), days_kept=timedelta(days=40), months_kept=timedelta(days=1000))
    periods.pass_to(BEGIN + timedelta(days=20))
    for some, house, pause in walk:
        await count(periods, some)
        for what in house:
            await keep(periods, what)
        for code in CODES:
            await check(periods, code, *edges)
            await check(periods, code, start_of(BEGIN, MONTH), start_of(BEGIN + LENGTH, MONTH))
        periods.clock.advance(pause.total_seconds())


def without_details(answer: Answer) -> tuple[int, int]:
    return answer.clicks, answer.bot_clicks


async def check(world: PeriodsWorld, code: str, *edges: datetime) -> None:
    """Counts between any two hours; the rest between days, and months, where it is not kept by the hour."""
    begin, end = (start_of(edge, HOUR) for edge in sorted(edges))
    answer = await world.answer(code, begin, end)
    assert without_details(answer) == without_details(world.recount(code, begin, end))
    expired = {span: row["expired"] for span, row in (await world.folding()).items()}
    if begin < expired[HOUR]:
        begin = start_of(begin, DAY if begin >= expired[DAY] else MONTH)
    if end < expired[HOUR]:
        end = start_of(end, DAY if end >= expired[DAY] else MONTH)
    assert await world.answer(code, begin, end) == world.recount(code, begin, end)
