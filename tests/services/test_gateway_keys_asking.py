"""How the gateway asks identity for keys: once for all who ask, for a minute, and without others waiting for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from refract.runtime.tokens import TokenSigner
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import ROUTES, TARGETS
from refract.services.gateway.domain.breaker import State
from refract.services.gateway.domain.callers import Asked, Caller
from refract.services.gateway.domain.keys import KnownKey, KnownKeys
from refract.services.gateway.http import keys as asking
from refract.services.gateway.http.guarding import Breakers
from refract.services.gateway.ports import Services
from refract.services.gateway.service import Gateway, build_gateway
from tests.support.clocks import ManualClock
from tests.support.fronts import SECRET, UNAVAILABLE, authorization, said, signed, tokens, url_of
from tests.support.http import Answer, fetch, running
from tests.support.keys import LACKING, REFUSED, Desk, new_key
from tests.support.waiting import eventually

USED = KnownKey("a" * 64, 1, frozenset(), Caller("u-1"))


class Door:
    """A gateway before a desk that plays every service, and a clock for both."""

    def __init__(self, services: Services, desk: Desk) -> None:
        self.desk = desk
        self.clock = desk.clock
        self.known = KnownKeys(self.clock)
        self.breakers = Breakers(TARGETS, self.clock)
        self.services = services
        self.port = 0

    def gateway(self) -> Gateway:
        return build_gateway(
            self.services,
            tokens=tokens(self.clock),
            known_keys=self.known,
            breakers=self.breakers,
            capacity=2,
        )

    async def ask(self, key: str, path: str = "/api/urls", method: str = "GET") -> Answer:
        return await fetch(self.port, path, f"Authorization: Bearer {key}", method=method)

    async def ask_as_owner(self) -> int:
        token = authorization(signed(clock=self.clock))
        return (await fetch(self.port, "/api/urls", token)).status

    def breaker(self) -> State:
        circuit = self.breakers.of("identity")
        assert circuit is not None
        return circuit.state


@pytest.fixture(params=["in_process", "proxy"])
async def door(request: pytest.FixtureRequest) -> AsyncIterator[Door]:
    """In both ways; with few places, so that whoever takes one too many is noticed."""
    async with AsyncExitStack() as stack:
        desk = Desk(ManualClock())
        if request.param == "in_process":
            services: Services = InProcess(dict.fromkeys(TARGETS, desk))
        else:
            services = Proxy(dict.fromkeys(TARGETS, url_of(await stack.enter_async_context(running(desk)))))
        door = Door(services, desk)
        gateway = door.gateway()
        stack.push_async_callback(gateway.stop)
        serving = running(gateway.application, fast_path=gateway.fast_path)
        door.port = (await stack.enter_async_context(serving)).port
        yield door
        if door.desk.gate is not None:
            door.desk.gate.set()


# What is remembered


async def test_a_key_is_asked_for_once_a_minute_and_with_it_go_its_uses(door: Door) -> None:
    key, other = door.desk.issue("links:read"), door.desk.issue("links:read")
    for _ in range(3):
        assert (await door.ask(key)).status == 200
    assert (await door.ask(other)).status == 200
    door.clock.advance(59.9)
    assert (await door.ask(key)).status == 200
    assert door.desk.asked(key) == [0]
    door.clock.advance(0.1)
    assert (await door.ask(key)).status == 200
    assert door.desk.asked(key) == [0, 4]
    door.clock.advance(60)
    assert (await door.ask(key)).status == 200
    assert door.desk.asked(key) == [0, 4, 1], "each is told once"
    assert door.desk.asked(other) == [0]


async def test_it_is_asked_for_again_when_identity_says_so(door: Door) -> None:
    key = door.desk.issue(seconds=3)
    assert (await door.ask(key)).status == 200
    door.clock.advance(3)
    del door.desk.issued[key]
    assert said(await door.ask(key)) == REFUSED
    assert door.desk.asked(key) == [0, 1]


async def test_a_key_that_ends_at_once_is_good_for_those_who_ask_and_not_remembered(door: Door) -> None:
    key = door.desk.issue(seconds=0)
    assert [(await door.ask(key)).status for _ in range(3)] == [200] * 3
    assert door.desk.asked(key) == [0, 1, 1]


async def test_what_identity_refuses_is_refused_for_a_while_without_asking(door: Door) -> None:
    key = new_key()
    assert [said(await door.ask(key)) for _ in range(3)] == [REFUSED] * 3
    door.clock.advance(4.9)
    assert said(await door.ask(key)) == REFUSED
    assert door.desk.asked(key) == [0]
    door.clock.advance(0.1)
    assert said(await door.ask(key)) == REFUSED
    assert door.desk.asked(key) == [0, 0]
    assert door.desk.reached == []


async def test_scopes_that_changed_are_known_with_the_next_answer(door: Door) -> None:
    key = door.desk.issue("links:read")
    assert (await door.ask(key)).status == 200
    door.desk.issued[key]["scopes"] = []
    door.clock.advance(60)
    assert said(await door.ask(key)) == LACKING


# One question


async def test_however_many_ask_there_is_one_question_for_a_key(door: Door) -> None:
    key, other = door.desk.issue(), door.desk.issue()
    door.desk.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(door.ask(one, "/api/urls/a", "DELETE")) for one in (key, other) * 10]
        await eventually(lambda: len(door.desk.questions) == 2)
        assert await door.ask_as_owner() == 200, "and nobody else waits for them"
        door.desk.gate.set()
    # Two places are what there is for those who were let in.
    assert {task.result().status for task in waiting} <= {200, 503}
    assert len(door.desk.questions) == 2
    door.desk.gate = None
    assert (await door.ask(key)).status == 200
    assert len(door.desk.questions) == 2


async def test_one_that_is_given_up_takes_no_answer_from_the_others(door: Door) -> None:
    keys, key = door.gateway().keys, door.desk.issue("links:read")
    route = next(route for route in ROUTES if route.scope == "links:read")
    asked = Asked.of([(b"x-api-key", key.encode())], "http")
    door.desk.gate = asyncio.Event()
    waiting = [asyncio.create_task(keys.identify(route, asked, "192.0.2.1")) for _ in range(3)]
    await eventually(lambda: len(door.desk.questions) == 1)
    for given_up in waiting[:2]:
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
    door.desk.gate.set()
    assert (await waiting[2]).user_id == "u-1"
    assert len(door.desk.questions) == 1


async def test_who_waits_for_identity_takes_no_place_and_they_are_bounded(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = door.gateway()
    monkeypatch.setattr(gateway.keys, "_most_questions", 3)
    async with running(gateway.application, fast_path=gateway.fast_path) as server:
        door.port = server.port
        known = door.desk.issue()
        assert (await door.ask(known)).status == 200
        door.desk.gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(door.ask(door.desk.issue())) for _ in range(3)]
            await eventually(lambda: len(door.desk.questions) == 4)
            turned_away = await door.ask(door.desk.issue())
            assert (said(turned_away), turned_away.headers["retry-after"]) == (UNAVAILABLE, "1")
            assert (await door.ask(known)).status == 200
            assert await door.ask_as_owner() == 200
            door.desk.gate.set()
        assert {task.result().status for task in waiting} <= {200, 503}
        assert len(door.desk.questions) == 4


# Identity in trouble


async def test_while_identity_is_away_known_keys_go_on_and_others_are_told_to_come_again(door: Door) -> None:
    known, unknown = door.desk.issue(), door.desk.issue()
    assert (await door.ask(known)).status == 200
    door.desk.instead = 503, b'{"error":"service unavailable"}'
    told = await door.ask(unknown)
    assert (said(told), told.headers["retry-after"]) == (UNAVAILABLE, "1")
    for _ in range(4):
        assert said(await door.ask(unknown)) == UNAVAILABLE
    assert door.breaker() is State.OPEN
    assert len(door.desk.asked(unknown)) == 5
    told = await door.ask(unknown)
    assert (said(told), told.headers["retry-after"]) == (UNAVAILABLE, "30")
    assert len(door.desk.asked(unknown)) == 5, "it is left alone"
    assert (await door.ask(known)).status == 200
    door.desk.instead = None
    door.clock.advance(30)
    assert (await door.ask(unknown)).status == 200
    assert door.breaker() is State.CLOSED
    assert (await door.ask(known)).status == 200
    door.clock.advance(30)
    door.desk.instead = 500, b"{}"
    assert said(await door.ask(known)) == UNAVAILABLE, "its minute is over"
    assert "u-1" not in str(door.desk.told)


async def test_an_answer_that_a_key_is_bad_is_no_failure_of_identity(door: Door) -> None:
    for _ in range(10):
        assert said(await door.ask(new_key())) == REFUSED
    assert door.breaker() is State.CLOSED


async def test_uses_that_identity_did_not_hear_of_are_told_again(door: Door) -> None:
    key = door.desk.issue()
    assert [(await door.ask(key)).status for _ in range(2)] == [200, 200]
    door.clock.advance(60)
    door.desk.instead = 500, b"{}"
    assert said(await door.ask(key)) == UNAVAILABLE
    door.desk.instead = None
    assert (await door.ask(key)).status == 200
    assert door.desk.asked(key) == [0, 2, 2]


ODD: tuple[dict[str, Any], ...] = (
    {"key_hash": "0" * 64},
    {"key_hash": "x"},
    {"key_id": 0},
    {"key_id": "1"},
    {"user_id": "u-2"},
    {"user_id": 1},
    {"scopes": "links:read"},
    {"scopes": [1]},
    {"scopes": None},
    {"sms_user_id": -1},
    {"sms_user_id": "101\r\nx-user-id: u-2"},
    {"token": "nonsense"},
    {"token": "of another user"},
    {"token": "of an administrator"},
    {"token": "of another secret"},
    {"token": "of another key"},
    {"token": "of a person"},
)
NONE_AT_ALL = ((200, b""), (200, b"[]"), (200, b"{"), (200, b"\xff"), (200, b"[" * 9000), (204, b""), (404, b"{}"))


async def test_an_answer_that_cannot_be_right_opens_nothing(door: Door) -> None:
    signer, stranger = (
        TokenSigner(SECRET, door.clock),
        TokenSigner("another secret that is long enough, too", door.clock),
    )
    made = {
        "of another user": signer.sign("u-2", "", api_key=1).token,
        "of an administrator": signer.sign("u-1", "", role="administrator", api_key=1).token,
        "of another secret": stranger.sign("u-1", "", api_key=1).token,
        "of another key": signer.sign("u-1", "", api_key=2).token,
        "of a person": signer.sign("u-1", "").token,
    }
    for change in ODD:
        key = door.desk.issue()
        door.desk.issued[key] |= {"key_id": 1, "token": door.desk.token("u-1", 1)}
        door.desk.issued[key] |= {name: made.get(str(value), value) for name, value in change.items()}
        told = await door.ask(key)
        assert (said(told), told.headers["retry-after"]) == (UNAVAILABLE, "1"), change
    for instead in NONE_AT_ALL:
        door.desk.instead = instead
        assert said(await door.ask(door.desk.issue())) == UNAVAILABLE, instead
    assert (door.desk.reached, len(door.known)) == ([], 0)
    assert door.breaker() is State.CLOSED, "it is there, and says something"


async def test_a_gateway_without_identity_says_that_it_cannot_tell() -> None:
    for services in (InProcess({"links": Desk()}), Proxy({"links": "http://127.0.0.1:9"})):
        gateway = build_gateway(services, tokens=tokens())
        async with running(gateway.application) as server:
            answer = await fetch(server.port, "/api/urls", f"X-API-Key: {new_key()}")
            assert (said(answer), answer.headers["retry-after"]) == (UNAVAILABLE, "1")
        await gateway.stop()


# What was taken back meanwhile


@pytest.mark.parametrize("by", ["key", "user", "gap"])
async def test_an_answer_that_was_overtaken_is_not_believed(door: Door, by: str) -> None:
    key = door.desk.issue()
    hashed = door.desk.issued[key]["key_hash"]
    door.desk.gate = asyncio.Event()
    asked = asyncio.create_task(door.ask(key))
    await eventually(lambda: len(door.desk.questions) == 1)
    if by == "key":
        door.known.forget(hashed)
    elif by == "user":
        door.known.forget_user("u-1")
    else:
        door.known.forget_all()
    door.desk.gate.set()
    assert (await asked).status == 200, "asked for again, it is still good"
    assert door.desk.asked(key) == [0, 0]
    assert (await door.ask(key)).status == 200
    assert len(door.desk.asked(key)) == 2


async def test_what_concerns_others_overtakes_nothing(door: Door) -> None:
    key = door.desk.issue()
    door.desk.gate = asyncio.Event()
    asked = asyncio.create_task(door.ask(key))
    await eventually(lambda: len(door.desk.questions) == 1)
    door.known.forget("0" * 64)
    door.known.forget_user("u-2")
    door.desk.gate.set()
    assert (await asked).status == 200
    assert len(door.desk.asked(key)) == 1


# Uses


async def test_uses_of_keys_that_come_no_more_are_told_by_themselves_and_at_the_end(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = door.gateway()
    keys = [door.desk.issue("links:read") for _ in range(5)]
    monkeypatch.setattr(asking, "MOST_TOLD", 2)
    monkeypatch.setattr(asking, "TELL_SECONDS", 0.01)
    async with running(gateway.application, fast_path=gateway.fast_path) as server:
        door.port = server.port
        for key in (*keys, keys[0]):
            assert (await door.ask(key)).status == 200
        assert said(await door.ask(keys[0], "/api/stats/summary")) == LACKING, "which is no use of it"
        assert door.desk.told == []
        telling = asyncio.create_task(gateway.keys.run())
        await eventually(lambda: sum(map(len, door.desk.told)) == 5)
        telling.cancel()
        assert door.desk.told == [{"1": 2, "2": 1}, {"3": 1, "4": 1}, {"5": 1}]
        assert (await door.ask(keys[4])).status == 200
    await gateway.keys.stop()
    assert door.desk.told[3:] == [{"5": 1}]
    await gateway.keys.stop()
    assert len(door.desk.told) == 4, "with nothing to tell nobody is asked"


@pytest.mark.parametrize("status", [500, 503])
async def test_what_identity_cannot_hear_now_it_hears_later(door: Door, status: int) -> None:
    gateway = door.gateway()
    door.known.count_use(USED)
    door.desk.instead = status, b"{}"
    await gateway.keys.tell()
    assert door.known.take_uses() == {USED.key_hash: (1, 1)}
    door.known.count_use(USED)
    door.desk.instead = 400, b"{}"
    await gateway.keys.tell()
    assert door.known.take_uses() == {}, "what it will never hear is not kept for ever"


async def test_the_end_waits_for_nobody(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asking, "LAST_WORD_SECONDS", 0.05)
    monkeypatch.setattr(door.services, "post", silent)
    door.known.count_use(USED)
    await door.gateway().keys.stop()
    assert door.known.take_uses() == {USED.key_hash: (1, 1)}
