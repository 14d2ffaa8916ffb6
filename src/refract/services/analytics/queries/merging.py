"""Visitors of several stretches, counted together: what is over is merged once, and remembered."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from refract.services.analytics.domain.sketches import Sketch, merge_sketches

MOST_REMEMBERED = 1_000
"""Merged sketches; each has up to 16 kB."""

WORTH_REMEMBERING = 4_096
"""Bytes: fewer are merged faster than they are looked up."""


@dataclass(slots=True)
class Seen:
    """Who was seen in a stretch: sketches as they are stored, and single visitors at its edges."""

    sketches: list[bytes] = field(default_factory=list)
    visitors: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Merged:
    """One sketch in the place of many: how many it counts, its stored form, and by what it is known."""

    count: int
    stored: bytes | None
    digest: bytes | None
    """None for what changes with every look, and is not remembered."""


class Merging:
    """Merges sketches. Those of past days and hours are the same at every look, and are merged at the first."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._remembered: OrderedDict[bytes, Merged] = OrderedDict()

    def counts(self, seen: Sequence[Seen]) -> tuple[int, list[int]]:
        """How many visitors there are in all stretches together, and in each."""
        merged = [self._merged(some.sketches, some.visitors) for some in seen]
        # All but the last one are over as a rule, and the last one is now.
        before = self._merged_again(merged[:-1])
        everybody = merge_sketches([before.stored, *(one.stored for one in merged[-1:])])
        return everybody.estimate(), [one.count for one in merged]

    def _merged(self, sketches: Sequence[bytes], visitors: set[bytes]) -> Merged:
        if sum(map(len, sketches)) < WORTH_REMEMBERING:
            return _as_merged(_everybody(sketches, visitors), None)
        # No sketch is empty, so that it is plain where the visitors begin: those of a day's edges are over with it.
        digest = _digest([*sketches, b"", *sorted(visitors)])
        return self._remembered.get(digest) or self._remember(digest, _everybody(sketches, visitors))

    def _merged_again(self, merged: Sequence[Merged]) -> Merged:
        stored = [one.stored for one in merged]
        digests = [one.digest or one.stored or b"" for one in merged]
        digest = _digest([b"together", *digests])
        return self._remembered.get(digest) or self._remember(digest, merge_sketches(stored))

    def _remember(self, digest: bytes, sketch: Sketch) -> Merged:
        merged = _as_merged(sketch, digest)
        if len(self._remembered) >= self._most:
            self._remembered.popitem(last=False)
        self._remembered[digest] = merged
        return merged


def _everybody(sketches: Sequence[bytes], visitors: set[bytes]) -> Sketch:
    sketch = merge_sketches(sketches)
    sketch.add_many(visitors)
    return sketch


def _as_merged(sketch: Sketch, digest: bytes | None) -> Merged:
    return Merged(sketch.estimate(), sketch.encode(), digest)


def _digest(parts: Sequence[bytes]) -> bytes:
    """A name for a sequence of texts: each with its length, so that no two sequences look alike."""
    digest = blake2b(digest_size=20)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
