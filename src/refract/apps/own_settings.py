"""The settings that only one service has, read by its name; without what building the service would import."""

from dataclasses import dataclass
from pathlib import Path

from refract.runtime.environment import Environment
from refract.services.analytics.settings import AnalyticsSettings
from refract.services.identity.settings import IdentitySettings
from refract.services.links.settings import LinksSettings
from refract.services.notifications.settings import NotificationSettings
from refract.services.sms.settings import SmsSettings

Settings = LinksSettings | AnalyticsSettings | IdentitySettings | NotificationSettings | SmsSettings
"""Of the services that have their own."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What embedded mode knows by itself, and distributed mode has to be told."""

    base_url: str | None = None
    click_salt: str | None = None
    spool: Path | None = None
    click_readers: int = 2


def read_settings(name: str, environment: Environment, defaults: Defaults) -> Settings | None:
    """The settings of a service that has its own, read before anything is connected."""
    if name == "links":
        return LinksSettings.from_environment(
            environment, base_url=defaults.base_url, click_salt=defaults.click_salt, spool=defaults.spool
        )
    if name == "analytics":
        return AnalyticsSettings.from_environment(environment, readers=defaults.click_readers)
    if name == "identity":
        return IdentitySettings.from_environment(environment, base_url=defaults.base_url)
    if name == "notifications":
        return NotificationSettings.from_environment(environment, base_url=defaults.base_url)
    if name == "sms":
        return SmsSettings.from_environment(environment)
    return None
