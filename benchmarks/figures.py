"""Figures and how they are shown: the middle of several rounds with its spread, percentiles, one line of JSON."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Rounds:
    """One figure, seen in several rounds."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> "Rounds":
        """The figure of each round, in their order."""
        return cls(tuple(values))

    @property
    def median(self) -> float:
        """What is reported: one round that was disturbed does not move it."""
        return median(self.values)

    def shown(self, form: str = ".2f") -> str:
        """The median with the spread behind it."""
        return f"{self.median:{form}} ({min(self.values):{form}} to {max(self.values):{form}})"

    def as_json(self) -> dict[str, float]:
        """Median, least and most, short enough to read."""
        figures = {"median": self.median, "min": min(self.values), "max": max(self.values)}
        return {name: float(f"{value:.4g}") for name, value in figures.items()}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns as wide as they need; the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = []
    for first, *others in (header, *rows):
        cells = (f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join((f"  {first:{widths[0]}}", *cells)).rstrip())
    return "\n".join(lines)


def verdict(target: str, *, met: bool) -> str:
    """The target in words, and whether these figures meet it."""
    return f"target: {target}: {'met' if met else 'MISSED'}"


def short_form(target: str, call: str) -> str:
    """What stands in the place of a verdict where less was measured than the target speaks of."""
    return f'no verdict: {target}: this is the short form; the full one is make bench ARGS="{call}"'


def json_line(name: str, figures: Mapping[str, Any]) -> str:
    """The last line of a measurement, for programs."""
    return json.dumps({"benchmark": name, **figures}, separators=(",", ":"))
