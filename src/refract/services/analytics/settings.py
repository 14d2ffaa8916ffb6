"""The settings of analytics, read once."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self

from refract.runtime.environment import Environment

MILESTONES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True, slots=True)
class AnalyticsSettings:
    """How clicks are read, kept and shown. Without `stats_public` only its owner reads the statistics of a link."""

    stats_public: bool = True
    geoip_db: Path | None = None
    """A database of cities in MaxMind's format; without one only countries are known."""
    clicks_kept: timedelta = timedelta(days=1826)
    hours_kept: timedelta = timedelta(days=30)
    days_kept: timedelta = timedelta(days=365)
    months_kept: timedelta = timedelta(days=1826)
    """How long clicks are kept, and dimensions and visitors by the hour, the day and the month; counts stay."""
    readers: int = 2
    """How many batches of clicks this process works on at once."""
    milestones: tuple[int, ...] = MILESTONES
    """Totals of which the owner of a link is told, in rising order."""

    @classmethod
    def from_environment(cls, environment: Environment, *, readers: int = 2) -> Self:
        """Read what is set; in one process with everything else there are fewer `readers` by default."""
        return cls(
            stats_public=environment.flag("STATS_PUBLIC", default=True),
            geoip_db=Path(environment.text("GEOIP_DB")) if environment.has("GEOIP_DB") else None,
            clicks_kept=timedelta(days=environment.integer("CLICK_RETENTION_DAYS", 1826, minimum=1, maximum=36_500)),
            hours_kept=timedelta(days=environment.integer("HOUR_RETENTION_DAYS", 30, minimum=1, maximum=36_500)),
            days_kept=timedelta(days=environment.integer("DAY_RETENTION_DAYS", 365, minimum=1, maximum=36_500)),
            months_kept=timedelta(days=environment.integer("MONTH_RETENTION_DAYS", 1826, minimum=1, maximum=36_500)),
            readers=environment.integer("ANALYTICS_READERS", readers, minimum=1, maximum=8),
            milestones=_milestones(environment),
        )


def _milestones(environment: Environment) -> tuple[int, ...]:
    """Whole numbers, separated by commas; `none` for nobody to be told of anything."""
    text = environment.text("MILESTONES", "")
    if not text:
        return MILESTONES
    if text == "none":
        return ()
    parts = [part.strip() for part in text.split(",")]
    # ASCII alone: Python would take the digits of other scripts for numbers too.
    if not all(part.isascii() and part.isdecimal() and len(part) <= 18 and int(part) > 0 for part in parts):
        raise environment.wrong("MILESTONES", 'whole numbers separated by commas, such as "10,100,1000", or "none"')
    return tuple(sorted(set(map(int, parts))))
