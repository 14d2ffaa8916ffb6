"""The settings of identity, read once."""

import os
from dataclasses import dataclass
from typing import Literal, Self, cast

from refract.runtime.environment import Environment

Policy = Literal["length", "strict"]

MAX_THREADS = 64


@dataclass(frozen=True, slots=True)
class IdentitySettings:
    """What passwords must be, who may sign in, and how many passwords are hashed at a time."""

    base_url: str
    """What links in mails begin with: the public address of the gateway."""
    password_policy: Policy = "length"  # noqa: S105  # a word, not a password
    require_verified_email: bool = False
    dual_publish: bool = True
    """Whether mails also go to the exchange that document 002 retires."""
    hashing_threads: int = 2

    @classmethod
    def from_environment(cls, environment: Environment, *, base_url: str | None = None) -> Self:
        """Read what is set; the argument is embedded mode's default."""
        default = None if base_url is None or environment.has("BASE_URL") else base_url
        return cls(
            base_url=(default or environment.endpoint("BASE_URL")).rstrip("/"),
            password_policy=cast(Policy, environment.choice("PASSWORD_POLICY", ("length", "strict"), "length")),
            require_verified_email=environment.flag("REQUIRE_VERIFIED_EMAIL", default=False),
            dual_publish=environment.flag("ENABLE_DUAL_PUBLISH", default=True),
            hashing_threads=environment.integer("PASSWORD_THREADS", processors(), minimum=1, maximum=MAX_THREADS),
        )


def processors() -> int:
    """How many processors this process may use; more threads than that would only take turns."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MAX_THREADS)
    return min(os.cpu_count() or 1, MAX_THREADS)
