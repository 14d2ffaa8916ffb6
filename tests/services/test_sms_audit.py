"""Attempts are kept once each, counted by the minute, found by filters, and summed up by user."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from refract.kernel.errors import Invalid
from refract.runtime.statements import Statement
from refract.services.sms.commands.auditing import Auditing
from refract.services.sms.domain.attempts import Status
from refract.services.sms.queries.attempts import page_of_attempts
from refract.services.sms.queries.requests import STATUSES, PageRequest, SummaryRequest
from tests.support.audit import ATTEMPTS, MINUTES, Audit, attempt, audit, minutes_before, sms_location
from tests.support.clocks import START
from tests.support.databases import Location, open_database
from tests.support.patience import patient

__all__ = ["audit", "patient", "sms_location"]


async def test_an_attempt_is_kept_as_it_was_noted(audit: Audit) -> None:
    noted = attempt(7, "failed", path="row-lock", reason="Kafka Down : Service Unavailable", message="grüße\n")
    assert await audit.keep(noted) == 1
    [row] = await audit.rows(ATTEMPTS)
    assert {name: row[name] for name in noted.__struct_fields__} == {
        name: getattr(noted, name) for name in noted.__struct_fields__
    }


async def test_an_attempt_that_comes_again_counts_once(audit: Audit) -> None:
    first, second = attempt(7), attempt(7, "limited")
    assert await audit.keep(first, first) == 1
    assert await audit.keep(first, second) == 1
    assert await audit.keep(second, first) == 0
    [minute] = await audit.rows(MINUTES)
    assert (minute["sent"], minute["limited"], minute["failed"], minute["invalid"]) == (1, 1, 0, 0)


@pytest.mark.usefixtures("patient")
async def test_two_readers_with_the_same_attempts_count_them_once(audit: Audit, sms_location: Location) -> None:
    attempts = [attempt(number % 5) for number in range(3_000)]
    other = await open_database(sms_location)
    try:
        kept = await asyncio.gather(
            *(
                Auditing(database).keep(same)
                for database in (audit.database, other)
                for same in (attempts, attempts[::-1])
            )
        )
    finally:
        await other.close()
    assert sum(kept) == 3_000
    assert sum(row["sent"] for row in await audit.rows(MINUTES)) == 3_000


async def test_attempts_of_nobody_are_shown_and_not_counted(audit: Audit) -> None:
    await audit.keep(attempt(None, "invalid", path="none", message_id="", correlation_id=""))
    [shown] = (await audit.page()).attempts
    assert (shown.user_id, shown.status, shown.message_id, shown.reason) == (None, "invalid", UNSET, UNSET)
    assert await audit.rows(MINUTES) == []


async def test_pages_show_every_attempt_once_and_the_newest_first(audit: Audit) -> None:
    """Also those of one moment, and while others come in."""
    attempts = [
        attempt(number % 3, STATUSES[number % 4], at=START - timedelta(seconds=number // 7)) for number in range(43)
    ]
    await audit.keep(*attempts)
    shown, after = [], ""
    while True:
        page = await audit.page(limit="10", after=after)
        shown += page.attempts
        await audit.keep(attempt(1, at=START + timedelta(seconds=1)))
        if page.next_cursor is UNSET:
            break
        after = page.next_cursor
    expected = sorted(attempts, key=lambda one: (one.occurred_at, one.event_id), reverse=True)
    assert [one.event_id for one in shown] == [one.event_id for one in expected]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"user_id": "1"}, {"a", "b", "c"}),
        ({"user_id": "01"}, {"a", "b", "c"}),
        ({"status": "limited"}, {"b", "d"}),
        ({"user_id": "1", "status": "limited"}, {"b"}),
        ({"start": "2026-03-01T11:58:00Z"}, {"a", "b", "d"}),
        ({"end": "2026-03-01T11:58:00Z"}, {"c"}),
        ({"start": "2026-03-01T12:57:00 01:00", "end": "2026-03-01T12:59:00+01:00"}, {"b", "c"}),
        ({"start": "2026-03-01", "end": "2026-03-01"}, {"a", "b", "c", "d"}),
        ({"end": "2026-02-28"}, set()),
        ({"user_id": "3"}, set()),
    ],
)
async def test_filters_are_taken_together(audit: Audit, parameters: dict[str, str], expected: set[str]) -> None:
    await audit.keep(
        attempt(1, message="a"),
        attempt(1, "limited", at=minutes_before(2), message="b"),
        attempt(1, "invalid", at=minutes_before(3), message="c"),
        attempt(2, "limited", message="d"),
    )
    assert {one.message for one in (await audit.page(**parameters)).attempts} == expected


WRONG: list[dict[str, str]] = [
    {"user_id": wrong} for wrong in ("-1", "a", "1.5", " 1", "2147483648", "1" * 400, "1\0", "٣", "true")
]
WRONG += [
    {name: wrong}
    for name in ("start", "end")
    for wrong in (
        "yesterday",
        "2026-02-31",
        "2026-03-01T12:00:00",
        "0001-01-01",
        "9999-12-31",
        "1" * 50,
        "\0",
        "²026-03-01",
    )
]
WRONG += [{"limit": wrong} for wrong in ("0", "-1", "ten", "1.5", "\0")]
WRONG += [
    {"start": "2026-03-02", "end": "2026-03-01"},
    {"start": "2026-03-01T12:00:00Z", "end": "2026-03-01T12:00:00Z"},
]


@pytest.mark.parametrize("parameters", WRONG)
def test_parameters_that_make_no_sense_are_invalid(parameters: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        PageRequest.read(**parameters)
    with pytest.raises(Invalid):
        SummaryRequest.read(START, **parameters)


@pytest.mark.parametrize(
    "after", ["x", "-", "a-", "-a", "a-b-c", "0" * 500, "zzzzzzzzzzzzzzz-1", "1-00", "1-\0", "ü-1"]
)
def test_what_is_no_cursor_of_ours_is_invalid(after: str) -> None:
    with pytest.raises(Invalid):
        PageRequest.read(after=after)


@pytest.mark.parametrize("status", ["Sent", "all", "sent ", "\0"])
def test_what_is_no_status_is_invalid(status: str) -> None:
    with pytest.raises(Invalid):
        PageRequest.read(status=status)


@given(st.text(max_size=60))
def test_whatever_stands_in_a_parameter_is_read_or_invalid(text: str) -> None:
    for name in ("user_id", "status", "start", "end", "limit", "after"):
        try:
            PageRequest.read(**{name: text})
        except Invalid:
            continue


async def test_a_summary_counts_what_users_attempted(audit: Audit) -> None:
    """What hypothesis would make up is in the next test; this one can be checked by hand."""
    await audit.keep(
        *(attempt(1, at=minutes_before(10)) for _ in range(3)),
        attempt(1, "limited", at=minutes_before(9)),
        *(attempt(1, "limited", at=minutes_before(5)) for _ in range(3)),
        attempt(1, "failed", at=minutes_before(4)),
        *(attempt(2, "invalid", at=minutes_before(3)) for _ in range(9)),
        attempt(1, at=minutes_before(60 * 24 + 1)),
    )
    summary = await audit.summary()
    assert (summary.start, summary.end) == (START - timedelta(days=1), START)
    second, first = summary.users
    assert [first.user_id, second.user_id] == [1, 2]
    assert (first.attempts, first.sent, first.limited, first.failed, first.invalid) == (8, 3, 4, 1, 0)
    assert (second.attempts, second.invalid, second.limited_share) == (9, 9, 0.0)
    assert (first.limited_share, first.attempts_per_minute) == (0.5, round(8 / 1440, 6))
    assert (first.peak_minute, first.peak_attempts) == (minutes_before(10), 3), "the first of two that are as full"
    assert [user.user_id for user in (await audit.summary(limit="1")).users] == [2]
    assert [user.attempts for user in (await audit.summary(user_id="1", start="2026-02-27")).users] == [9]
    assert (await audit.summary(user_id="3")).users == []


async def test_minutes_to_come_do_not_make_a_rate_low(audit: Audit) -> None:
    await audit.keep(*(attempt(1, at=minutes_before(5)) for _ in range(20)))
    [user] = (await audit.summary(start="2026-03-01T11:50:00Z", end="2026-03-01")).users
    assert user.attempts_per_minute == 2.0


async def test_a_range_counts_every_minute_that_it_touches(audit: Audit) -> None:
    await audit.keep(attempt(1, at=minutes_before(5) + timedelta(seconds=50)), attempt(1, at=minutes_before(4)))
    summary = await audit.summary(start="2026-03-01T11:55:30Z", end="2026-03-01T11:55:31Z")
    assert (summary.start, summary.end) == (minutes_before(5), minutes_before(4))
    assert [user.attempts for user in summary.users] == [1]


def test_a_summary_goes_over_a_bounded_range() -> None:
    assert SummaryRequest.read(START, start="2026-03-01", end="2026-03-01").user_id is None
    with pytest.raises(Invalid):
        SummaryRequest.read(START, start="2026-02-28", end="2026-03-01")
    assert SummaryRequest.read(START, user_id="1", start="2025-03-01", end="2026-03-01").user_id == 1
    with pytest.raises(Invalid):
        SummaryRequest.read(START, user_id="1", start="2025-02-28", end="2026-03-01")


_ATTEMPTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(STATUSES), st.integers(0, 5), st.integers(0, 59)), max_size=40
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(made=_ATTEMPTS)
async def test_sums_are_those_of_the_attempts_themselves(
    audit: Audit, made: list[tuple[int, Status, int, int]]
) -> None:
    audit.clock.advance(86_400 * 2)
    now = audit.clock.now()
    attempts = [
        attempt(user, status, at=minutes_before(minute + 1, now) + timedelta(seconds=second))
        for user, status, minute, second in made
    ]
    await audit.keep(*attempts)
    for summary in (await audit.summary()).users:
        own = [one for one in attempts if one.user_id == summary.user_id]
        assert summary.attempts == len(own)
        for status in STATUSES:
            assert getattr(summary, status) == sum(one.status == status for one in own)
        by_minute = [sum(one.occurred_at.minute == minute for one in own) for minute in range(60)]
        assert summary.peak_attempts == max(by_minute)
        assert summary.peak_minute.minute in [minute for minute in range(60) if by_minute[minute] == max(by_minute)]
    assert {user.user_id for user in (await audit.summary()).users} == {one.user_id for one in attempts}


@pytest.mark.parametrize("status", [None, "failed"])
@pytest.mark.parametrize("of_one", [False, True])
async def test_a_page_is_found_by_an_index(audit: Audit, status: Any, of_one: bool) -> None:
    """However many attempts there are of other users and of other statuses, they are not looked at."""
    statement = page_of_attempts(status, of_one=of_one)
    in_postgresql = audit.database.dialect == "postgresql"
    explained = f"EXPLAIN {statement.sql}" if in_postgresql else f"EXPLAIN QUERY PLAN {statement.for_sqlite()}"
    async with audit.database.transaction() as tx:
        for way in ("seqscan", "sort", "bitmapscan") if in_postgresql else ():  # what it would do while there are few
            await tx.execute(Statement("without", "Forbids a way.", f"SET LOCAL enable_{way} = off"))
        request = PageRequest.read(user_id="1" if of_one else "")
        rows = await tx.fetch(
            Statement("explain", "Explains.", explained),
            user_id=request.user_id,
            start=request.start,
            end=request.end,
            occurred_at=request.cursor.moment,
            event_id=request.cursor.key,
            limit=21,
        )
    plan = "\n".join(str(value) for row in rows for value in row.values())
    index = "attempts_by_user" if of_one else "attempts_by_status"
    assert plan.count(index) == (1 if status else 4), plan
    assert "SCAN attempts" not in plan
    assert "Seq Scan" not in plan
