"""What links needs from outside, where there is more than one of it."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class SafetyCheck(Protocol):
    """Knows destinations that nobody should be sent to."""

    async def find_threats(self, urls: Sequence[str]) -> Mapping[str, str]:
        """Those of the URLs that are dangerous, each with the reason in a few words; raises Unavailable."""

    async def close(self) -> None:
        """Give everything back."""
