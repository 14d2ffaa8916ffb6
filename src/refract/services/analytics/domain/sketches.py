"""How many visitors there were, from sketches that can be added up: exact while they are few, then within 2 %.

A visitor is a hash of 48 bits. Up to MOST_EXACT of them are kept as they are; of more, only HyperLogLog's registers
are (2^15 of them: a standard error of 0.57 %), each in half a byte above the smallest. Registers of two sketches
are compared all at once, as one long integer: numpy would cost more to import than all of analytics.
"""

import math
import struct
from array import array
from binascii import hexlify, unhexlify
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from sys import byteorder
from typing import Self

MOST_EXACT = 2_048
MOST_COUNTED = 50_000
"""So many are put side by side to be counted: some milliseconds, as many as registers would take."""

HASH = 6
LONGEST_LIST = 1 + HASH * MOST_EXACT
"""A sketch of no more bytes lists its visitors; registers take more."""

_FEW = 4
"""So many visitors are looked for one by one in a list, which is not taken apart for them."""

_AT_ONCE = 4 * HASH * MOST_EXACT
"""Bytes of lists that become one set at most: if it is too large to be kept, those that follow only raise registers."""

_INDEX_BITS = 15
_REGISTERS = 1 << _INDEX_BITS
_HIGHEST = 8 * HASH - _INDEX_BITS + 1

_LISTED, _DENSE = b"\x01", 2
_SIXTY_FOUR = struct.Struct(f"{HASH}s" * 64)
_INDEX_AND_REST = struct.Struct(">HI")
"""A hash in two numbers: its first 16 bits, all but the last of which are the index, and the others."""
_BLOCK = 256
"""So many hashes are looked at together."""
_RANKS = bytes([0, *(10 - third.bit_length() for third in range(1, 256))])
"""By the third byte of a hash whose sixteenth bit is not set; 0 where the bytes after it decide."""
_ONES = int.from_bytes(b"\x01" * _BLOCK, "big")
_INDEXES = int.from_bytes(b"\x7f\xff" * _BLOCK, "big")
_DENSE_HEAD = struct.Struct("<BBH")
_EXCEPTION = struct.Struct("<HB")
_CLAMPED = 15
"""What half a byte can hold at most: such a register stands among the exceptions, with its value."""

_HIGH_BITS = int.from_bytes(b"\x80" * _REGISTERS, "little")
_DIGITS = b"0123456789abcdef"
_ALPHA = 0.5 / math.log(2)


class Sketch:
    """The visitors of a period, as far as they must be known to be counted."""

    __slots__ = ("exact", "registers")

    def __init__(self) -> None:
        self.exact: set[bytes] = set()
        self.registers: bytearray | None = None
        """Once there is one, it holds all, and `exact` is empty."""

    @classmethod
    def of(cls, visitors: Iterable[bytes]) -> Self:
        """A sketch of these visitors."""
        sketch = cls()
        sketch.add_many(visitors)
        return sketch

    @classmethod
    def decode(cls, stored: bytes | None) -> Self:
        """A sketch as it was stored; None is one of nobody."""
        sketch = cls()
        if stored is None:
            return sketch
        if _is_exact(stored):
            sketch.exact = _hashes(memoryview(stored)[1:])
        else:
            sketch.registers = _unpacked(stored)
        return sketch

    def encode(self) -> bytes | None:
        """The form to store; None for nobody."""
        if self.registers is not None:
            return _packed(self.registers)
        return _LISTED + b"".join(self.exact) if self.exact else None

    def add_many(self, visitors: Iterable[bytes]) -> None:
        """Count these too, each once however often it comes."""
        self._take(hash_visitors(visitors))

    def merge(self, other: "Sketch") -> None:
        """Count all whom the other one has counted."""
        if other.registers is None:
            self._take(other.exact)
        elif self.registers is None:
            hashes, self.exact = self.exact, set()
            self.registers = bytearray(other.registers)
            self._take(hashes)
        else:
            self.registers = _highest(self.registers, other.registers)

    def merge_stored(self, stored: bytes) -> None:
        """The same of one as it was stored, or of a list of any length, which is not taken apart where registers are
        raised by it anyway."""
        if not _is_exact(stored):
            self.merge(Sketch.decode(stored))
            return
        hashes = memoryview(stored)[1:]
        while hashes and self.registers is None:
            self._take(_hashes(hashes[:_AT_ONCE]))
            hashes = hashes[_AT_ONCE:]
        if self.registers is not None:
            _raise(self.registers, hashes)

    def estimate(self) -> int:
        """How many there are."""
        return len(self.exact) if self.registers is None else round(_estimated(self.registers))

    def _take(self, hashes: set[bytes]) -> None:
        if self.registers is None:
            self.exact |= hashes
            if len(self.exact) <= MOST_EXACT:
                return
            hashes, self.exact = self.exact, set()
            self.registers = bytearray(_REGISTERS)
        _raise(self.registers, b"".join(hashes))


def stored_with(stored: bytes | None, visitors: Collection[bytes]) -> bytes | None:
    """A stored sketch with some visitors more; None where it stays as it is."""
    if stored is None or len(visitors) > _FEW or not _is_exact(stored) or len(stored) > HASH * (MOST_EXACT - _FEW):
        sketch = Sketch.decode(stored)
        sketch.add_many(visitors)
        return sketch.encode()
    more = b"".join(hashed for hashed in hash_visitors(visitors) if not _lists(stored, hashed))
    return stored + more if more else None


def _lists(stored: bytes, hashed: bytes) -> bool:
    """Whether a hash is in a list: looked for among the bytes, and only where one begins."""
    place = stored.find(hashed, 1)
    while place > 0 and place % HASH != 1:
        place = stored.find(hashed, place + 1)
    return place > 0


def count_stored(stored: bytes | None) -> int:
    """How many visitors a sketch has counted, as it was stored."""
    if stored is not None and _is_exact(stored):
        return len(stored) // HASH
    return Sketch.decode(stored).estimate()


def count_together(stored: Iterable[bytes | None]) -> int:
    """How many visitors these have counted, each once; one by one where that is possible, as nothing of it is kept."""
    some = [one for one in stored if one is not None]
    if sum(map(len, some)) > HASH * MOST_COUNTED or not all(map(_is_exact, some)):
        return merge_sketches(some).estimate()
    return len(_hashes(memoryview(b"".join([one[1:] for one in some]))))


def list_together(stored: Sequence[bytes], visitors: Collection[bytes], most: int) -> tuple[int, bytes] | None:
    """How many these have counted, and some visitors more, each once; and a list of them, empty where there is nobody.

    Somebody may be named twice in it, but most are not: to list each once takes longer than to count them.
    None where they are not listed, or might be more than so many.
    """
    if sum(map(len, stored)) // HASH + len(visitors) > most or not all(map(_is_exact, stored)):
        return None
    hashes = b"".join([*[one[1:] for one in stored], *hash_visitors(visitors)])
    each_once = _hashes(memoryview(hashes))
    if 2 * HASH * len(each_once) < len(hashes):
        hashes = b"".join(each_once)
    return len(each_once), _LISTED + hashes if hashes else b""


def merge_sketches(stored: Iterable[bytes | None]) -> Sketch:
    """One sketch of all whom these have counted, each visitor once."""
    merged = Sketch()
    listed: list[bytes] = []  # many at once: hours of a link with few clicks are hundreds, with a handful each
    size = 0
    for one in stored:
        if one is None:
            continue
        if not _is_exact(one):
            merged.merge_stored(one)
            continue
        listed.append(one[1:])
        size += len(one)
        if size > _AT_ONCE:
            merged.merge_stored(_LISTED + b"".join(listed))
            listed, size = [], 0
    if listed:
        merged.merge_stored(_LISTED + b"".join(listed))
    return merged


def _is_exact(stored: bytes) -> bool:
    """Whether it lists its visitors; raises ValueError for what is no sketch at all."""
    if stored[:1] == _LISTED and len(stored) % HASH == 1 and len(stored) > 1:
        return True
    if stored[:1] == b"\x02":
        return False
    raise ValueError("not a sketch of visitors")


def hash_visitor(visitor: bytes) -> bytes:
    """What is kept of a visitor: HASH bytes."""
    return blake2b(visitor, digest_size=HASH).digest()


def hash_visitors(visitors: Iterable[bytes]) -> set[bytes]:
    """The same of several, each once."""
    return {blake2b(visitor, digest_size=HASH).digest() for visitor in set(visitors)}


def list_of(hashes: bytes) -> bytes:
    """Hashes one after the other as a list: a sketch, if nobody is named twice in it and they are not too many."""
    return _LISTED + hashes


def _hashes(listed: memoryview) -> set[bytes]:
    """The visitors of a list, most of them 64 at a time, which takes a third of the time."""
    hashes: set[bytes] = set()
    end = len(listed) // _SIXTY_FOUR.size * _SIXTY_FOUR.size
    for some in _SIXTY_FOUR.iter_unpack(listed[:end]):
        hashes.update(some)
    rest = bytes(listed[end:])
    hashes.update([rest[place : place + HASH] for place in range(0, len(rest), HASH)])
    return hashes


def _raise(registers: bytearray, hashes: bytes | memoryview) -> None:
    """Count visitors: block by block, and the last ones by themselves."""
    end = len(hashes) - len(hashes) % (HASH * _BLOCK)
    for start in range(0, end, HASH * _BLOCK):
        for index, rank in _ranked(bytes(hashes[start : start + HASH * _BLOCK])):
            if registers[index] < rank:  # noqa: PLR1730  # max() costs as much as all the rest
                registers[index] = rank
    for first, rest in _INDEX_AND_REST.iter_unpack(hashes[end:]):
        rank = 1 if first & 1 else _HIGHEST - rest.bit_length()
        if registers[first >> 1] < rank:  # noqa: PLR1730
            registers[first >> 1] = rank


def _ranked(block: bytes) -> Iterable[tuple[int, int]]:
    """The register and the rank of each hash in a block, in any order. Computed of all at once, as long integers, they
    take half of the time."""
    pairs = bytearray(2 * _BLOCK)
    pairs[0::2], pairs[1::2] = block[0::HASH], block[1::HASH]
    ranks = bytearray(block[2::HASH].translate(_RANKS))
    place = ranks.find(0)
    while place >= 0:
        rest = block[HASH * place + 2 : HASH * (place + 1)]
        ranks[place] = _HIGHEST - int.from_bytes(rest, "big").bit_length()
        place = ranks.find(0, place + 1)
    # A hash whose sixteenth bit is set has rank 1, whatever follows.
    first = int.from_bytes(pairs[1::2], "big") & _ONES
    ranked = int.from_bytes(ranks, "big") & ~(255 * first) | first
    indexes = int.from_bytes(pairs, "big") >> 1 & _INDEXES
    # In this machine's own order of bytes, which for both is the same.
    return zip(array("H", indexes.to_bytes(2 * _BLOCK, byteorder)), ranked.to_bytes(_BLOCK, byteorder), strict=True)


def _highest(one: bytearray, other: bytearray) -> bytearray:
    """The higher of each two registers. None uses the highest bit of its byte, which is where the comparison shows."""
    a, b = int.from_bytes(one, "little"), int.from_bytes(other, "little")
    not_less = ((a | _HIGH_BITS) - b) & _HIGH_BITS
    from_a = not_less - (not_less >> 7)
    return bytearray((b ^ ((a ^ b) & from_a)).to_bytes(_REGISTERS, "little"))


def _packed(registers: bytearray) -> bytes:
    smallest = next(value for value in range(_HIGHEST + 1) if value in registers)
    digits = registers.translate(_to_digits(smallest))
    exceptions = bytearray()
    count, place = 0, digits.find(b"f")
    while place >= 0:
        exceptions += _EXCEPTION.pack(place, registers[place])
        count, place = count + 1, digits.find(b"f", place + 1)
    return _DENSE_HEAD.pack(_DENSE, smallest, count) + exceptions + unhexlify(digits)


def _unpacked(stored: bytes) -> bytearray:
    try:
        _, smallest, count = _DENSE_HEAD.unpack_from(stored)
        end = _DENSE_HEAD.size + count * _EXCEPTION.size
        if smallest > _HIGHEST or len(stored) != end + _REGISTERS // 2:
            raise ValueError("not a sketch of visitors")
        registers = bytearray(hexlify(stored[end:]).translate(_from_digits(smallest)))
        for place, value in _EXCEPTION.iter_unpack(stored[_DENSE_HEAD.size : end]):
            if place >= _REGISTERS or value > _HIGHEST:
                raise ValueError("not a sketch of visitors")
            registers[place] = value
    except struct.error:
        raise ValueError("not a sketch of visitors") from None
    return registers


@lru_cache(maxsize=_HIGHEST + 1)
def _to_digits(smallest: int) -> bytes:
    return bytes(_DIGITS[min(max(value - smallest, 0), _CLAMPED)] for value in range(256))


@lru_cache(maxsize=_HIGHEST + 1)
def _from_digits(smallest: int) -> bytes:
    table = bytearray(256)
    for value, digit in enumerate(_DIGITS):
        table[digit] = min(smallest + value, _HIGHEST)
    return bytes(table)


def _estimated(registers: bytearray) -> float:
    """Ertl's estimator (2017), which needs no table of corrections and holds from none to all."""
    counts = _counted(registers)
    z = _REGISTERS * _tau(1 - counts[_HIGHEST] / _REGISTERS)
    for count in reversed(counts[1:_HIGHEST]):
        z = 0.5 * (z + count)
    z += _REGISTERS * _sigma(counts[0] / _REGISTERS)
    return _ALPHA * _REGISTERS * _REGISTERS / z


def _counted(registers: bytearray) -> list[int]:
    """How many registers have each value. What is counted is taken out, which is faster than to count one by one."""
    counts = []
    for value in range(_HIGHEST + 1):
        others = registers.translate(None, bytes((value,))) if value in registers else registers
        counts.append(len(registers) - len(others))
        registers = others
    return counts


def _sigma(x: float) -> float:
    """The part of the registers that nobody has touched."""
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    """The part of those that can rise no more."""
    if x in {0.0, 1.0}:
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x, before = math.sqrt(x), z
        y *= 0.5
        z -= (1 - x) ** 2 * y
    return z / 3
