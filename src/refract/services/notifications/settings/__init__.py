"""The settings of notifications, read once."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

from refract.runtime.environment import Environment
from refract.services.notifications.settings.sending import SendingSettings

__all__ = ["NotificationSettings", "SendingSettings"]

RETENTION_DAYS = 365


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """Where links are served, how things leave the house, and how long users can read what they were told."""

    base_url: str = ""
    """What short links in mails begin with; without it mails name the code alone."""
    sending: SendingSettings = field(default_factory=SendingSettings)
    retention: timedelta = timedelta(days=RETENTION_DAYS)

    @classmethod
    def from_environment(cls, environment: Environment, *, base_url: str | None = None) -> Self:
        """Read what is set; the argument is embedded mode's default."""
        if environment.has("BASE_URL"):
            base_url = environment.endpoint("BASE_URL")
        days = environment.integer("NOTIFICATION_RETENTION_DAYS", RETENTION_DAYS, minimum=1, maximum=36_500)
        return cls(
            base_url=(base_url or "").rstrip("/"),
            sending=SendingSettings.from_environment(environment),
            retention=timedelta(days=days),
        )
