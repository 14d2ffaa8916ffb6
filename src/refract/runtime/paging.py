"""How many rows of a list a client asks for."""

from refract.kernel.errors import Invalid

DEFAULT_LIMIT = 20
LARGEST_LIMIT = 100

_MOST_DIGITS = 18
"""Of a number that is worth reading: beyond, it is more than anybody gets."""


def read_limit(text: str, default: int = DEFAULT_LIMIT, largest: int = LARGEST_LIMIT) -> int:
    """The parameter `limit` as it stands in the URL, which may be absent; more than the largest is the largest."""
    if not text:
        return default
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or not digits.strip("0"):
        raise Invalid("limit must be a positive integer")
    return largest if len(digits.lstrip("0")) > _MOST_DIGITS else min(int(digits), largest)
