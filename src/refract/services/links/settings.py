"""The settings of links, read once."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self, cast

from refract.runtime.environment import Environment

Durability = Literal["commit", "async"]
Strategy = Literal["random", "snowflake"]
Normalization = Literal["rfc3986", "lowercase"]


@dataclass(frozen=True, slots=True)
class LinksSettings:
    """How links are made, followed and counted. A `click_salt` of None is made and kept in the database."""

    base_url: str
    click_salt: str | None = field(repr=False)
    spool: Path
    spool_bytes: int = 256 * 1024 * 1024
    short_domains: tuple[str, ...] = ()
    code_strategy: Strategy = "random"
    url_normalization: Normalization = "rfc3986"
    click_durability: Durability = "commit"
    redirect_log_sample: float = 1.0
    stats_public: bool = True
    blocklist: Path | None = None
    safe_browsing_key: str | None = field(default=None, repr=False)
    safety_fails_open: bool = True
    bulk_limit: int = 10_000
    """URLs that a user may send in bulk in a minute (decision 32); 0 is no limit."""

    @classmethod
    def from_environment(
        cls,
        environment: Environment,
        *,
        base_url: str | None = None,
        click_salt: str | None = None,
        spool: Path | None = None,
    ) -> Self:
        """Read what is set; the arguments are embedded mode's defaults."""
        default = None if base_url is None or environment.has("BASE_URL") else base_url
        return cls(
            base_url=(default or environment.endpoint("BASE_URL")).rstrip("/"),
            click_salt=environment.secret("CLICK_SALT", minimum=8) if environment.has("CLICK_SALT") else click_salt,
            spool=Path(environment.text("CLICK_SPOOL_DIR", str(spool or "spool"))),
            spool_bytes=environment.integer("CLICK_SPOOL_MB", 256, minimum=1, maximum=1024 * 1024) * 1024 * 1024,
            short_domains=_domains(environment),
            code_strategy=cast(Strategy, environment.choice("CODE_STRATEGY", ("random", "snowflake"), "random")),
            url_normalization=cast(
                Normalization, environment.choice("URL_NORMALIZATION", ("rfc3986", "lowercase"), "rfc3986")
            ),
            click_durability=cast(Durability, environment.choice("CLICK_DURABILITY", ("commit", "async"), "commit")),
            redirect_log_sample=environment.number("REDIRECT_LOG_SAMPLE", 1.0, minimum=0.0, maximum=1.0),
            stats_public=environment.flag("STATS_PUBLIC", default=True),
            blocklist=Path(environment.text("SAFETY_BLOCKLIST")) if environment.has("SAFETY_BLOCKLIST") else None,
            safe_browsing_key=(
                environment.secret("SAFE_BROWSING_API_KEY", minimum=1)
                if environment.has("SAFE_BROWSING_API_KEY")
                else None
            ),
            bulk_limit=environment.integer("RATE_LIMIT_BULK", 10_000),
            safety_fails_open=environment.choice("SAFETY_FAIL", ("open", "closed"), "open") == "open",
        )


def _domains(environment: Environment) -> tuple[str, ...]:
    return tuple(part.strip().lower() for part in environment.text("SHORT_DOMAINS", "").split(",") if part.strip())
