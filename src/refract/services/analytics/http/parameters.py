"""The parameters of these routes: texts that we read ourselves, because the messages are ours."""

from typing import Annotated, Any

from litestar.di import NamedDependency
from litestar.params import PathParameter, QueryParameter

from refract.runtime.tokens import Claims
from refract.services.analytics.domain.calendars import Interval
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.queries.exporting import Format

Caller = NamedDependency[Claims]
Reader = NamedDependency[Claims | None]
"""Who reads what is public: nobody in particular, or somebody who may be the owner."""


def _query(description: str, *, name: str | None = None, **schema: Any) -> QueryParameter:
    extra = {"type": "string", "one_of": None, **schema}
    return QueryParameter(name=name, description=description, schema_extra=extra)


Code = Annotated[str, PathParameter(description="The short code of a link.", schema_extra={"maxLength": 50})]

TimelineInterval = Annotated[str | None, _query("The length of a period.", enum=["day", "hour"], default="day")]

From = Annotated[
    str | None,
    _query(
        "A moment (`2026-03-01T12:00:00Z`), or a date, which begins at midnight in `tz`. By default the last 30 days, "
        "for `interval=hour` today, for `week` and `month` the last 12 weeks or 365 days.",
        name="from",
    ),
]
FromOrAll = Annotated[
    str | None,
    _query("A moment, or a date, which begins at midnight in `tz`. By default the first click.", name="from"),
]
To = Annotated[
    str | None, _query("The first moment that is not meant any more, or the last date that is. By default now.")
]
Zone = Annotated[str | None, _query("The time zone in which days are counted, such as `Europe/Berlin`.", default="UTC")]
Length = Annotated[
    str | None,
    _query("The length of a period; weeks begin on Monday.", enum=[*Interval], default="day"),
]
By = Annotated[str | None, _query("By what the clicks are broken down.", enum=list(DIMENSIONS))]
Bots = Annotated[str | None, _query("Whether bots are counted, too.", type="boolean", default=False)]
After = Annotated[str | None, _query("Where the last page ended: its `next_cursor`.")]
Limit = Annotated[
    str | None, _query("How many clicks, 20 by default; above 100 is 100.", type="integer", minimum=1, default=20)
]
MostValues = Annotated[
    str | None, _query("How many values, 20 by default; above 1,000 is 1,000.", type="integer", minimum=1, default=20)
]
FileFormat = Annotated[
    str | None, _query("Comma-separated values, or a JSON object a line.", name="format", enum=[*Format], default="csv")
]
