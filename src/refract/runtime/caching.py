"""What a cache keeps: a value, the order number it was true at, and how long it may live."""

from dataclasses import dataclass

TOMBSTONE_SECONDS = 5.0
"""How long a drop is remembered, so that a slow reader cannot put back what it read before the drop."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A copy of something whose versions are numbered; a lower number never replaces a higher one.

    Numbers are at least 0 and below 2^64. What has no time left to live is not kept.
    """

    key: str
    order: int
    value: bytes
    ttl: float
