"""Bodies that are packed in files: whatever comes in comes out, and what a disk has spoilt holds up nobody."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.runtime.embedded.packing import WORTH_PACKING, packed, unpacked, unpacked_size

LONG = b'{"event_type":"url.clicked"},' * 100


@given(st.binary(max_size=3 * WORTH_PACKING) | st.binary(max_size=8).map(lambda end: b"\0lz4" + end))
def test_every_body_comes_out_as_it_went_in(body: bytes) -> None:
    stored = packed(body)

    assert unpacked(stored) == body
    assert unpacked_size(stored) == len(body)


def test_what_is_packed_can_be_packed_again() -> None:
    assert unpacked(packed(packed(LONG))) == packed(LONG)


def test_what_is_long_and_says_the_same_again_and_again_takes_little_room() -> None:
    assert len(packed(LONG)) < len(LONG) / 8


def test_what_is_short_stays_as_it_is() -> None:
    assert packed(b"x" * (WORTH_PACKING - 1)) == b"x" * (WORTH_PACKING - 1)


def test_what_cannot_be_said_in_less_stays_as_it_is() -> None:
    noise = random.Random(1).randbytes(10 * WORTH_PACKING)
    assert packed(noise) == noise


@pytest.mark.parametrize(
    "spoilt",
    [b"\0lz4", b"\0lz4\1", packed(LONG)[:-5], b"\0lz4" + b"\xff" * 100],
    ids=["nothing behind the mark", "no checksum", "cut off", "no packed bytes"],
)
def test_what_was_spoilt_stays_as_it_is(spoilt: bytes) -> None:
    assert unpacked(spoilt) == spoilt


@given(place=st.integers(4, len(packed(LONG)) - 1), bit=st.integers(0, 7))
def test_no_bit_can_be_turned_unnoticed(place: int, bit: int) -> None:
    spoilt = bytearray(packed(LONG))
    spoilt[place] ^= 1 << bit
    assert unpacked(bytes(spoilt)) == spoilt
