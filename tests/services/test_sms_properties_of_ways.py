"""The last five of the eleven correctness properties of document 003, on real servers and on the embedded twins."""

import logging
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.runtime.metrics import Metrics
from refract.services.sms.api import OUTBOUND
from refract.services.sms.commands.delivering import Delivering, message_in
from refract.services.sms.domain.copies import key_of
from refract.services.sms.reactions import SENDERS, Reading, RecordInbox
from tests.support.sms import LIMITED, SENT, SmsWorld, all_at_once, gateway, sms
from tests.support.sms_cases import LIMITS_AND_USES, MESSAGES, WINDOWS, hundred_cases
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["gateway", "sms"]

pytestmark = pytest.mark.usefixtures("patient_locks")

Found = dict[str, list[tuple[str, str]]]
"""The values and ids of records by their keys, in order."""


@pytest.fixture
async def in_log(gateway: SmsWorld) -> AsyncIterator[Found]:
    """What a reader has found in the log so far."""
    found: Found = {}

    async def read() -> None:
        async with gateway.records.reader(OUTBOUND, "property-7") as reader:
            while True:
                for record in await reader.next_batch():
                    entry = record.value.decode(), record.headers["message-id"]
                    found.setdefault(record.key, []).append(entry)

    async with running(read):
        yield found


@hundred_cases
@given(messages=st.lists(MESSAGES, min_size=1, max_size=3))
async def test_property_7_what_was_sent_is_in_the_log(gateway: SmsWorld, in_log: Found, messages: list[str]) -> None:
    user_id = await gateway.plant(10, 10, 0, 0)
    assert [await gateway.said(user_id, message) for message in messages] == [SENT] * len(messages)
    found = await eventually(lambda: _all_of(in_log, user_id, len(messages)), interval=0.003)
    assert [value for value, _ in found] == [f"{user_id}: {message}" for message in messages]
    assert len({message_id for _, message_id in found}) == len(messages)


def _all_of(found: Found, user_id: int, number: int) -> list[tuple[str, str]]:
    records = found.get(str(user_id), [])
    return records if len(records) >= number else []


@pytest.fixture
async def sender(sms: SmsWorld) -> AsyncIterator[None]:
    """The reader that sends is at work, and does not rest between batches: each case waits for it."""
    reading = Reading(OUTBOUND, SENDERS, message_in, Delivering(sms.database, sms.clock).send, rest=0.0)
    async with running(RecordInbox(reading, sms.records, Metrics()).run):
        yield


@pytest.mark.usefixtures("sender")
@hundred_cases
@given(message=MESSAGES)
async def test_property_8_what_is_read_is_logged_as_sent(
    sms: SmsWorld, caplog: pytest.LogCaptureFixture, message: str
) -> None:
    caplog.set_level(logging.INFO)
    caplog.clear()
    user_id = await sms.plant(10, 10, 0, 0)
    assert await sms.said(user_id, message) == SENT
    expected = f"SMS Sent: {user_id}: {message}"
    await eventually(lambda: expected in [record.getMessage() for record in caplog.records], interval=0.003)


@hundred_cases
@given(numbers=LIMITS_AND_USES, minutes=WINDOWS, elapsed=st.floats(0, 0.5) | st.floats(1, 1.9))
async def test_property_9_a_copy_is_filled_where_there_is_none_and_decides_where_it_refuses(
    sms: SmsWorld, numbers: tuple[int, int], minutes: int, elapsed: float
) -> None:
    limit, used = numbers
    user_id = await sms.plant(limit, minutes, used, elapsed * 60 * minutes)
    over = elapsed >= 1
    fits = over or used < limit
    assert await sms.said(user_id) == (SENT if fits else LIMITED)
    copy = await sms.copy(user_id)
    assert (copy["rateLimit"], copy["currentCount"]) == (str(limit), str((0 if over else used) + fits))
    passed = 0 if over else int(elapsed * minutes)
    assert sms.state.lives[key_of(user_id)] in {60 * (minutes - passed), 60 * (minutes - passed - 1)}
    # From here on the copy says something else than the database, and is believed where it refuses.
    full = {"rateLimit": 3, "currentCount": 3, "resetsAt": sms.clock.milliseconds() + 60_000, "madeAt": 0}
    await sms.state.write(key_of(user_id), full, 60)
    before = await sms.limit(user_id)
    assert await sms.said(user_id) == LIMITED
    assert await sms.limit(user_id) == before


@hundred_cases
@given(numbers=LIMITS_AND_USES, new_limit=st.integers(1, 3))
async def test_property_10_a_new_limit_leaves_no_copy_of_the_old_one(
    sms: SmsWorld, numbers: tuple[int, int], new_limit: int
) -> None:
    limit, used = numbers
    user_id = await sms.plant(limit, 10, used, 0)
    await sms.send(user_id)
    assert await sms.copy(user_id) != {}
    await sms.configure(user_id, new_limit, 10)
    assert await sms.copy(user_id) == {}
    assert [await sms.said(user_id) for _ in range(new_limit + 1)] == [SENT] * new_limit + [LIMITED]


@hundred_cases
@given(numbers=LIMITS_AND_USES, sends=st.integers(1, 5), with_copy=st.booleans())
async def test_property_11_without_redis_the_limit_holds(
    sms: SmsWorld, numbers: tuple[int, int], sends: int, with_copy: bool
) -> None:
    limit, used = numbers
    user_id = await sms.plant(limit, 10, used, 0)
    if with_copy:
        copy = {"rateLimit": limit, "currentCount": 0, "resetsAt": 0, "madeAt": 0}
        await sms.state.write(key_of(user_id), copy, 600)
    sms.state.away = True
    try:
        answers = await all_at_once(sends, lambda number: sms.said(user_id, str(number)))
    finally:
        sms.state.away = False
    fit = min(sends, limit - used)
    assert sorted(answers) == [SENT] * fit + [LIMITED] * (sends - fit)
    assert (await sms.limit(user_id)).current_count == used + fit
    assert {attempt["path"] for attempt in sms.noted(user_id)} == {"row-lock"}
