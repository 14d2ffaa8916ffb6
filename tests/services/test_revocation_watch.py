"""The gateway hears at once what identity took back, asks for what it may have missed, and never stops for lack of it.

Both modes: SQLite, the bus in a file and a call in the process; PostgreSQL, RabbitMQ and HTTP.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from refract.kernel.ids import new_event_id
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.messages import Message
from refract.runtime.tokens import Claims, TokenVerifier
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.domain.revocations import Revocations
from refract.services.gateway.reactions import RELOAD_SECONDS, RETRY_SECONDS, RevocationWatch
from refract.services.gateway.service import build_gateway
from refract.services.identity.api import UserRevoked
from tests.support.clocks import START, ManualClock
from tests.support.databases import empty_location
from tests.support.fault_proxy import FaultProxy
from tests.support.http import Client
from tests.support.http import running as serving
from tests.support.identity import PASSWORD, SECRET, identity, identity_location
from tests.support.revoking import ALICE, LATER, Door, claims, door, revoked
from tests.support.waiting import eventually
from tests.support.worlds import running

__all__ = ["door", "empty_location", "identity", "identity_location"]

on_one_mode = pytest.mark.parametrize("empty_location", ["embedded"], indirect=True)
on_the_broker = pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)


# Hearing.


async def test_what_is_heard_counts_at_once_without_a_question(door: Door) -> None:
    _, first, first_claims = await door.user()
    second_user, _, second_claims = await door.user()
    watch = door.watch(reload_seconds=600.0)
    async with running(watch.run, door.relay().run):
        await eventually(lambda: door.services.asked == 1)
        assert not door.dead(first_claims)
        await door.sign_out(first)
        await eventually(lambda: door.dead(first_claims))
        assert not door.dead(second_claims)
        await door.end_all(second_user)
        await eventually(lambda: door.dead(second_claims))
        assert door.services.asked == 1, "heard, and not asked for"


async def test_through_the_door_a_token_dies_by_signing_out_and_all_by_a_new_password(door: Door) -> None:
    tokens = TokenVerifier([SECRET], door.identity.clock)
    gateway = build_gateway(door.services, tokens=tokens, revocations=door.revocations)
    user, first, _ = await door.user()
    second, third = (door.identity.signer.sign(user.id, user.email).token for _ in range(2))
    server = await door.stack.enter_async_context(serving(gateway.application, fast_path=gateway.fast_path))

    async def ask(token: str, target: str = "/api/me", body: bytes = b"") -> int:
        async with await Client.connect(server.port) as client:
            method, bearer = "POST" if body else "GET", f"Authorization: Bearer {token}"
            return (await client.post(target, body, bearer, method=method)).status

    async def is_dead(token: str) -> bool:
        return await ask(token) == 401

    async with running(door.watch(reload_seconds=600.0).run, door.relay().run):
        await eventually(lambda: door.services.asked == 1)
        assert [await ask(token) for token in (first, second, third)] == [200, 200, 200]
        assert await ask(first, "/api/auth/logout", b"{}") == 204
        await eventually(lambda: is_dead(first))
        assert [await ask(token) for token in (second, third)] == [200, 200]
        assert (
            await ask(second, "/api/auth/password", b'{"current":"%b","new":"%b"}' % (PASSWORD.encode(), b"x" * 9))
            == 204
        )
        await eventually(lambda: is_dead(second))
        assert await is_dead(third)
        fresh = (await door.identity.login(user.email, "x" * 9)).json["token"]
        assert await ask(fresh) == 200


async def test_replays_and_events_out_of_order_do_no_harm(door: Door) -> None:
    await door.watch().begin()
    told = [revoked(generation=3), revoked(generation=1), revoked(token_id="t"), revoked(generation=2)]
    await door.publish(*told, *told, *reversed(told))
    await door.publish(revoked(token_id="the last"))
    await eventually(lambda: door.dead(claims(token_id="the last", generation=9)))
    assert [door.dead(claims(generation=number)) for number in range(5)] == [True, True, True, False, False]
    assert door.dead(claims(token_id="t", generation=9))
    assert not door.dead(claims(token_id="u", generation=9))


async def test_what_is_heard_while_it_loads_is_not_lost(door: Door) -> None:
    _, token, known = await door.user()
    await door.sign_out(token)
    watch = door.watch(reload_seconds=600.0)

    async def hear_meanwhile() -> None:
        """The answer is on its way, and does not have it."""
        await door.publish(revoked(token_id="meanwhile"))
        await eventually(lambda: door.dead(claims(token_id="meanwhile")))

    door.services.before = hear_meanwhile
    await watch.begin()
    assert door.dead(known)
    assert door.dead(claims(token_id="meanwhile"))


@on_one_mode
async def test_an_event_in_a_form_that_we_do_not_know_is_a_reason_to_ask(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(door.watch(reload_seconds=600.0).run):
        await eventually(lambda: door.services.asked == 1)
        good = Message.of(revoked(generation=1).stamped("c"))
        await door.bus.publish(Message(good.exchange, good.routing_key, b'{"of": "tomorrow"}', "id", mandatory=False))
        await eventually(lambda: door.services.asked == 2)
        assert "a revocation in a form that we do not know" in caplog.messages
        await door.publish(revoked(generation=1))
        await eventually(lambda: door.dead(claims()))


# Loading.


async def test_what_was_taken_back_before_the_start_is_known_before_the_door_opens(door: Door) -> None:
    """More than two pages of it."""
    columns = ("id", "user_id", "token_id", "generation", "until", "created_at")
    rows = [(new_event_id(), ALICE, f"t{number}", 0, LATER, START) for number in range(2_500)]
    rows.append((new_event_id(), ALICE, "", 2, LATER, START))
    rows.append((new_event_id(), ALICE, "over", 0, START, START))
    async with door.identity.database.transaction() as tx:
        await tx.insert_many("revocations", columns, rows)
    await door.watch().begin()
    assert door.services.asked == 3
    assert all(door.dead(claims(token_id=f"t{number}", generation=9)) for number in range(2_500))
    assert [door.dead(claims(generation=number)) for number in range(3)] == [True, True, False]
    assert not door.dead(claims(token_id="over", generation=9))


async def test_a_gap_is_a_reason_to_ask(door: Door, rabbitmq_url: str) -> None:
    """Another process wrote to the bus's file, or the connection to the broker was lost."""
    _, token, known = await door.user()
    async with AsyncExitStack() as stack:
        if door.identity.database.dialect == "sqlite":
            bus, other = door.bus, await door.identity.buses.open()
            queue = door.identity.buses.queue("anything", "#")
        else:
            broker = urlsplit(rabbitmq_url)
            proxy = await stack.enter_async_context(FaultProxy.to(broker.hostname or "", broker.port or 0))
            here = broker._replace(netloc=broker.netloc.replace(f":{broker.port}", f":{proxy.port}")).geturl()
            bus = RabbitBus(here)
            await bus.start()
            stack.push_async_callback(bus.close)
        async with running(door.watch(bus=bus, reload_seconds=600.0, retry_seconds=600.0).run):
            await eventually(lambda: door.services.asked == 1)
            await door.sign_out(token)  # and nobody sends it on
            if door.identity.database.dialect == "sqlite":
                await other.declare(queue)
            else:
                proxy.cut()
            await eventually(lambda: door.dead(known))


@on_the_broker
async def test_while_the_broker_is_away_identity_is_asked_all_the_time(door: Door, rabbitmq_url: str) -> None:
    _, token, known = await door.user()
    broker = urlsplit(rabbitmq_url)
    async with FaultProxy.to(broker.hostname or "", broker.port or 0) as proxy:
        here = broker._replace(netloc=broker.netloc.replace(f":{broker.port}", f":{proxy.port}")).geturl()
        bus = RabbitBus(here)
        await bus.start()
        async with running(door.watch(bus=bus, reload_seconds=600.0, retry_seconds=0.02).run):
            await eventually(lambda: door.services.asked == 1)
            proxy.swallow()
            proxy.cut()
            await eventually(lambda: door.services.asked > 3)
            await door.sign_out(token)
            await eventually(lambda: door.dead(known))
        await bus.close()


@on_one_mode
@pytest.mark.parametrize("alone", [False, True])
async def test_while_nothing_is_amiss_it_does_not_ask(
    door: Door, caplog: pytest.LogCaptureFixture, alone: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with running(door.watch(alone=alone, reload_seconds=600.0, retry_seconds=0.001).run):
        await eventually(lambda: door.services.asked == 1)
        await asyncio.sleep(0.1)  # a hundred looks at the bus
        assert door.services.asked == 1
    assert [record.message for record in caplog.records if record.name == "refract.gateway.revocations"] == []


async def test_without_a_bus_it_asks_by_time_alone(door: Door) -> None:
    _, token, known = await door.user()
    async with running(door.watch(alone=True, reload_seconds=0.05).run):
        await eventually(lambda: door.services.asked == 1)
        await door.sign_out(token)
        await eventually(lambda: door.dead(known))
    assert (RELOAD_SECONDS, RETRY_SECONDS) == (60.0, 1.0)


@on_one_mode
async def test_with_a_bus_it_asks_by_time_as_well(door: Door) -> None:
    """What identity could not send, because only its own way to the broker is lost."""
    _, token, known = await door.user()
    async with running(door.watch(reload_seconds=0.05).run):
        await eventually(lambda: door.services.asked == 1)
        await door.sign_out(token)
        await eventually(lambda: door.dead(known))


# Identity away.


async def test_identity_away_at_the_start_is_a_warning_and_asked_until_it_answers(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    _, token, known = await door.user()
    await door.sign_out(token)
    door.services.away = True
    watch = door.watch(reload_seconds=600.0, retry_seconds=0.01)
    await watch.begin()
    assert not door.dead(known)
    async with running(watch.run):
        await door.publish(revoked(token_id="meanwhile"))
        await eventually(lambda: door.dead(claims(token_id="meanwhile")))
        await eventually(lambda: door.services.asked > 5)
        assert not door.dead(known)
        door.services.away = False
        await eventually(lambda: door.dead(known))
    warnings = [record for record in caplog.records if record.name == "refract.gateway.revocations"]
    assert [record.message for record in warnings] == [
        "cannot load revocations; going on with those known",
        "revocations loaded",
    ]
    assert warnings[0].levelname == "WARNING"
    assert warnings[0].__dict__["reason"] == "ConnectionRefusedError"


@on_one_mode
async def test_what_is_known_stays_while_identity_is_away(door: Door) -> None:
    _, token, known = await door.user()
    await door.sign_out(token)
    async with running(door.watch(alone=True, reload_seconds=0.01, retry_seconds=0.01).run):
        await eventually(lambda: door.dead(known))
        door.services.away = True
        asked = door.services.asked
        await eventually(lambda: door.services.asked > asked + 5)
        assert door.dead(known)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"{}",
        b'{"revocations": [{"user_id": 7}]}',
        b'{"revocations": 7}',
        b'{"revocations": [], "next_cursor": "\xff"}',
        b'{"revocations": [], "more": ' + b"[" * 100_000,
    ],
    ids=lambda answer: f"{answer[:40]!r}",
)
async def test_an_answer_that_makes_no_sense_is_none(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    class Nonsense(InProcess):
        async def fetch(self, target: str, path: str, query: Mapping[str, str]) -> bytes:
            return answer

    watch = RevocationWatch(Nonsense({}), None, Revocations(), ManualClock())
    assert not await watch.load()
    assert "cannot load revocations; going on with those known" in caplog.messages


# Bounds.


@on_one_mode
async def test_more_than_there_is_room_for_is_an_error_in_the_log_and_lets_nobody_in(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.revocations = Revocations(limit=10)
    watch = door.watch()
    await watch.begin()
    for number in range(30):
        until = START + timedelta(minutes=number)
        await door.publish(UserRevoked(occurred_at=START, user_id=ALICE, token_id=f"t{number}", until=until))
    assert len(door.revocations) == 10
    for number in range(30):
        ended = Claims(ALICE, "", START, START + timedelta(minutes=number), f"t{number}")
        assert door.dead(ended)
    assert "more revocations than there is room for; older tokens are refused" in caplog.messages


@on_one_mode
async def test_what_is_over_is_forgotten(door: Door) -> None:
    watch = door.watch()
    await watch.begin()
    await door.publish(revoked(generation=1))
    assert len(door.revocations) == 1
    door.identity.clock.advance(86_400)
    assert await watch.load()
    assert len(door.revocations) == 0


@on_one_mode
async def test_a_watch_that_is_started_again_listens_once(door: Door) -> None:
    heard: list[object] = []
    listen = door.bus.listen

    async def note(*arguments: Any) -> None:
        heard.append(arguments)
        await listen(*arguments)

    door.bus.listen = note  # type: ignore[assignment, method-assign]
    watch = door.watch(reload_seconds=600.0)
    await watch.begin()
    for _ in range(3):
        async with running(watch.run):
            await asyncio.sleep(0)
    assert len(heard) == 1
