"""The parameters of these routes: texts that we read ourselves, because the messages are ours."""

from typing import Annotated

from litestar.di import NamedDependency
from litestar.params import PathParameter

from refract.runtime.describing import query
from refract.runtime.tokens import Claims
from refract.services.analytics.domain.calendars import Interval
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.queries.exporting import Format

Caller = NamedDependency[Claims]
Reader = NamedDependency[Claims | None]
"""Who reads what is public: nobody in particular, or somebody who may be the owner."""


Code = Annotated[str, PathParameter(description="The short code of a link.", schema_extra={"maxLength": 50})]

TimelineInterval = Annotated[str | None, query("The length of a period.", enum=["day", "hour"], default="day")]

From = Annotated[
    str | None,
    query(
        "A moment (`2026-03-01T12:00:00Z`), or a date, which begins at midnight in `tz`. By default the last 30 days, "
        "for `interval=hour` today, for `week` and `month` the last 12 weeks or 365 days.",
        name="from",
    ),
]
FromOrAll = Annotated[
    str | None,
    query("A moment, or a date, which begins at midnight in `tz`. By default the first click.", name="from"),
]
To = Annotated[
    str | None, query("The first moment that is not meant any more, or the last date that is. By default now.")
]
Zone = Annotated[str | None, query("The time zone in which days are counted, such as `Europe/Berlin`.", default="UTC")]
Length = Annotated[
    str | None,
    query("The length of a period; weeks begin on Monday.", enum=[*Interval], default="day"),
]
By = Annotated[
    str | None,
    query(
        "By what the clicks are broken down. A `device` is `desktop`, `mobile`, `tablet` or `bot`.",
        enum=list(DIMENSIONS),
    ),
]
Bots = Annotated[str | None, query("Whether bots are counted, too.", type="boolean", default=False)]
After = Annotated[str | None, query("Where the last page ended: its `next_cursor`.")]
Limit = Annotated[
    str | None, query("How many clicks, 20 by default; above 100 is 100.", type="integer", minimum=1, default=20)
]
MostValues = Annotated[
    str | None, query("How many values, 20 by default; above 1,000 is 1,000.", type="integer", minimum=1, default=20)
]
FileFormat = Annotated[
    str | None, query("Comma-separated values, or a JSON object a line.", name="format", enum=[*Format], default="csv")
]
