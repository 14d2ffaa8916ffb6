"""L1 is bounded by bytes as well as by entries, and its account of them is right after whatever happens to it."""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from refract.services.links.domain.destinations import LOCATION_LENGTH
from refract.services.links.redirect.engine import BYTES_IN_MEMORY, LINKS_IN_MEMORY, Prepared
from refract.services.links.redirect.memory import FRESH_SECONDS, Memory
from refract.services.links.redirect.records import LinkRecord
from tests.support.clocks import ManualClock

CAPACITY = 4
CAPACITY_BYTES = 100
LONGER_THAN_ALL = CAPACITY_BYTES + 1


class Entry(Struct, frozen=True):
    """What the redirect would keep, cut down to its size."""

    size: int
    renew_at: float = 30.0
    fresh_until: float = 600.0
    stale_until: float = 3600.0

    def renewed(self, lifetimes: tuple[float, float, float]) -> "Entry":
        return Entry(self.size, *lifetimes)


def counted(entries: Iterable[Entry] | Iterable[Prepared]) -> int:
    return sum(entry.size for entry in entries)


_CODES = st.sampled_from([b"%d" % number for number in range(10)])
_SIZES = st.sampled_from([*range(0, 40, 2), CAPACITY_BYTES, LONGER_THAN_ALL])
_WHAT = st.sampled_from(
    [
        *["keep"] * 6,  # or nothing would ever be full
        *(
            "keep what was asked for before",
            "keep absent",
            "renew",
            "renew",
            "forget",
            "drop",
            "hear",
            "doubt",
            "empty",
        ),
    ]
)
_PAUSES = st.sampled_from([None, None, 0, 100, 4000])
_STEPS = st.tuples(_WHAT, _CODES, _SIZES, _PAUSES)


def _keep(memory: Memory[Entry], code: bytes, entry: Entry, ticket: int) -> None:
    """Keep an entry; what leaves for it are the oldest, and no more of them than it takes."""
    before = {known: each for known, each in memory.entries.items() if known != code}
    expected = [*before.items(), (code, entry)]
    if memory.keep(code, entry, ticket):
        while len(expected) > CAPACITY or counted(each for _, each in expected) > CAPACITY_BYTES:
            del expected[0]
        assert list(memory.entries.items()) == expected


def _renew(memory: Memory[Entry], code: bytes) -> None:
    known = memory.entries.get(code)
    if known is not None:
        _keep(memory, code, known.renewed(memory.lifetimes(None)), memory.ticket)


async def _pass(clock: ManualClock, seconds: int) -> None:
    """Time passes, and what is doubted goes on between the others."""
    clock.advance(seconds)
    await asyncio.sleep(0)


def _doings(memory: Memory[Entry]) -> dict[str, Callable[[bytes, int], object]]:
    before = memory.ticket
    return {
        "keep": lambda code, size: _keep(memory, code, Entry(size), memory.ticket),
        "keep what was asked for before": lambda code, size: _keep(memory, code, Entry(size), before),
        "keep absent": lambda code, _: memory.keep_absent(code, memory.ticket),
        "renew": lambda code, _: _renew(memory, code),
        "forget": lambda code, _: memory.forget(code),
        "drop": lambda code, _: memory.drop(code),
        "hear": lambda code, _: memory.hear([f"url:{code.decode()}", "another key"]),
        "doubt": lambda _, __: memory.doubt(),
        "empty": lambda _, __: memory.empty(),
    }


@given(steps=st.lists(_STEPS, max_size=60))
async def test_the_account_is_right_after_whatever_happens(steps: list[tuple[str, bytes, int, int | None]]) -> None:
    clock = ManualClock()
    memory: Memory[Entry] = Memory(CAPACITY, clock.monotonic, capacity_bytes=CAPACITY_BYTES)
    doings = _doings(memory)
    for what, code, size, pause in steps:
        doings[what](code, size)
        if pause is not None:
            await _pass(clock, pause)
        assert memory._bytes == counted(memory.entries.values()) <= CAPACITY_BYTES, what
        assert len(memory.entries) <= CAPACITY, what


def _prepared(memory: Memory[Prepared], numbers: Iterable[int], url_length: int) -> Iterator[Prepared]:
    """Links as they come, each of another owner."""
    lifetimes = memory.lifetimes(None)
    for number in numbers:
        code, owner = f"{number:07}", f"018f4e5c-0000-7000-8000-{number:012}"
        url = f"https://example.com/{number}/".ljust(url_length, "x")
        record = LinkRecord(code, url, owner, f"somebody.{number}@example.com", "active", None, 301, number)
        yield Prepared.of(code.encode(), record, None, lifetimes)


def test_usual_links_all_fit_and_long_ones_make_the_earliest_leave() -> None:
    memory: Memory[Prepared] = Memory(LINKS_IN_MEMORY, lambda: 0.0, capacity_bytes=BYTES_IN_MEMORY)
    for link in _prepared(memory, range(100_000), 200):
        assert memory.keep(link.code, link, memory.ticket)
    assert len(memory.entries) == 100_000, "twice as long as usual, and there is room for all"
    for link in _prepared(memory, range(100_000, 103_000), LOCATION_LENGTH):
        assert memory.keep(link.code, link, memory.ticket)
        assert memory._bytes <= BYTES_IN_MEMORY
    left = [int(code) for code in memory.entries]
    assert left == list(range(left[0], 103_000)), "the earliest leave first"
    assert 10_000 < left[0] < 100_000
    assert memory._bytes == counted(memory.entries.values()) > 0.95 * BYTES_IN_MEMORY
    for link in _prepared(memory, range(103_000, 110_000), LOCATION_LENGTH):
        memory.keep(link.code, link, memory.ticket)
    assert 5_500 < len(memory.entries) <= BYTES_IN_MEMORY // LOCATION_LENGTH
    assert memory._bytes == counted(memory.entries.values()) <= BYTES_IN_MEMORY


def test_the_size_of_a_link_is_what_was_made_for_it_and_stays_when_it_is_renewed() -> None:
    memory: Memory[Prepared] = Memory(10, lambda: 0.0, capacity_bytes=BYTES_IN_MEMORY)
    [short] = _prepared(memory, [1], 100)
    [long] = _prepared(memory, [1], 1100)
    assert long.size - short.size == 1000
    assert short.size == sum(map(len, (short.code, short.fields, short.owner)))
    renewed = short.renewed((1.0, FRESH_SECONDS, 2 * FRESH_SECONDS))
    assert renewed.size == short.size
    assert renewed.fields is short.fields, "it is not there twice while the old one is still used"
