"""Setting limits and sending within them, over HTTP: statuses, texts, counts, and what leaves."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from refract.services.sms.commands import configuring, sending
from refract.services.sms.domain.sends import LONGEST_MESSAGE
from tests.support.sms import (
    DATABASE_AWAY,
    INVALID,
    LIMITED,
    LIMITS,
    LOG_AWAY,
    SENT,
    UNKNOWN,
    SmsWorld,
    all_at_once,
    gateway,
    locked_sms,
    new_user,
    sms,
    sms_world,
)

__all__ = ["gateway", "locked_sms", "sms"]

pytestmark = pytest.mark.usefixtures("patient_locks")


# Setting limits.


async def test_a_limit_is_answered_in_the_words_of_the_document(sms: SmsWorld) -> None:
    user_id = new_user()
    answer = await sms.post(
        "/api/config", msgspec.json.encode({"userId": user_id, "rateLimit": 10, "timeWindow": 5, "else": 1})
    )
    shown = answer.json
    moment = datetime.fromisoformat(shown.pop("lastRefreshTime"))
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert shown == {"userId": user_id, "rateLimit": 10, "timeWindow": 5, "currentCount": 0, "algorithm": "fixed"}
    assert abs(moment - datetime.now(UTC)) < timedelta(minutes=1)
    assert re.search(rb'"lastRefreshTime":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"', answer.body)
    limit = await sms.limit(user_id)
    assert (limit.rate_limit, limit.time_window, limit.current_count) == (10, 5, 0)
    assert limit.last_refresh_time == moment


async def test_a_new_limit_begins_anew_and_its_copy_goes(sms: SmsWorld) -> None:
    user_id = await sms.user(limit=2, algorithm="sliding")
    assert [await sms.said(user_id) for _ in range(4)] == [SENT, SENT, LIMITED, LIMITED]
    before = await sms.limit(user_id)
    assert (await sms.copy(user_id)) != {}
    await sms.configure(user_id, 3, 7)
    after = await sms.limit(user_id)
    assert (after.rate_limit, after.time_window, after.algorithm) == (3, 7, "fixed")
    assert (after.current_count, after.slices, after.version) == (0, (), before.version + 1)
    assert after.last_refresh_time > before.last_refresh_time
    assert await sms.copy(user_id) == {}
    assert [await sms.said(user_id) for _ in range(4)] == [SENT, SENT, SENT, LIMITED]


BAD_NUMBERS = ["-1", "0.5", "1.0", "1e2", "true", "false", "null", '"1"', "[]", "{}", "2147483648", "9" * 30]


async def test_every_config_that_is_not_right_gets_the_same_400_and_changes_nothing(sms: SmsWorld) -> None:
    user_id = await sms.user()
    before = await sms.database.fetch(LIMITS)
    good = {"userId": str(user_id), "rateLimit": "3", "timeWindow": "2", "algorithm": '"fixed"'}
    cases = [b"", b"{}", b"[]", b"null", b"3", b'"text"', b"{", b"\xff", b'{"userId": 1', b"[" * 100_000]
    for name in ("userId", "rateLimit", "timeWindow"):
        cases += [_body({**good, name: bad}) for bad in BAD_NUMBERS]
        cases.append(_body({key: value for key, value in good.items() if key != name}))
    cases += [_body({**good, name: "0"}) for name in ("rateLimit", "timeWindow")]
    cases += [_body({**good, "algorithm": bad}) for bad in ('"leaky"', "null", "1", '""', '"FIXED"')]
    cases.append(_body({**good, "padding": '"' + "x" * 70_000 + '"'}))
    for body in cases:
        answer = await sms.post("/api/config", body)
        assert (answer.status, answer.text) == INVALID, body[:100]
        assert answer.headers["content-type"].startswith("text/plain")
    assert await sms.database.fetch(LIMITS) == before


def _body(fields: dict[str, str]) -> bytes:
    return ("{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}").encode()


@pytest.mark.parametrize("number", [0, 2**31 - 1])
async def test_the_smallest_and_the_greatest_user_are_users(gateway: SmsWorld, number: int) -> None:
    await gateway.configure(number, 2**31 - 1, 2**31 - 1)
    assert await gateway.said(number, "x" * LONGEST_MESSAGE) == SENT


# Sending.


async def test_a_message_leaves_under_its_user_with_an_id_and_the_correlation(gateway: SmsWorld) -> None:
    user_id = await gateway.user()
    body = msgspec.json.encode({"userId": user_id, "message": "Grüße, 世界 🌍\n"})
    answer = await gateway.post("/api/send", body, "X-Correlation-ID: trace-7")
    assert (answer.status, answer.text) == SENT
    assert answer.headers["content-type"].startswith("text/plain")
    [record] = [record for record in gateway.records.published if record.key == str(user_id)]
    assert (record.topic, record.value.decode()) == ("sms-outbound", f"{user_id}: Grüße, 世界 🌍\n")
    assert set(record.headers) == {"message-id", "correlation-id"}
    assert record.headers["correlation-id"] == "trace-7"
    assert re.fullmatch(r"[0-9a-f-]{36}", record.headers["message-id"])
    [attempt] = gateway.noted(user_id)
    assert (attempt["status"], attempt["reason"], attempt["correlation_id"]) == ("sent", "", "trace-7")
    assert attempt["path"] in {"redis", "row-lock"}


async def test_nobody_is_sent_to_without_a_limit(gateway: SmsWorld) -> None:
    user_id = new_user()
    assert await gateway.said(user_id) == UNKNOWN
    assert gateway.messages(user_id) == []
    [attempt] = gateway.noted(user_id)
    assert (attempt["status"], attempt["reason"]) == ("failed", "User Not Found")


@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
async def test_so_many_leave_as_fit_and_the_others_are_told_when(gateway: SmsWorld, algorithm: str) -> None:
    user_id = await gateway.user(limit=3, minutes=1, algorithm=algorithm)
    answers = [await gateway.send(user_id, str(number)) for number in range(5)]
    assert [(answer.status, answer.text) for answer in answers] == [SENT] * 3 + [LIMITED] * 2
    waits = [int(answer.headers["retry-after"]) for answer in answers[3:]]
    assert all(20 <= wait <= 62 for wait in waits), waits
    assert all("retry-after" not in answer.headers for answer in answers[:3])
    assert gateway.messages(user_id) == [f"{user_id}: {number}" for number in range(3)]
    assert (await gateway.limit(user_id)).current_count == 3
    assert [attempt["status"] for attempt in gateway.noted(user_id)] == ["sent"] * 3 + ["limited"] * 2


@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
async def test_whoever_waits_as_long_as_told_is_served(gateway: SmsWorld, algorithm: str) -> None:
    user_id = await gateway.user(limit=2, minutes=1, algorithm=algorithm)
    for _ in range(3):
        assert await gateway.said(user_id) == SENT
        # The second one, unless they were so far apart that a slot for one alone has come free.
        while (answer := await gateway.send(user_id)).status == 200:
            pass
        assert answer.status == 429
        await gateway.age(user_id, int(answer.headers["retry-after"]))
    assert 4 <= len(gateway.messages(user_id)) <= 6


async def test_every_message_that_is_not_right_gets_the_same_400_and_is_noted(gateway: SmsWorld) -> None:
    user_id = await gateway.user()
    good = {"userId": str(user_id), "message": '"hello"'}
    cases = [b"", b"{}", b"[]", b"null", b"3", b'"text"', b"{", b"\xff", b'{"userId": 1', b"[" * 100_000]
    cases += [_body({**good, "userId": bad}) for bad in BAD_NUMBERS]
    messages = ['""', '" "', '"\\t\\n "', '"\\u0000"', '"a\\u0000b"', "null", "1", "true", "[]", "{}", '"\\ud800"']
    messages.append('"' + "x" * (LONGEST_MESSAGE + 1) + '"')
    cases += [_body({**good, "message": bad}) for bad in messages]
    cases += [_body({"userId": str(user_id)}), _body({"message": '"hello"'})]
    cases.append(_body({**good, "padding": '"' + "x" * 70_000 + '"'}))
    for body in cases:
        answer = await gateway.post("/api/send", body)
        assert (answer.status, answer.text) == INVALID, body[:100]
        assert answer.headers["content-type"].startswith("text/plain")
    for key in ("", "x" * 256):
        answer = await gateway.post("/api/send", _body(good), f"Idempotency-Key: {key}")
        assert (answer.status, answer.text) == INVALID, key
    assert gateway.messages(user_id) == []
    assert (await gateway.limit(user_id)).current_count == 0
    attempts = gateway.records.attempts
    assert len(attempts) == len(cases) + 2
    assert {(attempt["status"], attempt["path"], attempt["reason"]) for attempt in attempts} == {
        ("invalid", "none", "Missing/Invalid Arguments")
    }
    assert {attempt["userId"] for attempt in attempts} == {user_id, None}


async def test_other_methods_and_paths_are_none_of_ours(sms: SmsWorld) -> None:
    assert (await sms.post("/api/other", b"{}")).status == 404
    client = sms.clients.pop()
    assert (await client.get("/api/send")).status == 405
    client.close()


# The servers behind it.


async def test_behind_the_lock_a_message_that_the_log_does_not_take_was_never_counted(locked_sms: SmsWorld) -> None:
    user_id = await locked_sms.user(limit=2)
    locked_sms.records.away = True
    assert [await locked_sms.said(user_id) for _ in range(3)] == [LOG_AWAY] * 3
    assert (await locked_sms.limit(user_id)).current_count == 0
    locked_sms.records.away = False
    assert [await locked_sms.said(user_id) for _ in range(3)] == [SENT, SENT, LIMITED]


async def test_counted_first_a_message_that_the_log_does_not_take_stays_counted(sms: SmsWorld) -> None:
    user_id = await sms.user(limit=2)
    sms.records.away = True
    assert await sms.said(user_id) == LOG_AWAY
    sms.records.away = False
    assert (await sms.limit(user_id)).current_count == 1
    assert [await sms.said(user_id) for _ in range(2)] == [SENT, LIMITED]
    assert [attempt["status"] for attempt in sms.noted(user_id)] == ["failed", "sent", "limited"]


async def test_without_the_database_nothing_is_sent(gateway: SmsWorld) -> None:
    user_id = await gateway.user()
    await gateway.database.close()
    assert await gateway.said(user_id) == DATABASE_AWAY
    answer = await gateway.post(
        "/api/config", msgspec.json.encode({"userId": user_id, "rateLimit": 1, "timeWindow": 1})
    )
    assert (answer.status, answer.text) == DATABASE_AWAY
    assert gateway.messages(user_id) == []


async def test_a_database_that_hangs_is_said_in_the_words_of_the_document(
    gateway: SmsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_id = await gateway.user(limit=100)
    monkeypatch.setattr(sending, "PATIENCE", 0.2)
    monkeypatch.setattr(configuring, "PATIENCE", 0.2)
    config = msgspec.json.encode({"userId": user_id, "rateLimit": 1, "timeWindow": 1})
    real, answering = gateway.database.transaction, asyncio.Event()

    @asynccontextmanager
    async def hanging() -> AsyncIterator[Any]:
        await answering.wait()
        async with real() as tx:
            yield tx

    monkeypatch.setattr(gateway.database, "transaction", hanging)
    sends = [asyncio.create_task(gateway.said(user_id, str(number))) for number in range(5)]
    answer = await gateway.post("/api/config", config)
    assert (answer.status, answer.text) == DATABASE_AWAY
    assert await asyncio.gather(*sends) == [DATABASE_AWAY] * 5
    answering.set()
    monkeypatch.undo()
    assert await gateway.said(user_id, "at last") == SENT
    assert f"{user_id}: at last" in gateway.messages(user_id)
    assert [attempt["status"] for attempt in gateway.noted(user_id)] == ["failed"] * 5 + ["sent"]


async def test_what_nobody_foresaw_is_a_500_in_plain_text(
    gateway: SmsWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_id = await gateway.user()
    monkeypatch.setattr(gateway.records, "published", None)  # whoever appends to it now, fails
    answer = await gateway.send(user_id)
    assert (answer.status, answer.text) == (500, "Internal Server Error")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "request failed" in caplog.text
    [attempt] = gateway.noted(user_id)
    assert attempt["status"] == "failed"


# Many at once.


@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
async def test_of_many_at_once_exactly_the_limit_is_sent(gateway: SmsWorld, algorithm: str) -> None:
    user_id = await gateway.user(limit=37, algorithm=algorithm)
    answers = await all_at_once(120, lambda number: gateway.said(user_id, str(number)))
    assert sorted(answers) == [SENT] * 37 + [LIMITED] * 83
    assert len(gateway.messages(user_id)) == 37
    assert (await gateway.limit(user_id)).current_count == 37


async def test_gateways_of_either_way_on_one_database_keep_one_limit(
    fresh_database: str, request: pytest.FixtureRequest
) -> None:
    async with (
        sms_world(fresh_database, request) as one,
        sms_world(fresh_database, request) as two,
        sms_world(fresh_database, request, fast_path=False) as three,
    ):
        users = [await one.user(limit=20, algorithm=algorithm) for algorithm in ("fixed", "sliding")]
        answers = await asyncio.gather(
            *(world.said(user) for user in users for world in (one, two, three) for _ in range(30))
        )
        assert sorted(answers) == [SENT] * 40 + [LIMITED] * 140
        assert [(await one.limit(user)).current_count for user in users] == [20, 20]
        assert sum(len(world.messages(user)) for user in users for world in (one, two, three)) == 40


async def test_users_do_not_wait_for_one_another_s_locks(locked_sms: SmsWorld) -> None:
    users = [await locked_sms.user(limit=3) for _ in range(30)]
    answers = await asyncio.gather(*(locked_sms.said(user) for user in users for _ in range(4)))
    assert answers.count(SENT) == 90
    assert [(await locked_sms.limit(user)).current_count for user in users] == [3] * 30
