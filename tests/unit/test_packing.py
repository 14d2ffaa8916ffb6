"""Bodies that are packed in files: whatever comes in comes out, and what a disk has spoilt holds up nobody."""

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


def test_what_is_long_and_says_the_same_again_and_again_takes_little_room() -> None:
    assert len(packed(LONG)) < len(LONG) / 8


def test_what_is_short_stays_as_it_is() -> None:
    assert packed(b"x" * (WORTH_PACKING - 1)) == b"x" * (WORTH_PACKING - 1)


@pytest.mark.parametrize(
    "spoilt",
    [
        b"\0lz4",
        b"\0lz4\1",
        packed(LONG)[:-5],
        b"\0lz4" + b"\xff" * 100,
        b"\0lz4\xff\xff\xff\x7f" + packed(LONG)[8:],
    ],
    ids=["nothing behind the mark", "no size", "cut off", "no packed bytes", "a size that nothing has"],
)
def test_what_was_spoilt_stays_as_it_is(spoilt: bytes) -> None:
    assert unpacked(spoilt) == spoilt
