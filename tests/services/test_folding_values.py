"""Values that did not fit an hour: exact once it is folded, where that can be known."""

from datetime import timedelta
from typing import Any

import pytest

from refract.services.analytics.commands import merging
from refract.services.analytics.domain.periods import DAY, HOUR
from refract.services.analytics.domain.tallies import OTHER
from tests.support.periods import DAYS, HOURS, YESTERDAY, PeriodsWorld, a_click, people_of, periods

__all__ = ["periods"]


async def test_values_that_did_not_fit_an_hour_are_exact_once_it_is_folded(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 4)
    monkeypatch.setattr(merging, "MOST_IN_HOUR", 4)
    monkeypatch.setattr(merging, "MOST_IN_LONGER", 6)
    # The room is taken when the one that is to be the most frequent comes, click by click.
    for number in range(6):
        await periods.count(a_click(YESTERDAY, referer=f"https://{number}.example/"))
    for _ in range(5):
        await periods.count(a_click(YESTERDAY, referer="https://late.example/"))
    await periods.count(a_click(YESTERDAY + HOURS, referer="https://5.example/"))
    [hour, _] = await periods.rows(HOUR)
    assert OTHER in people_of(hour, "referer")
    await periods.fold()
    [hour, _] = await periods.rows(HOUR)
    assert sorted(people_of(hour, "referer").items()) == [
        (OTHER, 4),
        ("https://0.example/", 1),
        ("https://1.example/", 1),
        ("https://late.example/", 5),
    ]
    [day] = await periods.rows(DAY)
    exact = people_of(day, "referer")
    assert (exact["https://late.example/"], exact["https://5.example/"], exact[OTHER]) == (5, 2, 2)
    assert sum(exact.values()) == day["clicks"] == 12


async def test_hours_are_made_exact_in_the_order_in_which_clicks_lock_them(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever counts a late click meanwhile holds one of these hours, and may want the next."""
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 2)
    for code in ("b", "a"):
        for hour, dimension in enumerate(["os", "city", "browser", "referer", "os"]):
            values: list[dict[str, Any]] = [{dimension: f"{number}"} for number in range(4)]
            clicks = (a_click(YESTERDAY + hour * HOURS, code, **value) for value in values)
            await periods.count(*clicks)
    merged = await merging.Merging(periods.database, periods.clock, 9 * DAYS).merge(DAY, YESTERDAY, ["a", "b"])
    rows = [(one.short_code, one.starts_at) for one in merged.corrections]
    assert rows == [(code, YESTERDAY + hour * HOURS) for code in ("a", "b") for hour in range(5)]


async def test_values_that_are_too_long_for_an_hour_are_too_long_for_its_day(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 10)
    monkeypatch.setattr(merging, "MOST_IN_HOUR", 10)
    monkeypatch.setattr(merging, "MOST_IN_LONGER", 20)
    for number in range(12):
        referer = f"https://{number:02}.example/{'x' * 279}"
        await periods.count(*(a_click(YESTERDAY, referer=referer) for _ in range(number + 1)))
    await periods.fold()
    for row, kept in zip(await periods.rows(), (3, 6, 6), strict=True):
        counts = people_of(row, "referer")
        assert sorted(counts.values()) == sorted([*range(13 - kept, 13), sum(range(13 - kept))])
        assert OTHER in counts


@pytest.mark.parametrize("reason", ["too many clicks", "clicks are gone"])
async def test_values_that_cannot_be_counted_again_stay_as_they_are(
    periods: PeriodsWorld, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr("refract.services.analytics.domain.rollups.MOST_IN_HOUR", 2)
    if reason == "too many clicks":
        monkeypatch.setattr(merging, "EXACT_CLICKS", 3)
    else:
        periods.kept["clicks_kept"] = timedelta(hours=36)
    for number in range(4):
        await periods.count(a_click(YESTERDAY, city=f"city {number}"))
    [before] = await periods.rows(HOUR)
    await periods.fold()
    [hour] = await periods.rows(HOUR)
    [day] = await periods.rows(DAY)
    assert hour == before
    assert sum(people_of(day, "city").values()) == 4
    assert OTHER in people_of(day, "city")
