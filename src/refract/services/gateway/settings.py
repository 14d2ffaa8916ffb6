"""Where the services behind the gateway are; what it shares with every process is read by `runtime.settings`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from refract.runtime.environment import Environment

URL_VARIABLES: Mapping[str, str] = {
    "links": "URL_SERVICE_URL",
    "analytics": "ANALYTICS_SERVICE_URL",
    "identity": "USER_SERVICE_URL",
    "notifications": "NOTIFICATION_SERVICE_URL",
    "sms": "SMS_GATEWAY_URL",
    "projects": "PROJECT_SERVICE_URL",
}


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What the gateway asks for in distributed mode: a URL for each service."""

    urls: Mapping[str, str]

    @classmethod
    def from_environment(cls, environment: Environment) -> Self:
        """Each of the URLs is required."""
        return cls({target: environment.endpoint(variable) for target, variable in URL_VARIABLES.items()})


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """How often one address may come in a minute, by the name of the limit; 0 is off (decision 14)."""

    per_minute: Mapping[str, int]

    @classmethod
    def from_environment(cls, environment: Environment) -> Self:
        """M5's figures unless others are set."""
        return cls(
            {
                "shorten": environment.integer("RATE_LIMIT_SHORTEN", 10),
                "redirect": environment.integer("RATE_LIMIT_REDIRECT", 300),
            }
        )
