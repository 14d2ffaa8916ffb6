"""What the property tests of the SMS gateway draw from."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

hundred_cases = settings(
    max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

LARGEST = 2**31 - 1
NUMBERS = st.integers(1, LARGEST) | st.integers(1, 20)
WINDOWS = st.integers(1, 100_000)
LIMITS_AND_USES = st.integers(1, 20).flatmap(lambda limit: st.tuples(st.just(limit), st.integers(0, limit)))
"""A limit, and how much of it is used."""
MESSAGES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=100).filter(
    lambda text: bool(text.strip())
)
