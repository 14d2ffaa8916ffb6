"""What was found out lately, so that the same text costs a lookup."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Found = TypeVar("Found")


class Remembered(OrderedDict[str, Found], Generic[Found]):
    """Texts and what they mean: `remembered[text]` finds out what is not known yet. Bounded in number and length.

    A dictionary and no function, because most clicks say what another said before: finding that out must cost nothing.
    The oldest goes first; a plain dict would look for it through the holes of all that were thrown out before.
    """

    __slots__ = ("_capacity", "_find", "_longest")

    def __init__(self, find: Callable[[str], Found], *, capacity: int, longest: int) -> None:
        super().__init__()
        self._find = find
        self._capacity = capacity
        self._longest = longest

    def __missing__(self, text: str) -> Found:
        """Find it out; a text that is too long to be kept is found out each time."""
        found = self._find(text)
        if len(text) <= self._longest:
            if len(self) >= self._capacity:
                self.popitem(last=False)
            self[text] = found
        return found
