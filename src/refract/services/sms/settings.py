"""The settings of sms."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from refract.runtime.environment import Environment


@dataclass(frozen=True, slots=True)
class SmsSettings:
    """Whether sends are counted in Redis first, and how long attempts are kept."""

    fast_path: bool = True
    audit_kept: timedelta = timedelta(days=90)

    @classmethod
    def from_environment(cls, environment: Environment) -> Self:
        """Read what is set."""
        return cls(
            fast_path=environment.flag("SMS_FAST_PATH", default=True),
            audit_kept=timedelta(days=environment.integer("SMS_AUDIT_DAYS", 90, minimum=1, maximum=3650)),
        )
