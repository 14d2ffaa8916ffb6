"""What a password must be (decision 16)."""

from functools import lru_cache

from refract.kernel.errors import Invalid
from refract.services.identity.settings import Policy

SHORTEST = 8


def check_password(password: str, policy: Policy) -> None:
    """Raise Invalid that says what is wrong with a new password; a password that is there already is not asked."""
    if len(password) < SHORTEST:
        raise Invalid(f"password must be at least {SHORTEST} characters")
    if policy == "strict" and password.lower() in common_passwords():
        raise Invalid("password is too common")


@lru_cache(maxsize=1)
def common_passwords() -> frozenset[str]:
    """Those of the 30,000 most common ones that are long enough, in lower case.

    The list is zxcvbn's, loaded by the first who asks: it takes about 50 ms and 15 MB, and the default policy never
    asks. Its score is not used: it costs time that grows with the square of what a stranger sends.
    """
    from zxcvbn.frequency_lists import FREQUENCY_LISTS  # type: ignore[import-untyped]  # noqa: PLC0415

    return frozenset(word for word in FREQUENCY_LISTS["passwords"] if len(word) >= SHORTEST)
