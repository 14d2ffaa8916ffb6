"""Whatever clients and clocks do to the SMS gateway: a clear answer, nothing too many, nothing that is lost."""

import asyncio
import json
import logging
from datetime import datetime, timedelta

import msgspec
import pytest

from refract.kernel.clock import SystemClock
from refract.services.sms.domain.sends import LONGEST_MESSAGE
from tests.support import sms as support
from tests.support.databases import Location, empty_location
from tests.support.http import Client, head
from tests.support.sms import INVALID, LIMITED, LIMITS, SENT, SmsWorld, all_at_once, gateway, new_user, sms, sms_world
from tests.support.waiting import eventually

__all__ = ["empty_location", "gateway", "sms"]

REUSED = (422, "Idempotency-Key was used for another request")
ON_SQLITE = pytest.mark.parametrize("empty_location", ["embedded"], indirect=True)
"""What the servers have no part in."""

DEEP = "[" * 30_000 + "]" * 30_000
"""Deeper than any parser goes, and not too long for a body."""

NO_NUMBERS = ["NaN", "Infinity", "-Infinity", "1E0", "0x1", "01", "+1", "1_0", "--1", f"{2**63}", f"{2**64}", "9" * 400]
NO_JSON = [
    b'\xef\xbb\xbf{"userId": 1, "message": "x", "rateLimit": 1, "timeWindow": 1}',
    '{"userId": 1, "message": "x", "rateLimit": 1, "timeWindow": 1}'.encode("utf-16"),
    b'{"userId": 1, "message": "x", "rateLimit": 1, "timeWindow": 1} {}',
    b"{'userId': 1, 'message': 'x', 'rateLimit': 1, 'timeWindow': 1}",
    b'{"userId": 1, "message": "x", "rateLimit": 1, "timeWindow": 1,}',
    b'{"userId": 1, "message": "a\nb", "rateLimit": 1, "timeWindow": 1, "else": "\n"}',
    b'{"userId": 1, "message": "x", "rateLimit": 1, "timeWindow": 1, "else": %s}' % DEEP.encode(),
    b'{"message":' * 5_000,
]


@ON_SQLITE
async def test_bodies_that_are_nearly_right_are_wrong(gateway: SmsWorld) -> None:
    """Numbers that are none, other encodings, and what only some parsers take."""
    await gateway.configure(1)
    before = await gateway.database.fetch(LIMITS)
    bodies = [*NO_JSON]
    for name in ("userId", "rateLimit", "timeWindow"):
        for number in NO_NUMBERS:
            fields = {"userId": "1", "rateLimit": "1", "timeWindow": "1", "message": '"x"', name: number}
            text = ", ".join(f'"{field}": {value}' for field, value in fields.items())
            bodies.append(f"{{{text}}}".encode())
    for body in bodies:
        targets = ("/api/config",) if b'"userId": 1,' in body and body not in NO_JSON else ("/api/config", "/api/send")
        for target in targets:
            answer = await gateway.post(target, body)
            assert (answer.status, answer.text) == INVALID, (target, body[:100])
    assert await gateway.database.fetch(LIMITS) == before
    assert gateway.messages(1) == []


@ON_SQLITE
@pytest.mark.parametrize("size", [100_000, 1_000_000, 5_000_000])
async def test_a_message_as_long_as_a_book_is_refused_and_noted(gateway: SmsWorld, size: int) -> None:
    user_id = await gateway.user()
    body = msgspec.json.encode({"userId": user_id, "message": "x" * size})
    for target in ("/api/send", "/api/config"):
        async with await Client.connect(gateway.port) as client:
            answer = await client.post(target, body)
            assert (answer.status, answer.text) == INVALID
    assert [attempt["status"] for attempt in gateway.records.attempts] == ["invalid"]
    assert await gateway.said(user_id) == SENT


async def test_the_longest_message_arrives_however_it_is_written(gateway: SmsWorld) -> None:
    user_id = await gateway.user()
    message = "\U0001f600" * LONGEST_MESSAGE
    escaped = json.dumps({"userId": user_id, "message": message}).encode()
    plain = msgspec.json.encode({"userId": user_id, "message": message})
    assert len(escaped) > 12 * LONGEST_MESSAGE
    for body in (escaped, plain):
        answer = await gateway.post("/api/send", body)
        assert (answer.status, answer.text) == SENT
    assert gateway.messages(user_id) == [f"{user_id}: {message}"] * 2


ODD = [
    "a\nb",
    "a\r\nb",
    "\x1b[2Jx",
    "\x7f",
    "a\u2028b",
    "%s %d %n",
    "{0}",
    "7: forged",
    "SMS Sent: 7: forged",
    "\u202ex",
]


async def test_odd_messages_leave_as_they_came(gateway: SmsWorld) -> None:
    user_id = await gateway.user(limit=len(ODD))
    assert [await gateway.said(user_id, message) for message in ODD] == [SENT] * len(ODD)
    assert gateway.messages(user_id) == [f"{user_id}: {message}" for message in ODD]


@ON_SQLITE
@pytest.mark.parametrize(
    "kind",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/msgpack"],
)
async def test_a_body_is_json_whatever_its_content_type_says(gateway: SmsWorld, kind: str) -> None:
    headers = [f"Content-Type: {kind}"] if kind else []
    user_id = new_user()
    config = {"userId": user_id, "rateLimit": 1, "timeWindow": 1}
    assert (await gateway.post("/api/config", msgspec.json.encode(config), *headers)).status == 200
    message = msgspec.json.encode({"userId": user_id, "message": "x"})
    assert (await gateway.post("/api/send", message, *headers)).status == 200
    for target in ("/api/config", "/api/send"):
        answer = await gateway.post(target, msgspec.msgpack.encode({**config, "message": "x"}), *headers)
        assert (answer.status, answer.text) == INVALID


@ON_SQLITE
async def test_of_a_field_that_comes_twice_the_last_counts_everywhere(gateway: SmsWorld) -> None:
    first, last = await gateway.user(), await gateway.user()
    body = f'{{"userId": {first}, "message": "a", "userId": {last}, "message": "b"}}'.encode()
    assert (await gateway.post("/api/send", body)).status == 200
    assert (gateway.messages(first), gateway.messages(last)) == ([], [f"{last}: b"])
    assert [(await gateway.limit(user)).current_count for user in (first, last)] == [0, 1]
    assert (gateway.noted(first), len(gateway.noted(last))) == ([], 1)


@ON_SQLITE
async def test_a_client_that_leaves_before_the_end_of_its_body_is_no_error_of_ours(
    gateway: SmsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for target in ("/api/send", "/api/config"):
        async with await Client.connect(gateway.port) as client:
            await client.send(head("POST", target, "Content-Length: 100") + b'{"userId"')

    def completed() -> set[str]:
        return {vars(record).get("path", "") for record in caplog.records if record.msg == "request completed"}

    await eventually(lambda: completed() == {"/api/send", "/api/config"})
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert [attempt["status"] for attempt in gateway.records.attempts] == ["invalid"]


# Keys.


@ON_SQLITE
async def test_a_key_is_one_field_of_a_bounded_length(gateway: SmsWorld) -> None:
    user_id = await gateway.user(limit=100)
    body = msgspec.json.encode({"userId": user_id, "message": "x"})
    for fields in (["a", "b"], ["a", "a"], ["a", ""], [""], [" "], ["\t"], ["x" * 256], ["x" * 5_000]):
        answer = await gateway.post("/api/send", body, *(f"Idempotency-Key: {field}" for field in fields))
        assert (answer.status, answer.text) == INVALID, fields
    assert gateway.messages(user_id) == []
    good = [
        "x" * 255,
        "x" * 254,
        "a b",
        '"a"',
        "a,b",
        "\xe4\xff",
        "%00",
        "a;b=c",
        "'; DROP TABLE send_keys; --",
        "X",
        "x",
    ]
    for field in good:
        answers = [await gateway.post("/api/send", body, f"idempotency-KEY:  {field} ") for _ in range(2)]
        assert [(answer.status, answer.text) for answer in answers] == [SENT, SENT]
    assert len(gateway.messages(user_id)) == (await gateway.limit(user_id)).current_count == len(good)


async def test_of_two_messages_that_share_a_key_at_the_same_time_one_is_sent(gateway: SmsWorld) -> None:
    user_id = await gateway.user(limit=10)
    answers = await all_at_once(40, lambda number: gateway.said(user_id, f"text {number % 2}", "key-1"))
    assert sorted(answers) == [SENT] * 20 + [REUSED] * 20
    [message] = gateway.messages(user_id)
    winner = int(message[-1])
    assert all((answer == SENT) is (number % 2 == winner) for number, answer in enumerate(answers))
    assert (await gateway.limit(user_id)).current_count == 1


# Limits that change while they are used.

CHANGES: list[tuple[int, int, str]] = [
    (50, 100_000, "fixed"),
    (4, 20, "fixed"),
    (30, 60, "sliding"),
    (3, 20, "sliding"),
    (2, 100_000, "fixed"),
]


async def test_a_limit_that_changes_in_mid_load_is_the_new_one_at_once(gateway: SmsWorld) -> None:
    """From larger to smaller and from longer to shorter: of each at most so many are sent as it admits."""
    user_id = await gateway.user(limit=8, minutes=100_000)
    over = asyncio.Event()

    async def send() -> None:
        while not over.is_set():
            assert await gateway.said(user_id) in {SENT, LIMITED}

    clients = [asyncio.create_task(send()) for _ in range(8)]
    allowed = 8
    for limit, minutes, algorithm in CHANGES:
        await eventually(lambda: _is_full(gateway, user_id))
        await gateway.configure(user_id, limit, minutes, algorithm)
        allowed += limit
    await eventually(lambda: _is_full(gateway, user_id))
    over.set()
    await asyncio.gather(*clients)
    assert len(gateway.messages(user_id)) == allowed
    limit, minutes, algorithm = CHANGES[-1]
    kept = await gateway.limit(user_id)
    assert (kept.rate_limit, kept.time_window, kept.algorithm, kept.current_count) == (limit, minutes, algorithm, limit)
    copy = await gateway.copy(user_id)
    assert copy.get("rateLimit", str(limit)) == str(limit)


async def _is_full(world: SmsWorld, user_id: int) -> bool:
    return (await world.limit(user_id)).room == 0


async def test_configs_and_sends_at_the_same_time_wait_for_one_another(gateway: SmsWorld) -> None:
    """Whatever comes first: what is counted is what was sent since the last change."""
    user_id = await gateway.user(limit=5)
    answers = await asyncio.gather(
        *(gateway.said(user_id) for _ in range(60)),
        *(_set(gateway, user_id, limit) for limit in (9, 7, 5, 3)),
    )
    assert set(answers) <= {SENT, LIMITED, (200, "set")}
    kept = await gateway.limit(user_id)
    assert kept.current_count <= kept.rate_limit
    assert len(gateway.messages(user_id)) == answers.count(SENT) <= 5 + 9 + 7 + 5 + 3
    left = kept.room
    assert [await gateway.said(user_id) for _ in range(left + 2)] == [SENT] * left + [LIMITED] * 2


async def _set(world: SmsWorld, user_id: int, limit: int) -> tuple[int, str]:
    await world.configure(user_id, limit)
    return 200, "set"


# Clocks that jump.


class JumpingClock(SystemClock):
    """The clock of a machine that somebody sets; durations go on as they were."""

    ahead = timedelta()

    def now(self) -> datetime:
        """What the clock on the wall shows."""
        return super().now() + self.ahead

    def milliseconds(self) -> int:
        """The same."""
        return super().milliseconds() + round(self.ahead.total_seconds() * 1000)


@pytest.mark.parametrize("fast_path", [True, False], ids=["redis", "row-lock"])
@pytest.mark.parametrize("algorithm", ["fixed", "sliding"])
async def test_a_clock_that_jumps_lets_nothing_more_through_in_its_window(
    empty_location: Location,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    *,
    fast_path: bool,
) -> None:
    """Nobody is told to wait for longer than a window either, whether others have told us of the new time or not."""
    monkeypatch.setattr(support, "SystemClock", JumpingClock)
    async with sms_world(empty_location, request, fast_path=fast_path) as world:
        user_id, other = await world.user(limit=3, minutes=10, algorithm=algorithm), await world.user(limit=100)
        assert [await world.said(user_id) for _ in range(4)] == [SENT] * 3 + [LIMITED]
        for index, seconds in enumerate((-3_600, -3_300, -86_400, -86_100, -3_600 * 24 * 400)):
            monkeypatch.setattr(JumpingClock, "ahead", timedelta(seconds=seconds))
            if index % 2:
                assert await world.said(other) == SENT
            answer = await world.send(user_id)
            assert (answer.status, answer.text) == LIMITED
            assert 1 <= int(answer.headers["retry-after"]) <= 611, seconds
        assert len(world.messages(user_id)) == 3
        assert (await world.limit(user_id)).current_count == 3
