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
    """What the gateway asks for in distributed mode: a URL for each service, the one that the public knows, and which
    part of the redirects is logged."""

    urls: Mapping[str, str]
    base_url: str = ""
    """Where a browser's session may be used from, beside the address by which it came."""
    redirect_log_sample: float = 1.0

    @classmethod
    def from_environment(cls, environment: Environment) -> Self:
        """Each of the services' URLs is required."""
        urls = {target: environment.endpoint(variable) for target, variable in URL_VARIABLES.items()}
        return cls(
            urls,
            environment.endpoint("BASE_URL") if environment.has("BASE_URL") else "",
            environment.number("REDIRECT_LOG_SAMPLE", 1.0, minimum=0.0, maximum=1.0),
        )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """How often one address may come in a minute, or one API key in an hour, by the limit's name; 0 is off."""

    per_minute: Mapping[str, int]

    @classmethod
    def from_environment(cls, environment: Environment) -> Self:
        """The figures of M5, and of document 004 for API keys, unless others are set (decision 14)."""
        return cls(
            {
                "shorten": environment.integer("RATE_LIMIT_SHORTEN", 10),
                "redirect": environment.integer("RATE_LIMIT_REDIRECT", 300),
                "api_key": environment.integer("RATE_LIMIT_API_KEY", 1000),
            }
        )
