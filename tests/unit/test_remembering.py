"""What is remembered of a link: found while nothing was clicked in its stretch, bounded, and forgotten in turn."""

from datetime import UTC, datetime
from typing import Any

from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, minute_of, moment_of
from refract.services.analytics.queries.covering import Folded
from refract.services.analytics.queries.remembering import Remembered, Versions

DAY_MINUTES = 24 * 60
MARCH = minute_of(datetime(2026, 3, 1, tzinfo=UTC))
APRIL = minute_of(datetime(2026, 4, 1, tzinfo=UTC))


def row(span: int, start: int, clicks: int) -> dict[str, Any]:
    return {"span": span, "starts_at": moment_of(start), "clicks": clicks}


def test_a_version_is_of_all_rows_that_a_stretch_lies_in() -> None:
    folded = Folded(APRIL, MARCH)
    days = [row(DAY, MARCH + number * DAY_MINUTES, 10) for number in range(3)]

    def version(*rows: dict[str, Any]) -> object:
        return Versions(folded, rows).of(MARCH + 5, MARCH + DAY_MINUTES + 1)

    before = version(*days)
    assert version(*reversed(days)) == before
    assert version(days[0], days[1], row(DAY, MARCH + 2 * DAY_MINUTES, 11)) == before, "another day"
    assert version(row(DAY, MARCH, 11), *days[1:]) != before
    assert version(days[0], row(DAY, MARCH + DAY_MINUTES, 11), days[2]) != before
    assert version(days[0], days[2]) != before
    assert version() != before


def test_a_month_with_as_many_clicks_as_its_day_had_is_something_else() -> None:
    folded, other = Folded(APRIL, APRIL), Folded(APRIL, MARCH)
    month = Versions(folded, [row(MONTH, MARCH, 10)]).of(MARCH, MARCH + DAY_MINUTES)
    assert month != Versions(other, [row(DAY, MARCH, 10)]).of(MARCH, MARCH + DAY_MINUTES)
    assert month != Versions(other, [row(HOUR, MARCH, 10)]).of(MARCH, MARCH + DAY_MINUTES)


def test_what_waits_to_be_folded_again_has_no_version() -> None:
    stale = MARCH + DAY_MINUTES
    versions = Versions(Folded(APRIL, MARCH, frozenset({(DAY, stale), (MONTH, MARCH)})), [row(DAY, MARCH, 10)])
    assert versions.of(MARCH, stale) is not None
    assert versions.of(stale + DAY_MINUTES, stale + 2 * DAY_MINUTES) is not None
    assert versions.of(stale - 1, stale + 1) is None
    assert versions.of(stale + DAY_MINUTES - 1, APRIL) is None


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    remembered: Remembered[str] = Remembered(most_bytes=100)
    remembered.keep("a", "first", 40)
    remembered.keep("b", "second", 40)
    assert remembered.find("a") == "first"
    remembered.keep("c", "third", 40)
    assert (remembered.find("a"), remembered.find("b"), remembered.find("c")) == ("first", None, "third")
    remembered.keep("a", "again", 50)
    assert (remembered.find("a"), remembered.find("c")) == ("again", "third")
    remembered.keep("d", "too large", 101)
    assert [remembered.find(key) for key in "acd"] == [None, None, None]
