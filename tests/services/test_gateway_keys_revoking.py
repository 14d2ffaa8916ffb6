"""Keys that were taken back: the gateway forgets them as it hears of it, in both modes, and asks identity again."""

from urllib.parse import urlsplit

import pytest

from refract.kernel.ids import new_event_id
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.messages import Message
from refract.runtime.ports import EventBus
from refract.services.gateway.domain.callers import Caller
from refract.services.gateway.domain.keys import KnownKey, KnownKeys
from refract.services.gateway.reactions import RevocationWatch
from refract.services.identity.api import ApiKeyCreated, ApiKeyRevoked
from tests.support.clocks import START
from tests.support.databases import empty_location
from tests.support.fault_proxy import FaultProxy
from tests.support.identity import identity, identity_location
from tests.support.keys import hash_of, new_key
from tests.support.revoking import LATER, Door, door, revoked
from tests.support.waiting import eventually

__all__ = ["door", "empty_location", "identity", "identity_location"]

on_one_mode = pytest.mark.parametrize("empty_location", ["embedded"], indirect=True)


class Keyring:
    """Keys that the gateway knows: two of Alice's, one of Bob's. On the broker nobody else speaks of them."""

    def __init__(self, door: Door, bus: EventBus | None) -> None:
        self.known = KnownKeys(door.identity.clock)
        self.alice, self.bob = new_event_id(), new_event_id()
        self.keys = [self.learn(user) for user in (self.alice, self.alice, self.bob)]
        self.watch = RevocationWatch(door.services, bus, door.revocations, door.identity.clock, keys=self.known)

    def learn(self, user: str) -> KnownKey:
        key = KnownKey(hash_of(new_key()), 1, frozenset(), Caller(user))
        self.known.learn(key, LATER)
        return key

    def is_known(self) -> list[bool]:
        return [self.known.find(key.key_hash) is not None for key in self.keys]


def event(key: KnownKey, kind: type[ApiKeyRevoked | ApiKeyCreated] = ApiKeyRevoked) -> Message:
    told = kind(occurred_at=START, key_id=key.key_id, user_id=key.caller.user_id, key_hash=key.key_hash)
    return Message.of(told.stamped("c"))


async def test_a_key_that_is_revoked_is_forgotten_at_once_and_no_other(door: Door) -> None:
    ring = Keyring(door, door.bus)
    await ring.watch.begin()
    asked = door.services.asked
    await door.bus.publish(event(ring.keys[1], ApiKeyCreated))
    for _ in range(2):  # also twice
        await door.bus.publish(event(ring.keys[0]))
    await eventually(lambda: ring.is_known() == [False, True, True])
    assert door.services.asked == asked


async def test_with_all_tokens_of_a_user_go_all_keys_and_with_one_token_none(door: Door) -> None:
    ring = Keyring(door, door.bus)
    await ring.watch.begin()
    await door.publish(*(revoked(user, token_id=new_event_id()) for user in (ring.alice, ring.bob)))
    await door.publish(revoked(ring.alice, generation=1))
    await eventually(lambda: ring.is_known() == [False, False, True])
    ring.known.learn(ring.keys[0], LATER)
    await door.publish(revoked(ring.alice, generation=1), revoked(ring.bob, generation=1))
    await eventually(lambda: ring.is_known() == [True, False, False])


async def test_without_a_bus_what_is_loaded_counts_for_keys_too(door: Door) -> None:
    user, _, _ = await door.user()
    ring = Keyring(door, None)
    await ring.watch.begin()
    hers = ring.learn(user.id)
    await door.end_all(user)
    assert await ring.watch.load()
    assert ring.known.find(hers.key_hash) is None
    assert ring.is_known() == [True, True, True]
    ring.known.learn(hers, LATER)
    assert await ring.watch.load()
    assert ring.known.find(hers.key_hash) is hers, "what is no news is no reason to ask again"


@on_one_mode
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"event_id":"evt_1","timestamp":"2026-03-01T12:00:00Z","payload":{}}',
        b'{"event_id":"evt_1","timestamp":"2026-03-01T12:00:00Z","payload":{"key_id":1,"user_id":"u","key_hash":"x"}}',
        b'{"event_id":"evt_1","timestamp":"2026-03-01T12:00:00Z","payload":{"key_id":"1","user_id":"u"}}',
    ],
)
async def test_after_an_event_that_cannot_be_read_no_key_is_trusted(door: Door, body: bytes) -> None:
    ring = Keyring(door, door.bus)
    await ring.watch.begin()
    good = event(ring.keys[0])
    await door.bus.publish(Message(good.exchange, good.routing_key, body, new_event_id(), mandatory=False))
    await eventually(lambda: ring.is_known() == [False] * 3)


@pytest.mark.parametrize("empty_location", ["distributed"], indirect=True)
async def test_after_a_gap_of_the_bus_no_key_is_trusted(door: Door, rabbitmq_url: str) -> None:
    broker = urlsplit(rabbitmq_url)
    async with FaultProxy.to(broker.hostname or "", broker.port or 0) as proxy:
        bus = RabbitBus(broker._replace(netloc=broker.netloc.replace(f":{broker.port}", f":{proxy.port}")).geturl())
        await bus.start()
        try:
            await eventually(bus._reading.current)  # a broker that is late to let us in would be a gap, too
            ring = Keyring(door, bus)
            await ring.watch.begin()
            assert ring.is_known() == [True] * 3
            proxy.cut()
            await eventually(lambda: ring.is_known() == [False] * 3)
        finally:
            await bus.close()
