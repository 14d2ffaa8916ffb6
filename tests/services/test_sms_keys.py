"""Sends that may be repeated: a key is sent and counted once, whatever happens in between."""

import asyncio
from datetime import timedelta

import pytest

from refract.runtime.statements import Statement
from tests.support.sms import (
    LIMITED,
    LOG_AWAY,
    SENT,
    UNKNOWN,
    SmsWorld,
    all_at_once,
    gateway,
    locked_sms,
    new_user,
    sms,
)

__all__ = ["gateway", "locked_sms", "sms"]

pytestmark = pytest.mark.usefixtures("patient_locks")

REUSED = (422, "Idempotency-Key was used for another request")
AGE = Statement(
    "age_keys", "Makes keys older.", "UPDATE send_keys SET created_at = :created_at WHERE user_id = :user_id"
)


def ids(world: SmsWorld, user_id: int) -> list[str]:
    return [record.headers["message-id"] for record in world.records.published if record.key == str(user_id)]


async def test_a_repeat_is_neither_sent_nor_counted(gateway: SmsWorld) -> None:
    user_id = await gateway.user(limit=2)
    assert [await gateway.said(user_id, "hello", "key-1") for _ in range(3)] == [SENT] * 3
    assert gateway.messages(user_id) == [f"{user_id}: hello"]
    assert (await gateway.limit(user_id)).current_count == 1
    [key] = await gateway.keys(user_id)
    assert (key["status"], key["message_id"]) == ("sent", ids(gateway, user_id)[0])
    attempts = gateway.noted(user_id)
    assert [(attempt["status"], attempt["reason"]) for attempt in attempts] == [
        ("sent", ""),
        ("sent", "repeated"),
        ("sent", "repeated"),
    ]


async def test_a_repeat_is_good_when_the_limit_is_used_up(gateway: SmsWorld) -> None:
    user_id = await gateway.user(limit=1)
    assert await gateway.said(user_id, "hello", "key-1") == SENT
    assert [await gateway.said(user_id), await gateway.said(user_id)] == [LIMITED] * 2
    assert await gateway.said(user_id, "hello", "key-1") == SENT
    assert await gateway.said(user_id, "hello", "key-2") == LIMITED
    assert len(gateway.messages(user_id)) == len(await gateway.keys(user_id)) == 1


async def test_a_key_stands_for_one_message_of_one_user(gateway: SmsWorld) -> None:
    one, other = await gateway.user(), await gateway.user()
    assert await gateway.said(one, "hello", "key-1") == SENT
    assert await gateway.said(one, "goodbye", "key-1") == REUSED
    assert await gateway.said(other, "hello", "key-1") == SENT
    assert (len(gateway.messages(one)), len(gateway.messages(other))) == (1, 1)
    assert (await gateway.limit(one)).current_count == 1
    assert ids(gateway, one) != ids(gateway, other)
    assert gateway.noted(one)[1]["status"] == "invalid"


async def test_a_refusal_is_not_remembered(gateway: SmsWorld) -> None:
    user_id = await gateway.user(limit=1, used=1)
    assert await gateway.said(user_id, "hello", "key-1") == LIMITED
    assert await gateway.keys(user_id) == []
    await gateway.age(user_id, 3_600)
    assert await gateway.said(user_id, "hello", "key-1") == SENT
    assert await gateway.said(new_user(), "hello", "key-1") == UNKNOWN


async def test_counted_and_not_sent_is_sent_by_the_repeat_under_the_same_id_and_not_counted_again(
    sms: SmsWorld,
) -> None:
    user_id = await sms.user(limit=1)
    sms.records.away = True
    assert [await sms.said(user_id, "hello", "key-1") for _ in range(2)] == [LOG_AWAY] * 2
    sms.records.away = False
    [counted] = await sms.keys(user_id)
    assert (counted["status"], (await sms.limit(user_id)).current_count) == ("counted", 1)
    assert await sms.said(user_id, "hello", "key-1") == SENT
    assert (await sms.keys(user_id))[0]["status"] == "sent"
    assert ids(sms, user_id) == [counted["message_id"]]
    assert (await sms.limit(user_id)).current_count == 1


async def test_behind_the_lock_what_was_counted_before_is_sent_and_marked(sms: SmsWorld) -> None:
    user_id = await sms.user(limit=1)
    sms.records.away = True
    assert await sms.said(user_id, "hello", "key-1") == LOG_AWAY
    sms.records.away, sms.state.away = False, True
    assert await sms.said(user_id, "hello", "key-1") == SENT
    [key] = await sms.keys(user_id)
    assert (key["status"], ids(sms, user_id)) == ("sent", [key["message_id"]])
    assert (await sms.limit(user_id)).current_count == 1


async def test_what_the_log_did_not_take_behind_the_lock_leaves_no_key_and_the_repeat_has_the_same_id(
    locked_sms: SmsWorld,
) -> None:
    user_id, twin = await locked_sms.user(), await locked_sms.user()
    locked_sms.records.away = True
    assert await locked_sms.said(user_id, "hello", "key-1") == LOG_AWAY
    assert await locked_sms.keys(user_id) == []
    locked_sms.records.away = False
    assert [await locked_sms.said(user, "hello", "key-1") for user in (user_id, twin)] == [SENT, SENT]
    # As if the commit had been lost, and the message not: readers must know the repeat for what it is.
    async with locked_sms.database.transaction() as tx:
        await tx.execute(Statement("lose", "Loses all keys.", "DELETE FROM send_keys"))
    assert await locked_sms.said(user_id, "hello", "key-1") == SENT
    assert ids(locked_sms, user_id) == [ids(locked_sms, user_id)[0]] * 2


async def test_many_at_once_with_one_key_are_one(gateway: SmsWorld) -> None:
    user_id = await gateway.user(limit=10)
    answers = await all_at_once(40, lambda _: gateway.said(user_id, "hello", "key-1"))
    assert answers == [SENT] * 40
    assert len(gateway.messages(user_id)) == 1
    assert (await gateway.limit(user_id)).current_count == 1


async def test_many_keys_of_many_users_at_once_are_each_counted_once(gateway: SmsWorld) -> None:
    users = [await gateway.user(limit=4) for _ in range(5)]
    answers = await asyncio.gather(
        *(gateway.said(user, str(key), f"key-{key}") for user in users for key in range(6) for _ in range(3))
    )
    assert answers.count(SENT) == 5 * 4 * 3
    for user in users:
        assert (await gateway.limit(user)).current_count == len(set(ids(gateway, user))) == 4
        assert len(await gateway.keys(user)) == 4


async def test_after_a_day_a_key_is_free_and_its_message_a_new_one(gateway: SmsWorld) -> None:
    user_id = await gateway.user(limit=5)
    assert await gateway.said(user_id, "hello", "key-1") == SENT
    for age, message, expected in ((23, "goodbye", REUSED), (25, "goodbye", SENT), (0, "goodbye", SENT)):
        if age:
            async with gateway.database.transaction() as tx:
                await tx.execute(AGE, created_at=gateway.clock.now() - timedelta(hours=age), user_id=user_id)
        assert await gateway.said(user_id, message, "key-1") == expected
    assert gateway.messages(user_id) == [f"{user_id}: hello", f"{user_id}: goodbye"]
    assert len(set(ids(gateway, user_id))) == 2
    assert (await gateway.limit(user_id)).current_count == 2
