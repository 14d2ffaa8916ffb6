"""The order of files when several processes share the tests: those that wait beside those that compute.

Files of faults and journeys wait for servers that are killed and started; most others keep a core busy. One kind after
the other leaves the cores idle at one time and crowded at another, and a long file at the end keeps one process alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest

WAITING = ("tests/faults/", "tests/journeys/")
SHORT = ("tests/unit/",)


def in_order(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Tests, file by file, in the order in which they are handed out."""
    files: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    return [item for file in mixed(list(files)) for item in files[file]]


def mixed(files: Sequence[str]) -> list[str]:
    """Files that wait evenly among the others, beginning with one; short ones at the end."""
    short = [file for file in files if file.startswith(SHORT)]
    waiting = [file for file in files if file.startswith(WAITING)]
    others = [file for file in files if file not in {*short, *waiting}]
    places = {file: number / len(group) for group in (waiting, others) for number, file in enumerate(group)}
    return [*sorted(places, key=lambda file: (places[file], file not in waiting)), *short]
