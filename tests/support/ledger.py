"""A ledger: what a client attempted and what it was told, in a file, to be compared with what is found afterwards."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ATTEMPT, ANSWER = "?", "!"


@dataclass(frozen=True)
class Verdict:
    """What a comparison came to; only a good one is equal to `Verdict()`."""

    lost: tuple[int, ...] = ()
    """Acknowledged and not found."""
    unexpected: tuple[int, ...] = ()
    """Found and never attempted."""
    repeated: tuple[int, ...] = ()
    """Found more than once."""


class Ledger:
    """Attempts and answers by number, as lines of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attempted = 0
        self.answered = 0
        self._file = path.open("a", encoding="ascii")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def attempt(self) -> int:
        """Write down that something is tried, before it is; its number."""
        number = self.attempted
        self.attempted += 1
        self._file.write(f"{ATTEMPT} {number}\n")
        return number

    def answer(self, number: int) -> None:
        """Write down that it was acknowledged."""
        self.answered += 1
        self._file.write(f"{ANSWER} {number}\n")

    def compare(self, found: Iterable[int]) -> Verdict:
        """Hold what was found, each as often as it is there, against the file."""
        attempted, acknowledged = self._read()
        times = Counter(found)
        return Verdict(
            lost=tuple(sorted(acknowledged - times.keys())),
            unexpected=tuple(sorted(times.keys() - attempted)),
            repeated=tuple(sorted(number for number, count in times.items() if count > 1)),
        )

    def _read(self) -> tuple[set[int], set[int]]:
        self._file.flush()
        noted: dict[str, set[int]] = {ATTEMPT: set(), ANSWER: set()}
        for line in self.path.read_text(encoding="ascii").splitlines():
            sign, _, number = line.partition(" ")
            noted[sign].add(int(number))
        return noted[ATTEMPT], noted[ANSWER]
