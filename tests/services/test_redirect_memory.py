"""L1: what is kept, for how long, what goes first, and that a slow fill never undoes a drop."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from refract.runtime.embedded.cache import EmbeddedCache
from refract.services.links.redirect import memory as memory_module
from refract.services.links.redirect.memory import FRESH_SECONDS, STALE_SECONDS, VOUCHED_SECONDS, Memory
from tests.support.clocks import ManualClock
from tests.support.waiting import eventually


@dataclass(frozen=True, slots=True)
class Entry:
    """What the redirect would keep, cut down to a name."""

    name: str
    fresh_until: float = 60.0
    stale_until: float = 3600.0
    renew_at: float = 30.0

    @property
    def size(self) -> int:
        return len(self.name)

    def renewed(self, lifetimes: tuple[float, float, float]) -> "Entry":
        renew_at, fresh_until, stale_until = lifetimes
        return Entry(self.name, fresh_until, stale_until, renew_at)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> Memory[Entry]:
    return Memory(100, clock.monotonic, capacity_bytes=10_000, absent_capacity=100)


def keep(memory: Memory[Entry], name: str) -> None:
    assert memory.keep(name.encode(), Entry(name), memory.ticket)


def test_what_is_kept_is_found_in_one_dictionary_that_stays(memory: Memory[Entry]) -> None:
    look = memory.entries.get
    keep(memory, "a")
    assert look(b"a") == Entry("a")
    memory.empty()
    assert look(b"a") is None
    keep(memory, "b")
    assert look(b"b") == Entry("b")


@pytest.mark.parametrize(
    ("seconds_left", "fresh", "stale"),
    [(None, 60.0, 3600.0), (10.0, 10.0, 10.0), (60.0, 60.0, 60.0), (100.0, 60.0, 100.0), (1e9, 60.0, 3600.0)],
)
def test_an_entry_is_fresh_for_a_minute_and_never_beyond_the_expiry(
    memory: Memory[Entry], clock: ManualClock, seconds_left: float | None, fresh: float, stale: float
) -> None:
    clock.advance(1000)
    renew_at, *others = memory.lifetimes(seconds_left)
    assert others == [1000 + fresh, 1000 + stale]
    assert 1000 + min(fresh, 24.0) <= renew_at <= 1000 + min(fresh, 45.0)


def test_the_memory_is_bounded_and_what_was_put_in_again_stays(memory: Memory[Entry]) -> None:
    keep(memory, "used")
    for number in range(1_000):
        keep(memory, f"flood {number}")
        if number % 50 == 0:
            keep(memory, "used")
        assert len(memory.entries) <= 100
        assert b"used" in memory.entries
    assert set(memory.entries) - {b"used"} == {b"flood %d" % number for number in range(901, 1_000)}


def test_a_scan_of_absent_codes_pushes_out_nothing_and_is_bounded(memory: Memory[Entry]) -> None:
    for number in range(100):
        keep(memory, f"good {number}")
    for number in range(10_000):
        assert memory.keep_absent(b"absent %d" % number, memory.ticket)
    assert len(memory.entries) == 100
    assert sum(memory.is_absent(b"absent %d" % number) for number in range(10_000)) == 100
    assert memory.is_absent(b"absent 9999")


def test_an_absent_code_is_forgotten_after_a_short_time(memory: Memory[Entry], clock: ManualClock) -> None:
    memory.keep_absent(b"a", memory.ticket)
    clock.advance(4.999)
    assert memory.is_absent(b"a")
    clock.advance(0.001)
    assert not memory.is_absent(b"a")
    assert not memory.is_absent(b"never asked")


def test_present_and_absent_exclude_each_other(memory: Memory[Entry]) -> None:
    memory.keep_absent(b"a", memory.ticket)
    keep(memory, "a")
    assert not memory.is_absent(b"a")
    memory.keep_absent(b"a", memory.ticket)
    assert b"a" not in memory.entries


def test_a_stale_entry_is_there_until_its_time_is_over(memory: Memory[Entry], clock: ManualClock) -> None:
    keep(memory, "a")
    clock.advance(3599.9)
    assert memory.stale(b"a") == Entry("a")
    clock.advance(0.1)
    assert memory.stale(b"a") is None
    assert memory.stale(b"never asked") is None


def test_what_was_found_out_of_date_is_not_used_as_stale(memory: Memory[Entry]) -> None:
    keep(memory, "a")
    memory.forget(b"a")
    memory.forget(b"never asked")
    assert memory.stale(b"a") is None
    assert memory.keep(b"a", Entry("again"), memory.ticket)


def test_what_was_dropped_is_gone_fresh_stale_and_absent(memory: Memory[Entry]) -> None:
    keep(memory, "a")
    keep(memory, "b")
    memory.keep_absent(b"c", memory.ticket)
    memory.drop(b"a")
    memory.drop(b"c")
    assert memory.stale(b"a") is None
    assert set(memory.entries) == {b"b"}
    assert not memory.is_absent(b"c")


def test_a_fill_that_began_before_a_drop_is_not_kept(memory: Memory[Entry]) -> None:
    before = memory.ticket
    memory.drop(b"a")
    assert not memory.keep(b"a", Entry("old"), before)
    assert not memory.keep_absent(b"a", before)
    assert memory.stale(b"a") is None
    assert not memory.is_absent(b"a")
    assert memory.keep(b"b", Entry("another code"), before)
    keep(memory, "a")
    assert not memory.keep(b"a", Entry("old"), before)
    assert memory.entries[b"a"] == Entry("a")


def test_a_fill_that_began_before_a_gap_is_not_kept(memory: Memory[Entry]) -> None:
    keep(memory, "a")
    memory.keep_absent(b"b", memory.ticket)
    before = memory.ticket
    memory.empty()
    assert not memory.entries
    assert not memory.is_absent(b"b")
    for code in (b"a", b"b", b"c"):
        assert not memory.keep(code, Entry("old"), before)
        assert not memory.keep_absent(code, before)
    keep(memory, "a")


def test_drops_beyond_those_remembered_still_refuse_what_is_older(
    memory: Memory[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "DROPS_REMEMBERED", 10)
    before = memory.ticket
    memory.drop(b"a")
    between = memory.ticket
    for number in range(50):
        memory.drop(b"%d" % number)
        assert len(memory._dropped) <= 10
    assert not memory.keep(b"a", Entry("old"), before)
    assert not memory.keep(b"5", Entry("old"), between)
    keep(memory, "a")


async def test_drops_of_the_cache_are_heard_and_other_keys_are_not_ours(memory: Memory[Entry]) -> None:
    cache = EmbeddedCache()
    memory.listen(cache)
    keep(memory, "a")
    keep(memory, "b")
    before = memory.ticket
    await cache.drop({"url:a": 3, "b": 1, "uri:b": 1})
    assert set(memory.entries) == {b"b"}
    assert not memory.keep(b"a", Entry("old"), before)


# Whether drops are heard


class Channel(EmbeddedCache):
    """A cache that can be made deaf."""

    def __init__(self, *, hears: bool = True, misses_nothing: bool = False) -> None:
        super().__init__(misses_nothing=misses_nothing)
        self.hears = hears
        self._warned: list[Callable[[], None]] = []

    def on_invalidation(
        self,
        dropped: Callable[[Sequence[str]], None],
        gap: Callable[[], None],
        deaf: Callable[[], None] | None = None,
    ) -> None:
        super().on_invalidation(dropped, gap, deaf)
        assert deaf is not None
        self._warned.append(deaf)

    def lose(self) -> None:
        self.hears = False
        for deaf in self._warned:
            deaf()

    def recover(self) -> None:
        self.hears = True
        self.tell_gap()


@pytest.fixture
def channel(memory: Memory[Entry]) -> Channel:
    channel = Channel()
    memory.listen(channel)
    return channel


def fill(memory: Memory[Entry], *names: str) -> None:
    """Remember links as they are found now."""
    for name in names:
        assert memory.keep(name.encode(), Entry(name).renewed(memory.lifetimes(None)), memory.ticket)


def freshness(memory: Memory[Entry]) -> dict[bytes, float]:
    return {code: entry.fresh_until for code, entry in memory.entries.items()}


@pytest.mark.parametrize(
    ("channel", "fresh"),
    [
        (Channel(hears=False), FRESH_SECONDS),
        (Channel(), VOUCHED_SECONDS),
        (Channel(misses_nothing=True), STALE_SECONDS),
    ],
    ids=["not heard", "heard", "never missed"],
)
def test_an_entry_is_fresh_for_as_long_as_drops_vouch_for_it(
    memory: Memory[Entry], clock: ManualClock, channel: Channel, fresh: float
) -> None:
    memory.listen(channel)
    clock.advance(1000)
    renew_at, *others = memory.lifetimes(None)
    assert others == [1000 + fresh, 1000 + STALE_SECONDS]
    assert 1000 + 0.4 * fresh <= renew_at <= 1000 + 0.75 * fresh
    assert memory.lifetimes(1e9)[1] == 1000 + FRESH_SECONDS, "one that expires keeps to the minute"


def test_moments_are_shared_and_never_later_than_they_should_be(
    memory: Memory[Entry], clock: ManualClock, channel: Channel
) -> None:
    clock.advance(0.01)
    _, *first = memory.lifetimes(None)
    clock.advance(0.23)
    _, *second = memory.lifetimes(None)
    assert all(one is other for one, other in zip(first, second, strict=True))
    clock.advance(0.01)
    _, *third = memory.lifetimes(None)
    assert third == [moment + 0.25 for moment in first] == [VOUCHED_SECONDS + 0.25, STALE_SECONDS + 0.25]


async def test_when_drops_are_no_longer_heard_entries_are_fresh_for_a_minute_more(
    memory: Memory[Entry], clock: ManualClock, channel: Channel
) -> None:
    entries = memory.entries
    fill(memory, "nearly over")
    clock.advance(VOUCHED_SECONDS - 10)
    fill(memory, "a", "b", "c")
    before = dict(entries)
    clock.advance(7)
    channel.lose()
    now = clock.monotonic()
    await eventually(lambda: memory._doubting is None)
    assert memory.entries is entries
    assert freshness(memory) == {b"nearly over": now + 3} | dict.fromkeys((b"a", b"b", b"c"), now + FRESH_SECONDS)
    assert list(entries) == [b"nearly over", b"a", b"b", b"c"], "it was not asked for, and stays where it was"
    for code in (b"a", b"b", b"c"):
        assert now + 0.4 * FRESH_SECONDS <= entries[code].renew_at <= now + 0.75 * FRESH_SECONDS
        assert entries[code].stale_until == before[code].stale_until
    fill(memory, "d")
    assert freshness(memory)[b"d"] == now + FRESH_SECONDS, "what is made while nothing is heard has a minute, too"


async def test_an_entry_that_is_to_be_renewed_already_is_not_put_off(
    memory: Memory[Entry], clock: ManualClock, channel: Channel
) -> None:
    fill(memory, "a")
    renew_at = memory.entries[b"a"].renew_at
    clock.advance(0.76 * VOUCHED_SECONDS)
    channel.lose()
    assert memory.entries[b"a"].renew_at == renew_at


async def test_entries_are_there_for_an_hour_though_drops_are_not_heard(
    memory: Memory[Entry], clock: ManualClock, channel: Channel
) -> None:
    fill(memory, "a", "b")
    channel.lose()
    clock.advance(STALE_SECONDS - 1)
    await channel.drop({"url:b": 2})
    stale = memory.stale(b"a")
    assert stale is not None
    assert stale.fresh_until == FRESH_SECONDS
    assert memory.stale(b"b") is None
    clock.advance(1)
    assert memory.stale(b"a") is None


async def test_others_have_their_turn_while_many_entries_are_doubted(
    memory: Memory[Entry], channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "DOUBTS_AT_ONCE", 10)
    fill(memory, *map(str, range(100)))
    channel.lose()
    assert list(freshness(memory).values()) == [FRESH_SECONDS] * 10 + [VOUCHED_SECONDS] * 90
    memory.drop(b"50")
    fill(memory, "60")
    await eventually(lambda: memory._doubting is None)
    assert set(freshness(memory).values()) == {FRESH_SECONDS}
    assert set(memory.entries) == {b"%d" % number for number in range(100)} - {b"50"}


async def test_what_is_found_when_drops_are_heard_again_is_not_doubted(
    memory: Memory[Entry], channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "DOUBTS_AT_ONCE", 1)
    fill(memory, "a", "b", "c")
    channel.lose()
    channel.recover()
    assert not memory.entries
    fill(memory, "b", "c")
    turns = 10
    while memory._doubting is not None or turns:
        await asyncio.sleep(0)
        turns -= 1
    assert set(freshness(memory).values()) == {VOUCHED_SECONDS}
