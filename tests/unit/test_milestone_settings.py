"""Which milestones an operator may ask for."""

import pytest

from refract.kernel.errors import Misconfigured
from refract.runtime.environment import Environment
from refract.services.analytics.domain.milestones import THRESHOLDS
from refract.services.analytics.settings import AnalyticsSettings


def read(text: str) -> tuple[int, ...]:
    return AnalyticsSettings.from_environment(Environment({"MILESTONES": text})).milestones


def test_the_decided_ones_are_the_default() -> None:
    assert AnalyticsSettings.from_environment(Environment({})).milestones == THRESHOLDS
    assert AnalyticsSettings().milestones == read(" ") == THRESHOLDS


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", (5,)), ("100, 10,100 ,1", (1, 10, 100)), ("none", ()), ("9" * 18, (10**18 - 1,))],
)
def test_others_can_be_set(text: str, expected: tuple[int, ...]) -> None:
    assert read(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "ten", "10,,20", "10,", "1.5", "1e3", "9" * 19, "٣", "10;20", "10 20"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured, match="MILESTONES"):
        read(text)
