"""Counting visitors by sketches: exact while they are few, within 2 % when they are many, and never twice."""

import random
import statistics
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.analytics.domain import sketches
from refract.services.analytics.domain.sketches import (
    MOST_COUNTED,
    MOST_EXACT,
    Sketch,
    count_stored,
    count_together,
    list_together,
    merge_sketches,
    stored_with,
)

VISITORS = st.sets(st.binary(max_size=32), max_size=60)


def visitors(count: int, seed: int = 0) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(32) for _ in range(count)]


def error(count: int, seed: int) -> float:
    return Sketch.of(visitors(count, seed)).estimate() / count - 1


class TestExact:
    @given(VISITORS, VISITORS)
    def test_few_are_counted_exactly(self, some: set[bytes], others: set[bytes]) -> None:
        sketch = Sketch.of([*some, *some])
        assert sketch.estimate() == len(some)
        sketch.merge(Sketch.of(others))
        assert sketch.estimate() == len(some | others)
        assert merge_sketches([Sketch.of(some).encode(), None, Sketch.of(others).encode()]).estimate() == len(
            some | others
        )

    def test_to_the_last_that_there_is_room_for(self) -> None:
        sketch = Sketch.of(visitors(MOST_EXACT))
        assert sketch.estimate() == MOST_EXACT
        stored = sketch.encode()
        assert stored is not None
        assert len(stored) == 1 + 6 * MOST_EXACT
        sketch.add_many([b"one more"])
        assert sketch.estimate() == pytest.approx(MOST_EXACT + 1, rel=0.02)

    def test_numbers_that_look_alike_are_told_apart(self) -> None:
        """Nobody says that a visitor's name is a good hash."""
        assert Sketch.of(number.to_bytes(32, "big") for number in range(2_000)).estimate() == 2_000
        assert Sketch.of(b"%d" % number for number in range(50_000)).estimate() == pytest.approx(50_000, rel=0.02)

    def test_one_takes_few_bytes_and_nobody_none(self) -> None:
        stored = Sketch.of([b"somebody"]).encode()
        assert stored is not None
        assert len(stored) == 7
        assert Sketch().encode() is None
        assert Sketch.decode(None).estimate() == 0


class TestGrowing:
    """A stored sketch that gets a few visitors more, without being taken apart."""

    @given(VISITORS, st.lists(st.binary(max_size=32), max_size=12))
    def test_it_counts_them_each_once(self, some: set[bytes], more: list[bytes]) -> None:
        stored = Sketch.of(some).encode()
        for count in range(len(more) + 1):
            together = stored_with(stored, more[:count])
            together = stored if together is None else together
            assert Sketch.decode(together).exact == Sketch.of([*some, *more[:count]]).exact

    def test_it_stays_as_it_is_where_all_are_known(self) -> None:
        known = visitors(500)
        stored = Sketch.of(known).encode()
        assert all(stored_with(stored, [one]) is None for one in known)

    def test_whoever_only_seems_to_be_listed_is_counted(self) -> None:
        """The bytes of a hash may stand across the bounds of two others, and then once more in their place."""
        hashed = Sketch.of([b"somebody"]).encode()
        assert hashed is not None
        across = b"\x01abc" + hashed[1:] + b"def"
        assert stored_with(across, [b"somebody"]) == across + hashed[1:]
        assert stored_with(across + hashed[1:], [b"somebody"]) is None

    def test_it_becomes_registers_when_there_are_too_many(self) -> None:
        stored = None
        everybody = visitors(MOST_EXACT + 20)
        for count, visitor in enumerate(everybody, 1):
            stored = stored_with(stored, [visitor])
            assert stored is not None
            assert (stored[:1] == b"\x01") == (count <= MOST_EXACT)
            if stored[:1] == b"\x01":
                assert count_stored(stored) == count
        assert stored == Sketch.of(everybody).encode()

    def test_what_is_none_is_refused(self) -> None:
        with pytest.raises(ValueError, match="not a sketch"):
            stored_with(b"\x01abc", [b"somebody"])


class TestError:
    @pytest.mark.parametrize("count", [2_100, 3_000, 5_000, 10_000, 30_000])
    def test_many_are_within_two_percent(self, count: int) -> None:
        assert all(abs(error(count, seed)) < 0.02 for seed in range(5))

    def test_a_great_many_are_too(self) -> None:
        """All sizes on the way to half a million, of one sketch that grows."""
        chance, sketch, count = random.Random(1), Sketch(), 0
        for more in [10_000] * 10 + [100_000] * 4:
            # Random hashes are what hashes of visitors are; to make them is a tenth of the work.
            sketch._take({chance.randbytes(6) for _ in range(more)})
            count += more
            assert sketch.estimate() == pytest.approx(count, rel=0.02)

    def test_the_error_has_no_direction(self) -> None:
        errors = [error(6_000, seed) for seed in range(40)]
        assert abs(statistics.fmean(errors)) < 0.003
        assert statistics.pstdev(errors) < 0.009

    def test_days_add_up_without_counting_anybody_twice(self) -> None:
        """A month of days with mostly the same visitors: to add up the days would be wrong by a factor."""
        chance, everybody = random.Random(2), visitors(12_000, seed=3)
        days = [chance.sample(everybody, 4_000) for _ in range(12)]
        exact = len(set().union(*days))
        merged = merge_sketches(Sketch.of(day).encode() for day in days)
        assert merged.estimate() == pytest.approx(exact, rel=0.02)
        assert sum(Sketch.of(day).estimate() for day in days) > 3 * exact


class TestCountingTogether:
    def test_exact_ones_are_counted_exactly_however_many_they_are(self) -> None:
        chance, everybody = random.Random(5), visitors(9_000, seed=3)
        days = [chance.sample(everybody, 1_500) for _ in range(20)]
        stored = [Sketch.of(day).encode() for day in days]
        assert count_together([*stored, None]) == len(set().union(*days))
        assert count_together(stored[:1]) == 1_500
        assert count_together([]) == count_together([None, None]) == 0

    @pytest.mark.parametrize("sizes", [(100, 5_000), (5_000, 100, 0), (MOST_EXACT,) * (MOST_COUNTED // MOST_EXACT + 1)])
    def test_what_is_too_much_is_estimated(self, sizes: tuple[int, ...]) -> None:
        stored = [Sketch.of(visitors(size, seed)).encode() for seed, size in enumerate(sizes)]
        assert count_together(stored) == merge_sketches(stored).estimate()
        assert count_together(stored) == pytest.approx(sum(sizes), rel=0.02)

    def test_what_is_no_sketch_is_refused(self) -> None:
        with pytest.raises(ValueError, match="not a sketch"):
            count_together([Sketch.of([b"somebody"]).encode(), b"\x01abc"])


class TestListingTogether:
    def test_all_are_listed_and_counted_once(self) -> None:
        everybody = visitors(3_000, seed=3)
        stored = [Sketch.of(everybody[first : first + 1_000]).encode() or b"" for first in (0, 500, 1_200)]
        listed = list_together(stored, everybody[:10] + everybody[2_500:], MOST_EXACT * 2)
        assert listed is not None
        assert listed[0] == 2_700
        assert merge_sketches([listed[1]]).registers == Sketch.of(everybody[:2_200] + everybody[2_500:]).registers

    def test_a_list_in_which_most_are_named_again_names_each_once(self) -> None:
        some = Sketch.of(visitors(100)).encode() or b""
        count, listed = list_together([some] * 3, visitors(100), 1_000) or (0, b"")
        assert (count, len(listed)) == (100, len(some))

    def test_nobody_gives_an_empty_one(self) -> None:
        assert list_together([], [], 10) == (0, b"")

    def test_what_is_no_list_or_too_long_gives_none(self) -> None:
        some, many = (Sketch.of(visitors(count)).encode() or b"" for count in (100, 5_000))
        assert list_together([some, many], [], 100_000) is None
        assert list_together([some, some], [], 150) is None
        assert list_together([some], visitors(51), 150) is None
        assert list_together([some], visitors(50, seed=1), 150) is not None
        with pytest.raises(ValueError, match="not a sketch"):
            list_together([b"\x01abc"], [], 150)


class TestMerging:
    def test_any_order_and_any_sizes_give_the_same(self) -> None:
        parts = [visitors(count, seed) for seed, count in enumerate((1, 1_500, 1_500, 9_000, 0, 12_000))]
        whole = Sketch.of(visitor for part in parts for visitor in part)
        for order in (parts, parts[::-1], parts[3:] + parts[:3]):
            merged = merge_sketches(Sketch.of(part).encode() for part in order)
            assert merged.encode() == whole.encode()
        assert abs(whole.estimate() / 24_001 - 1) < 0.02

    def test_many_that_are_listed_come_to_the_same_as_one_by_one(self) -> None:
        parts = [visitors(300, seed) for seed in range(100)]
        stored = [Sketch.of(part).encode() for part in parts]
        alone = Sketch()
        for part in parts:
            alone.merge(Sketch.of(part))
        assert merge_sketches(stored).registers == alone.registers
        assert merge_sketches(stored[:6]).exact == {hashed for part in parts[:6] for hashed in Sketch.of([*part]).exact}
        assert merge_sketches([stored[0]] * 500).estimate() == 300

    def test_the_other_one_stays_as_it_is(self) -> None:
        for count in (100, 5_000):
            one, other = Sketch.of(visitors(5_000, 1)), Sketch.of(visitors(count, 2))
            before = other.encode()
            for receiver in (one, Sketch()):
                receiver.merge(other)
                receiver.add_many(visitors(3_000, 4))
            assert other.encode() == before

    @pytest.mark.parametrize("count", [1, 100, MOST_EXACT, 5_000])
    def test_one_that_is_stored_is_merged_like_any_other(self, count: int) -> None:
        other = Sketch.of(visitors(count, 2))
        stored = other.encode()
        assert stored is not None
        for before in (0, 1_000, 5_000):
            one, same = Sketch.of(visitors(before, 1)), Sketch.of(visitors(before, 1))
            one.merge(other)
            same.merge_stored(stored)
            assert (same.exact, same.registers) == (one.exact, one.registers)

    @pytest.mark.parametrize(("distinct", "repeated"), [(100, 600), (MOST_EXACT, 30), (5_000, 20)])
    def test_a_long_list_may_name_anybody_often(self, distinct: int, repeated: int) -> None:
        people = visitors(distinct, 7)
        hashes = b"".join(hashed for one in people for hashed in Sketch.of([one]).exact)
        expected = Sketch.of(people)
        sketch = Sketch()
        sketch.merge_stored(b"\x01" + hashes * repeated)
        assert (sketch.exact, sketch.registers) == (expected.exact, expected.registers)

    def test_a_register_has_the_highest_rank_of_its_visitors(self) -> None:
        """As stored sketches have it, which nobody counts anew: 15 bits of a hash are the register, 33 its rank."""
        chance = random.Random(6)
        hashes = {chance.randbytes(6) for _ in range(60_000)} | {bytes(6), b"\xff" * 6, b"\0\2" + bytes(4)}
        expected = bytearray(2**15)
        for number in (int.from_bytes(hashed, "big") for hashed in hashes):
            rank = 34 - (number % 2**33).bit_length()
            expected[number // 2**33] = max(expected[number // 2**33], rank)
        sketch = Sketch()
        sketch._take(hashes)
        assert sketch.registers == expected

    def test_registers_are_compared_each_by_itself(self) -> None:
        chance = random.Random(9)
        one, other = (bytearray(chance.choices(range(35), k=2**15)) for _ in range(2))
        assert sketches._highest(one, other) == bytearray(map(max, one, other))


class TestStored:
    def test_a_full_one_comes_back_as_it_was(self) -> None:
        for count in (2_049, 20_000, 400_000):
            sketch = Sketch()
            sketch._take({random.Random(count).randbytes(6) for _ in range(1)})
            chance = random.Random(count)
            sketch._take({chance.randbytes(6) for _ in range(count)})
            stored = sketch.encode()
            assert stored is not None
            assert len(stored) < 17_000
            assert Sketch.decode(stored).registers == sketch.registers

    def test_registers_that_are_far_apart_are_kept(self) -> None:
        sketch = Sketch()
        sketch.registers = bytearray([3] * 2**15)
        for place, value in ((0, 34), (5, 18), (2**15 - 1, 17), (7, 3)):
            sketch.registers[place] = value
        assert Sketch.decode(sketch.encode()).registers == sketch.registers

    def test_the_size_steps_up_gently(self) -> None:
        sizes = [len(Sketch.of(visitors(count)).encode() or b"") for count in (1, 10, 1_000, 2_048, 2_049, 50_000)]
        assert all(before < after for before, after in pairwise(sizes[:4]))
        assert max(sizes) < 17_000

    @pytest.mark.parametrize(
        "stored",
        [
            b"",
            b"\x00",
            b"\x01",
            b"\x01abc",
            b"\x01abcdefg",
            b"\x02",
            b"\x02\x00\x00",
            b"\x02\x00\x00\x00" + bytes(16_383),
            b"\x02\x00\x00\x00" + bytes(16_385),
            b"\x02\x63\x00\x00" + bytes(16_384),
            b"\x02\x00\x01\x00\xff\xff\x01" + bytes(16_384),
            b"\x02\x00\x01\x00\x00\x00\x63" + bytes(16_384),
            b"\x03" + bytes(16_384),
        ],
    )
    def test_what_is_no_sketch_is_refused(self, stored: bytes) -> None:
        full = Sketch.of(visitors(5_000))
        before = full.encode()
        for read in (Sketch.decode, count_stored, Sketch().merge_stored, full.merge_stored):
            with pytest.raises(ValueError, match="not a sketch"):
                read(stored)
        assert full.encode() == before

    @pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 127, 128, 1_000, MOST_EXACT, MOST_EXACT + 1, 20_000])
    def test_it_is_counted_without_being_read(self, count: int) -> None:
        sketch = Sketch.of(visitors(count))
        assert count_stored(sketch.encode()) == sketch.estimate()
        assert Sketch.decode(sketch.encode()).exact == sketch.exact


def test_no_large_package_is_imported() -> None:
    script = "import sys, refract.services.analytics.domain.sketches; print('numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
