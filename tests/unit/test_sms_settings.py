"""The settings of sms: what is read, what is assumed, and what is refused."""

from datetime import timedelta

import pytest

from refract.kernel.errors import Misconfigured
from refract.runtime.environment import Environment
from refract.services.sms.settings import SmsSettings


def read(**variables: str) -> SmsSettings:
    return SmsSettings.from_environment(Environment(variables))


def test_without_a_word_redis_is_asked_first_and_attempts_are_kept_for_ninety_days() -> None:
    assert read() == SmsSettings(fast_path=True, audit_kept=timedelta(days=90))


def test_both_can_be_chosen() -> None:
    assert read(SMS_FAST_PATH="false", SMS_AUDIT_DAYS="7") == SmsSettings(False, timedelta(days=7))


@pytest.mark.parametrize(
    "wrong", [{"SMS_FAST_PATH": "maybe"}, {"SMS_AUDIT_DAYS": "0"}, {"SMS_AUDIT_DAYS": "3651"}, {"SMS_AUDIT_DAYS": "x"}]
)
def test_what_cannot_be_is_said_by_name(wrong: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match=next(iter(wrong))):
        read(**wrong)
