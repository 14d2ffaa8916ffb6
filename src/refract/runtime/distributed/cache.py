"""The cache in Redis, shared by every replica; a drop is told to all of them over a channel."""

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeVar

import msgspec

from refract.kernel.errors import Unavailable
from refract.runtime.caching import TOMBSTONE_SECONDS, CacheEntry
from refract.runtime.distributed.redis_connection import RUN_BYTES, Part, RedisConnection, Script
from refract.runtime.distributed.redis_subscription import RedisSubscription

T = TypeVar("T")

CHANNEL = "cache:dropped"

# A value is a mark, its order number in eight bytes, the run of the server that it was given to, and the bytes of the
# copy. The mark is no beginning of any UTF-8 text, so that nothing a stranger wrote under the key is taken for a copy.
# What a server has kept over a restart, or has from another server, may have been dropped while it was away: a miss.
_MARK = b"\xc5\x02"
_HEAD = len(_MARK) + 8 + RUN_BYTES

MAX_KEYS_AT_ONCE = 256
"""Redis does nothing else while a script runs, and what takes long counts as away."""

MOST_OWED = 10_000
REPEAT_PAUSE = 0.2

# Lua's numbers are exact up to 2^53 and order numbers are not that small: the halves are compared one after the other.
_COMPARE = """
local function order(text)
    if not text or #text < 10 or string.sub(text, 1, 2) ~= '\\197\\2' then return -1, 0 end
    return struct.unpack('>I4I4', text, 3)
end
local function newer(text, other)
    local high, low = order(text)
    local other_high, other_low = order(other)
    return high > other_high or (high == other_high and low > other_low)
end
local function kept(key)
    return redis.call('MGET', key)[1]
end
"""

# KEYS: for each entry its key and its tombstone's. ARGV: for each entry its value and its milliseconds.
_SET_IF_NEWER = Script(
    _COMPARE
    + """
local found = redis.call('MGET', unpack(KEYS))
for index = 1, #KEYS, 2 do
    local value = ARGV[index]
    if newer(value, found[index + 1]) and not newer(found[index], value) then
        redis.call('SET', KEYS[index], value, 'PX', ARGV[index + 1])
    end
end
"""
)

# KEYS: for each drop its key and its tombstone's. ARGV: channel, message, milliseconds, then an order for each drop.
_DROP = Script(
    _COMPARE
    + """
for index = 1, #KEYS, 2 do
    local tombstone = ARGV[3 + (index + 1) / 2]
    local entry, buried = kept(KEYS[index]), kept(KEYS[index + 1])
    if not newer(entry, tombstone) then redis.call('DEL', KEYS[index]) end
    if newer(buried, tombstone) then tombstone = buried end
    redis.call('SET', KEYS[index + 1], tombstone, 'PX', ARGV[3])
end
redis.call('PUBLISH', ARGV[1], ARGV[2])
"""
)


class _Dropped(msgspec.Struct, array_like=True):
    sender: str
    keys: list[str]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Dropped).decode

_logger = logging.getLogger("refract.redis")


class DistributedCache:
    """Copies in Redis. While it is away everything is a miss, and nothing is kept.

    A drop that Redis did not take is owed: it is tried again until it does, and till then the key is a miss here.
    """

    keeps = True
    misses_nothing = False

    def __init__(self, redis: RedisConnection, *, channel: str = CHANNEL) -> None:
        self._redis = redis
        self._channel = channel
        self._name = secrets.token_hex(8)
        self._listeners: list[tuple[Callable[[Sequence[str]], None], Callable[[], None]]] = []
        self._warned: list[Callable[[], None]] = []
        self._subscription = RedisSubscription(redis, channel, self._hear, self._tell_gap, self._tell_deaf)
        self._owed: dict[str, int] = {}
        self._paying: asyncio.Task[None] | None = None

    @property
    def hears(self) -> bool:
        """Whether every drop that Redis takes is heard at present; if one is missed, `gap` will be called."""
        return self._subscription.hears

    async def start(self) -> None:
        """Begin to hear what other processes drop."""
        await self._subscription.start()

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys; None where there is none."""
        if not keys:
            return []
        try:
            found = await self._redis.command("MGET", *keys)
        except Unavailable:
            return [None] * len(keys)
        run = self._redis.run_id
        copies = [_copy(value, run) for value in found]
        if self._owed:
            return [None if key in self._owed else copy for key, copy in zip(keys, copies, strict=True)]
        return copies

    async def set_many(self, entries: Sequence[CacheEntry]) -> None:
        """Keep copies, each unless a newer one, or the tombstone of a newer one, is there."""
        living = [entry for entry in entries if entry.ttl > 0]
        with suppress(Unavailable):
            for some in _portions(living):
                keys = [name for entry in some for name in (entry.key, _tombstone(entry.key))]
                arguments: list[Part] = []
                for entry in some:
                    arguments += (_head(entry.order) + self._redis.run_id + entry.value, _milliseconds(entry.ttl))
                await self._redis.run(_SET_IF_NEWER, keys, arguments)

    async def drop(self, orders: Mapping[str, int]) -> None:
        """Forget keys up to an order number, leave a short tombstone, and tell every process."""
        if not orders:
            return
        try:
            await self._drop(orders)
        except Unavailable:
            self._owe(orders)
        self._tell_dropped(list(orders))

    def on_invalidation(
        self,
        dropped: Callable[[Sequence[str]], None],
        gap: Callable[[], None],
        deaf: Callable[[], None] | None = None,
    ) -> None:
        """Call `dropped` with the keys that any process drops, `gap` whenever some may have been missed, and `deaf`
        once for each time that they are no longer heard."""
        self._listeners.append((dropped, gap))
        if deaf is not None:
            self._warned.append(deaf)

    async def ping(self) -> None:
        """Return if it answers and has taken every drop; raise Unavailable if not."""
        await self._pay()
        await self._redis.ping()

    async def close(self) -> None:
        """Stop listening; the connection belongs to whoever made it."""
        if self._paying is not None:
            self._paying.cancel()
            await asyncio.gather(self._paying, return_exceptions=True)
        await self._subscription.close()

    async def _drop(self, orders: Mapping[str, int]) -> None:
        for some in _portions(list(orders.items())):
            keys = [name for key, _ in some for name in (key, _tombstone(key))]
            heads = [_head(order) for _, order in some]
            message = _encode(_Dropped(self._name, [key for key, _ in some]))
            lifetime = _milliseconds(TOMBSTONE_SECONDS)
            await self._redis.run(_DROP, keys, [self._channel, message, lifetime, *heads])

    def _owe(self, orders: Mapping[str, int]) -> None:
        """Note what is to be dropped again. Of very many the oldest are left to the outbox, which has them all."""
        for key, order in orders.items():
            self._owed[key] = max(order, self._owed.pop(key, 0))
        excess = len(self._owed) - max(MOST_OWED, len(orders))
        if excess > 0:
            _logger.warning("too many drops that redis did not take", extra={"forgotten": excess})
            for key in list(islice(self._owed, excess)):
                del self._owed[key]
        if self._paying is None:
            self._paying = asyncio.create_task(self._pay_until_done(), name="cache drops")

    async def _pay(self) -> None:
        """Drop what is owed; raises Unavailable."""
        while self._owed:
            paid = dict(islice(self._owed.items(), MAX_KEYS_AT_ONCE))
            await self._drop(paid)
            for key, order in paid.items():
                if self._owed.get(key) == order:
                    del self._owed[key]

    async def _pay_until_done(self) -> None:
        try:
            while self._owed:
                await asyncio.sleep(REPEAT_PAUSE)
                with suppress(Unavailable):
                    await self._pay()
        finally:
            self._paying = None

    def _hear(self, message: bytes) -> None:
        try:
            heard = _decode(message)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._tell_gap()  # something was dropped, in a form that we do not know
            return
        if heard.sender != self._name:
            self._tell_dropped(heard.keys)

    def _tell_dropped(self, keys: Sequence[str]) -> None:
        for dropped, _ in self._listeners:
            dropped(keys)

    def _tell_gap(self) -> None:
        for _, gap in self._listeners:
            gap()

    def _tell_deaf(self) -> None:
        for deaf in self._warned:
            try:
                deaf()
            except Exception:  # the others still have to know
                _logger.exception("the loss of a subscription could not be handled")


def _portions(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + MAX_KEYS_AT_ONCE] for start in range(0, len(items), MAX_KEYS_AT_ONCE))


def _copy(value: bytes | None, run: bytes) -> bytes | None:
    if value is None or len(value) < _HEAD or not value.startswith(_MARK) or value[_HEAD - RUN_BYTES : _HEAD] != run:
        return None
    return value[_HEAD:]


def _tombstone(key: str) -> str:
    return f"dropped:{key}"


def _head(order: int) -> bytes:
    return _MARK + order.to_bytes(8)


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)
