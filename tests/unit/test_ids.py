"""Ids: base62 and its vectors, snowflakes under a turned clock, and the two forms of event ids."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.ids import (
    ALPHABET,
    EPOCH_MILLISECONDS,
    MAX_AGE_MILLISECONDS,
    MAX_SEQUENCE,
    MAX_WORKER,
    Snowflakes,
    decode_base62,
    encode_base62,
    new_correlation_id,
    new_event_id,
    new_event_ids,
    new_platform_event_id,
    snowflake_moment,
    snowflake_worker,
)

ages = st.integers(min_value=0, max_value=MAX_AGE_MILLISECONDS)
workers = st.integers(min_value=0, max_value=MAX_WORKER)


class TurnedClock:
    """Shows the milliseconds it was last set to, counted from the snowflakes' epoch."""

    def __init__(self, age: int = 0) -> None:
        self.age = age

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.milliseconds() / 1000, UTC)

    def milliseconds(self) -> int:
        return EPOCH_MILLISECONDS + self.age

    def monotonic(self) -> float:
        return self.age / 1000


def fields(snowflake: int) -> tuple[int, int, int]:
    return snowflake >> 22, snowflake >> 12 & 1023, snowflake & 4095


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9, "9"),
        (10, "a"),
        (35, "z"),
        (36, "A"),
        (61, "Z"),
        (62, "10"),
        (62**7 - 1, "ZZZZZZZ"),
        (123456789012345678, "97qS0b7N2m"),
        (2**63 - 1, "aZl8N0y58M7"),
    ],
)
def test_base62_of_known_numbers(number: int, text: str) -> None:
    assert encode_base62(number) == text
    assert decode_base62(text) == number


def test_the_example_of_document_004_is_another_number() -> None:
    assert decode_base62("dBvJIX9uyO") != 123456789012345678


def test_the_alphabet_is_digits_then_lower_then_upper_case() -> None:
    assert ALPHABET == "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@given(st.integers(min_value=0))
def test_base62_comes_back(number: int) -> None:
    assert decode_base62(encode_base62(number)) == number


@given(st.text(ALPHABET, min_size=1, max_size=50))
def test_base62_text_comes_back_without_leading_zeros(text: str) -> None:
    assert encode_base62(decode_base62(text)) == (text.lstrip("0") or "0")


@given(st.integers(min_value=0, max_value=2**70), st.integers(min_value=0, max_value=2**70))
def test_base62_of_equal_length_sorts_by_the_alphabet_as_its_numbers_do(one: int, other: int) -> None:
    width = max(len(encode_base62(one)), len(encode_base62(other)))
    places = [[ALPHABET.index(digit) for digit in encode_base62(number).rjust(width, "0")] for number in (one, other)]
    assert (places[0] < places[1]) == (one < other)


@pytest.mark.parametrize("text", ["", "-1", "a b", "é", "٣", "abc\n", "a_b"])
def test_text_that_is_not_base62_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="base62"):
        decode_base62(text)


def test_base62_has_no_negative_numbers() -> None:
    with pytest.raises(ValueError, match="-1"):
        encode_base62(-1)


@given(ages, workers)
def test_a_snowflake_carries_its_millisecond_its_worker_and_its_sequence(age: int, worker: int) -> None:
    snowflakes = Snowflakes(worker, TurnedClock(age))
    assert [fields(snowflakes.next()) for _ in range(3)] == [(age, worker, sequence) for sequence in range(3)]


@given(ages, workers)
def test_a_snowflake_tells_when_and_by_whom_it_was_made(age: int, worker: int) -> None:
    snowflake = Snowflakes(worker, TurnedClock(age)).next()
    assert snowflake_moment(snowflake) == datetime(2024, 1, 1, tzinfo=UTC) + timedelta(milliseconds=age)
    assert snowflake_worker(snowflake) == worker
    assert 0 <= snowflake < 2**63


@given(workers, st.lists(st.integers(min_value=0, max_value=20), min_size=1, max_size=200))
def test_snowflakes_grow_whatever_the_clock_does(worker: int, clock_ages: list[int]) -> None:
    clock = TurnedClock()
    snowflakes = Snowflakes(worker, clock)
    made = []
    for clock.age in clock_ages:
        made.append(snowflakes.next())
    assert all(before < after for before, after in pairwise(made))
    assert {snowflake_worker(snowflake) for snowflake in made} == {worker}


def test_a_clock_that_steps_back_repeats_nothing() -> None:
    clock = TurnedClock(1000)
    snowflakes = Snowflakes(1, clock)
    first = snowflakes.next()
    clock.age = 10
    assert fields(snowflakes.next()) == (1000, 1, 1)
    clock.age = 1001
    assert fields(snowflakes.next()) == (1001, 1, 0)
    assert fields(first) == (1000, 1, 0)


def test_a_used_up_millisecond_borrows_the_next() -> None:
    snowflakes = Snowflakes(7, TurnedClock(5))
    made = [fields(snowflakes.next()) for _ in range(MAX_SEQUENCE + 3)]
    assert made[MAX_SEQUENCE:] == [(5, 7, MAX_SEQUENCE), (6, 7, 0), (6, 7, 1)]


def test_eight_threads_never_make_the_same_snowflake() -> None:
    snowflakes = Snowflakes(3)
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: [snowflakes.next() for _ in range(5000)], range(8)))
    assert len({snowflake for batch in batches for snowflake in batch}) == 8 * 5000
    assert all(batch == sorted(batch) for batch in batches)


def test_one_thread_at_a_time_makes_a_snowflake() -> None:
    class CrowdedClock(TurnedClock):
        """Notes how many threads read it at once, and gives the others a chance to."""

        readers = 0
        most_readers = 0

        def milliseconds(self) -> int:
            self.readers += 1
            self.most_readers = max(self.most_readers, self.readers)
            time.sleep(0.001)
            self.readers -= 1
            return super().milliseconds()

    clock = CrowdedClock()
    snowflakes = Snowflakes(3, clock)
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: snowflakes.next(), range(40)))) == 40
    assert clock.most_readers == 1


@pytest.mark.parametrize("worker", [-1, MAX_WORKER + 1])
def test_a_worker_out_of_range_is_refused(worker: int) -> None:
    with pytest.raises(ValueError, match=f"0 to 1023, not {worker}"):
        Snowflakes(worker)


@pytest.mark.parametrize("age", [-1, -(10**9), MAX_AGE_MILLISECONDS + 1])
def test_a_clock_outside_the_years_of_snowflakes_is_refused_and_leaves_no_trace(age: int) -> None:
    clock = TurnedClock(age)
    snowflakes = Snowflakes(0, clock)
    for _ in range(MAX_SEQUENCE + 2):
        with pytest.raises(ValueError, match="2024"):
            snowflakes.next()
    clock.age = 8
    assert fields(snowflakes.next()) == (8, 0, 0)


def test_event_ids_are_uuids_that_grow() -> None:
    made = [new_event_id() for _ in range(1000)]
    assert made == sorted(set(made))
    assert {uuid.UUID(event_id).version for event_id in made} == {7}


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_event_ids_that_are_made_together_are_uuids_as_well(count: int) -> None:
    made = [event_id.decode() for _ in range(20) for event_id in new_event_ids(count)]
    assert len(set(made)) == len(made) == 20 * count
    assert all(str(uuid.UUID(event_id)) == event_id for event_id in made)
    assert {uuid.UUID(event_id).version for event_id in made} <= {7}


def test_platform_event_ids_have_their_prefix() -> None:
    prefix, _, rest = new_platform_event_id().partition("_")
    assert prefix == "evt"
    assert str(uuid.UUID(rest)) == rest


def test_correlation_ids_are_random_uuids() -> None:
    first, second = new_correlation_id(), new_correlation_id()
    assert first != second
    assert uuid.UUID(first).version == 4
