"""What a client asks of a list: how many rows, and behind which one; whatever stands in the URL is read or refused."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.errors import Invalid
from refract.runtime.paging import DEFAULT_LIMIT, LARGEST_LIMIT, NEWEST, MomentCursor, read_limit

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
MOMENTS = st.integers(0, (LAST - EPOCH) // timedelta(microseconds=1)).map(
    lambda passed: EPOCH + timedelta(microseconds=passed)
)
WRITTEN = MomentCursor(datetime(2026, 3, 1, 12, tzinfo=UTC), str(UUID(int=7))).write()


@given(moment=MOMENTS, key=st.uuids())
def test_a_cursor_comes_back(moment: datetime, key: UUID) -> None:
    cursor = MomentCursor(moment, str(key))
    assert MomentCursor.read(cursor.write()) == cursor


@given(text=st.text(min_size=1) | st.from_regex(r"[0-9a-zA-Z]{0,14}-[0-9a-zA-Z]{0,24}", fullmatch=True))
def test_a_text_is_a_cursor_that_would_be_written_so_or_refused(text: str) -> None:
    with suppress(Invalid):
        assert MomentCursor.read(text).write() == text


@pytest.mark.parametrize(
    "text",
    [
        "-",
        "0",
        "0-",
        "-0",
        "0_0",
        "0-0-0",
        "00-0",
        "0-00",
        " 0-0",
        "0-0\n",
        "0-\u0660",
        "0-\ud800",
        "0-\0",
        "zzzzzzzzzzz-0",
        "0-zzzzzzzzzzzzzzzzzzzzzz",
        WRITTEN.replace("-", "+"),
        f"{WRITTEN}{'0' * 40}",
        "0" * 1_000_000,
    ],
    ids=lambda text: ascii(text[:24]),
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"^after is not a cursor$"):
        MomentCursor.read(text)


def test_without_a_cursor_a_list_begins_with_its_newest() -> None:
    first = MomentCursor.read("")
    assert first == NEWEST
    assert (first.moment, first.key) > (datetime(9998, 12, 31, tzinfo=UTC), str(UUID(int=2**128 - 1)))


@pytest.mark.parametrize(
    ("text", "limit"),
    [("", DEFAULT_LIMIT), ("1", 1), ("+7", 7), ("007", 7), ("100", 100), ("101", LARGEST_LIMIT), ("9" * 5_000, 100)],
)
def test_a_limit_is_a_number_and_never_more_than_the_largest(text: str, limit: int) -> None:
    assert read_limit(text) == limit


@pytest.mark.parametrize("text", ["0", "00", "+", "++1", "-1", "1.0", "1e2", " 1", "1 ", "ten", "\u0661", "\xb2", "\0"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"^limit must be a positive integer$"):
        read_limit(text)
