"""The first six of the eleven correctness properties of document 003, on real servers and on the embedded twins."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sms import (
    INVALID,
    LIMITED,
    LIMITS,
    LOG_AWAY,
    SENT,
    SmsWorld,
    all_at_once,
    gateway,
    locked_sms,
    new_user,
    sms,
)
from tests.support.sms_cases import LARGEST, LIMITS_AND_USES, NUMBERS, WINDOWS, hundred_cases

__all__ = ["gateway", "locked_sms", "sms"]

pytestmark = pytest.mark.usefixtures("patient_locks")


@hundred_cases
@given(first=st.tuples(NUMBERS, NUMBERS), second=st.tuples(NUMBERS, NUMBERS))
async def test_property_1_a_limit_is_kept_as_it_was_set(
    sms: SmsWorld, first: tuple[int, int], second: tuple[int, int]
) -> None:
    user_id = new_user()
    for limit, minutes in (first, second):
        answer = await sms.configure(user_id, limit, minutes)
        kept = await sms.limit(user_id)
        assert (kept.rate_limit, kept.time_window, kept.current_count) == (limit, minutes, 0)
        assert abs(kept.last_refresh_time - datetime.now(UTC)) < timedelta(seconds=30)
        assert answer.json["lastRefreshTime"] == msgspec.to_builtins(kept.last_refresh_time)


WRONG_NUMBERS = st.one_of(
    st.integers(max_value=-1),
    st.integers(min_value=LARGEST + 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.just({}),
)
MISSING = object()


@hundred_cases
@given(
    wrong=st.dictionaries(
        st.sampled_from(["userId", "rateLimit", "timeWindow"]), WRONG_NUMBERS | st.just(MISSING), min_size=1
    )
)
async def test_property_2_a_wrong_limit_is_refused_and_changes_nothing(sms: SmsWorld, wrong: dict[str, Any]) -> None:
    if not await sms.database.fetch(LIMITS):
        await sms.user()
    before = await sms.database.fetch(LIMITS)
    fields = {"userId": before[0]["user_id"], "rateLimit": 7, "timeWindow": 9, **wrong}
    body = {name: value for name, value in fields.items() if value is not MISSING}
    answer = await sms.post("/api/config", msgspec.json.encode(body))
    assert (answer.status, answer.text) == INVALID
    assert await sms.database.fetch(LIMITS) == before


@hundred_cases
@given(numbers=LIMITS_AND_USES, minutes=WINDOWS, later=st.floats(0, 1e6))
async def test_property_3_a_window_that_is_over_begins_anew(
    gateway: SmsWorld, numbers: tuple[int, int], minutes: int, later: float
) -> None:
    limit, used = numbers
    user_id = await gateway.plant(limit, minutes, used, 60 * minutes + later)
    assert await gateway.said(user_id) == SENT
    kept = await gateway.limit(user_id)
    assert kept.current_count == 1
    assert abs(kept.last_refresh_time - datetime.now(UTC)) < timedelta(seconds=30)


@hundred_cases
@given(numbers=LIMITS_AND_USES, minutes=WINDOWS, elapsed=st.floats(0, 0.5))  # half a minute is left at least
async def test_property_4_in_a_window_so_many_are_sent_as_fit(
    gateway: SmsWorld, numbers: tuple[int, int], minutes: int, elapsed: float
) -> None:
    limit, used = numbers
    user_id = await gateway.plant(limit, minutes, used, elapsed * 60 * minutes)
    before = await gateway.limit(user_id)
    expected = SENT if used < limit else LIMITED
    assert await gateway.said(user_id) == expected
    kept = await gateway.limit(user_id)
    assert kept.current_count == used + (expected == SENT)
    assert kept.last_refresh_time == before.last_refresh_time


@hundred_cases
@given(numbers=LIMITS_AND_USES, minutes=WINDOWS, elapsed=st.floats(0, 2))
async def test_property_5_what_the_log_does_not_take_is_not_counted(
    locked_sms: SmsWorld, numbers: tuple[int, int], minutes: int, elapsed: float
) -> None:
    limit, used = numbers
    user_id = await locked_sms.plant(limit, minutes, used - (used == limit), elapsed * 60 * minutes)
    before = await locked_sms.limit(user_id)
    locked_sms.records.away = True
    assert await locked_sms.said(user_id) == LOG_AWAY
    assert await locked_sms.limit(user_id) == before


@hundred_cases
@given(limit=st.integers(1, 20), senders=st.integers(2, 12))
async def test_property_6_of_many_senders_one_gets_the_last_slot(
    locked_sms: SmsWorld, limit: int, senders: int
) -> None:
    user_id = await locked_sms.plant(limit, 10, limit - 1, 0)
    answers = await all_at_once(senders, lambda number: locked_sms.said(user_id, str(number)))
    assert sorted(answers) == [SENT] + [LIMITED] * (senders - 1)
    assert (await locked_sms.limit(user_id)).current_count == limit
    assert len(locked_sms.messages(user_id)) == 1
