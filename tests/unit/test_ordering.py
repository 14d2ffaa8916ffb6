"""The order in which files of tests are handed out."""

from tests.support.ordering import mixed

OTHERS = [f"tests/services/test_{number}.py" for number in range(8)]
WAITING = ["tests/faults/test_a.py", "tests/faults/test_b.py", "tests/journeys/test_a.py", "tests/journeys/test_b.py"]
SHORT = ["tests/unit/test_a.py", "tests/unit/test_b.py"]


def test_files_that_wait_are_spread_among_the_others_and_short_ones_come_last() -> None:
    found = mixed([*WAITING, *SHORT, *OTHERS])
    assert found[-2:] == SHORT
    assert [number for number, file in enumerate(found) if file in WAITING] == [0, 3, 6, 9]
    assert [file for file in found if file in OTHERS] == OTHERS


def test_no_file_is_lost_or_doubled() -> None:
    for files in ([], WAITING, SHORT, OTHERS, [*OTHERS, *WAITING], [*SHORT, *WAITING], [*SHORT, *OTHERS, *WAITING]):
        assert sorted(mixed(files)) == sorted(files)
