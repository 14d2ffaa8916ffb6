"""The numbers inside a period, packed, and rows that grow click by click."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.domain.parts import PARTS, pack_parts, part_entries, unpack_parts, with_one_more
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH
from refract.services.analytics.domain.rollups import COLUMNS, row_with
from refract.services.analytics.domain.sketches import Sketch, count_stored
from refract.services.analytics.domain.tallies import MOST_IN_HOUR, MOST_IN_LONGER, OTHER, Tally
from tests.support.clocks import START


def click(number: int = 0, minutes: int = 0, **fields: Any) -> Click:
    return Click(
        event_id=str(number),
        short_code="abc",
        user_id="owner",
        user_email="",
        occurred_at=START + timedelta(minutes=minutes),
        visitor=b"%d" % number,
        **fields,
    )


@st.composite
def parts(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    span = draw(st.sampled_from([HOUR, DAY, MONTH]))
    largest = draw(st.sampled_from([1, 2**8 - 1, 2**8, 2**16 - 1, 2**16, 2**32 - 1]))
    count = st.one_of(st.just(0), st.integers(min_value=0, max_value=largest))
    bots = draw(st.lists(count, min_size=PARTS[span], max_size=PARTS[span]))
    people = draw(st.lists(count, min_size=PARTS[span], max_size=PARTS[span]))
    return span, [max(pair) for pair in zip(bots, people, strict=True)], bots


@given(parts())
def test_parts_come_back_as_they_were_packed(drawn: tuple[int, list[int], list[int]]) -> None:
    span, clicks, bots = drawn
    packed = pack_parts(clicks, bots)
    assert unpack_parts(packed, span) == (clicks, bots)
    pairs = zip(clicks, bots, strict=True)
    assert part_entries(packed, span) == {part: pair for part, pair in enumerate(pairs) if pair[0]}


@given(parts(), st.data())
def test_one_click_more_gives_the_bytes_that_packing_would(
    drawn: tuple[int, list[int], list[int]], data: st.DataObject
) -> None:
    span, clicks, bots = drawn
    part = data.draw(st.integers(min_value=0, max_value=PARTS[span] - 1))
    more = with_one_more(pack_parts(clicks, bots), part, span)
    clicks[part] += 1
    assert more in (None, pack_parts(clicks, bots))


def test_a_row_that_gets_click_after_click_is_packed_anew_only_where_its_form_changes() -> None:
    clicks, anew = [0] * 60, []
    stored = None
    for number in range(60 * 300):
        part = number * 7 % 60
        clicks[part] += 1
        changed = with_one_more(stored, part, HOUR)
        stored = pack_parts(clicks, [0] * 60)
        if changed is None:
            anew.append(number)
        else:
            assert changed == stored
    assert anew == [0, 19, *range(60 * 255, 60 * 300)]


@pytest.mark.parametrize("stored", [b"\x01", b"\x01ab", b"\x01\x46\x01\x00", b"\x04" + bytes(59), b"\x07" + bytes(60)])
def test_what_are_no_parts_gets_no_click(stored: bytes) -> None:
    assert with_one_more(stored, 3, HOUR) is None
    with pytest.raises(ValueError, match="parts of a period"):
        row_with([click()], HOUR, {**dict.fromkeys(COLUMNS), "clicks": 1, "bot_clicks": 0, "parts": stored}, whole=True)


_SOME = st.lists(
    st.builds(
        click,
        st.integers(min_value=0, max_value=30),
        st.integers(min_value=0, max_value=59),
        bot=st.booleans(),
        country=st.sampled_from(["", "DE", "FR"]),
        city=st.sampled_from(["", "Köln", "Paris"]),
    ),
    min_size=1,
    max_size=40,
)


@given(_SOME, st.sampled_from([HOUR, DAY, MONTH]))
def test_clicks_one_by_one_come_to_the_same_row_as_all_at_once(clicks: list[Click], span: int) -> None:
    stored: dict[str, Any] | None = None
    for one in clicks:
        changed = row_with([one], span, stored, whole=True)
        if stored is not None:
            changed = {name: stored[name] if value is None else value for name, value in changed.items()}
        stored = changed
    assert stored is not None
    together = row_with(clicks, span, None, whole=True)
    for name in ("clicks", "bot_clicks", "parts"):
        assert stored[name] == together[name]
    for name in ("visitors", "bot_visitors"):
        assert Sketch.decode(stored[name]).exact == Sketch.decode(together[name]).exact
        assert count_stored(stored[name]) == len({one.visitor for one in clicks if one.bot == (name != "visitors")})
    for dimension in DIMENSIONS:
        one_by_one, at_once = Tally.decode(stored[f"by_{dimension}"]), Tally.decode(together[f"by_{dimension}"])
        assert (one_by_one.people, one_by_one.bots) == (at_once.people, at_once.bots)


def test_a_period_with_one_click_takes_few_bytes() -> None:
    def size(clicks: list[int], bots: list[int]) -> int:
        packed = pack_parts(clicks, bots)
        return 0 if packed is None else len(packed)

    assert size([0] * 59 + [1], [0] * 60) == 1 + 3
    assert size([0] * 59 + [300], [0] * 60) == 1 + 5
    assert size([0] * 59 + [70_000], [0] * 60) == 1 + 9
    assert size([7] * 60, [0] * 60) == 1 + 60
    assert size([7] * 60, [1] * 60) == 1 + 2 * 60
    assert size([7] * 59 + [300], [1] * 60) == 1 + 2 * 2 * 60
    assert size([7] * 30 + [0] * 30, [1] * 30 + [0] * 30) == 1 + 3 * 30
    assert pack_parts([0] * 60, [0] * 60) is None
    assert unpack_parts(None, MONTH) == ([0] * 31, [0] * 31)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x00",
        b"\x01",
        b"\x01\x00",
        b"\x01\x3c\x01\x00",
        b"\x02\x00\x01\x00",
        b"\x03\x3c" + bytes(8),
        b"\x04" + bytes(59),
        b"\x05" + bytes(60),
        b"\x06" + bytes(239),
        b"\x07" + bytes(60),
        b"\x08" + bytes(241),
        b"\x09" + bytes(240),
        b"\x0a" + bytes(60),
    ],
)
def test_what_are_no_parts_is_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="not the parts"):
        unpack_parts(stored, HOUR)


def test_a_column_that_stays_is_not_written() -> None:
    first = row_with([click(country="DE")], HOUR, None, whole=True)
    second = row_with([click(browser="Chrome 120")], HOUR, first, whole=True)
    assert set(first) == set(second) == set(COLUMNS)
    assert first["by_country"] is not None
    assert second["by_country"] is None
    assert second["clicks"] == 2
    thin = row_with([click(country="DE", bot=True)], HOUR, first, whole=False)
    assert (thin["clicks"], thin["bot_clicks"]) == (2, 1)
    assert [name for name in COLUMNS[3:] if thin[name] is not None] == []


@pytest.mark.parametrize(("span", "most"), [(HOUR, MOST_IN_HOUR), (DAY, MOST_IN_LONGER), (MONTH, MOST_IN_LONGER)])
def test_a_dimension_with_too_many_values_keeps_the_sum(span: int, most: int) -> None:
    frequent = [click(city="Berlin")] * 3
    row = row_with([*frequent, *(click(city=f"city {number}") for number in range(most + 10))], span, None, whole=True)
    tally = Tally.decode(row["by_city"])
    assert len(tally.people) == most
    assert tally.people["Berlin"] == 3
    assert tally.people[OTHER] == 12
    again = row_with([click(city="Berlin"), click(city="yet another")], span, row, whole=True)
    tally = Tally.decode(again["by_city"])
    assert (tally.people["Berlin"], sum(tally.people.values())) == (4, most + 15)


@pytest.mark.parametrize(
    ("span", "part"),
    [(HOUR, START.minute + 5), (DAY, START.hour * 4), (MONTH, START.day - 1)],
    ids=["hour", "day", "month"],
)
def test_each_span_counts_in_its_own_parts(span: int, part: int) -> None:
    row = row_with([click(bot=True)], span, None, whole=True)
    later = Click(
        **{name: getattr(click(), name) for name in Click.__struct_fields__}
        | {"occurred_at": START + timedelta(minutes=5)}
    )
    row = row_with([later], span, row, whole=True)
    clicks, bots = unpack_parts(row["parts"], span)
    assert clicks[part] >= 1
    assert (sum(clicks), sum(bots)) == (2, 1)


def test_every_dimension_has_its_column() -> None:
    assert COLUMNS[-len(DIMENSIONS) :] == tuple(f"by_{name}" for name in DIMENSIONS)
    assert set(DIMENSIONS) <= set(Click.__struct_fields__)
