"""The routes of the audit: attempts one by one, and summed up by user."""

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

from litestar import HttpMethod, route

from refract.kernel.clock import Clock
from refract.runtime.describing import answers, query
from refract.services.sms.domain.sends import DatabaseAway
from refract.services.sms.http.describing import TAGS, errors
from refract.services.sms.queries.attempts import AttemptPage, AttemptQueries
from refract.services.sms.queries.requests import STATUSES, PageRequest, SummaryRequest
from refract.services.sms.queries.summaries import Summary, SummaryQueries

T = TypeVar("T")

READING = (HttpMethod.GET, HttpMethod.HEAD)

PATIENCE = 8.0
"""Seconds that the database has: a little less than the server gives a request, which refuses in other words."""

ATTEMPT: dict[str, Any] = {
    "event_id": "0195f1a2-7b3c-7d4e-8f50-112233445566",
    "userId": 101,
    "status": "limited",
    "path": "redis",
    "message": "Your code is 4711",
    "reason": "Rate Limit Exceeded",
    "correlation_id": "6f1c1f0e-6f4e-4f6a-9c57-5a1c7a9d3f10",
    "occurred_at": "2026-03-02T08:15:00Z",
}
SUMMARY: dict[str, Any] = {
    "from": "2026-03-01T08:15:00Z",
    "to": "2026-03-02T08:15:00Z",
    "users": [
        {
            "userId": 101,
            "attempts": 40,
            "sent": 30,
            "limited": 9,
            "failed": 0,
            "invalid": 1,
            "limited_share": 0.225,
            "attempts_per_minute": 0.027778,
            "peak_minute": "2026-03-02T08:14:00Z",
            "peak_attempts": 12,
        }
    ],
}

UserId = Annotated[
    str | None, query("Whose attempts; all users' by default.", name="userId", type="integer", minimum=0)
]
OfStatus = Annotated[str | None, query("What became of them; anything by default.", name="status", enum=list(STATUSES))]
From = Annotated[
    str | None,
    query("The first moment (`2026-03-01T12:00:00Z`), or a date, which begins at midnight of UTC.", name="from"),
]
To = Annotated[str | None, query("The first moment that is not meant any more, or the last date that is.")]
Limit = Annotated[
    str | None, query("How many, 20 by default; above 100 is 100.", type="integer", minimum=1, default=20)
]
After = Annotated[str | None, query("Where the last page ended: its `next_cursor`.")]


def audit_routes(attempts: AttemptQueries, summaries: SummaryQueries, clock: Clock) -> list[Any]:
    """GET /api/audit and /api/audit/summary."""

    @route(
        "/api/audit",
        http_method=READING,
        summary="List attempts",
        description="Every request to send a message, whatever became of it, the newest first. An attempt is here a "
        "moment after its answer.",
        tags=TAGS,
        responses={
            200: answers(AttemptPage, "A page.", {"attempts": [ATTEMPT], "next_cursor": "uC1mK9ab-3xQ7"}),
            **errors(400),
        },
    )
    async def list_attempts(
        user_id: UserId = None,
        status: OfStatus = None,
        from_: From = None,
        to: To = None,
        limit: Limit = None,
        after: After = None,
    ) -> AttemptPage:
        request = PageRequest.read(
            user_id=user_id or "",
            status=status or "",
            start=from_ or "",
            end=to or "",
            limit=limit or "",
            after=after or "",
        )
        return await _in_time(attempts.page(request))

    @route(
        "/api/audit/summary",
        http_method=READING,
        summary="Attempts by user",
        description="How many attempts users made, how many met the limit, and the minute with most of them; users "
        "with most attempts first. By default the last 24 hours, which is also the most for all users together; for "
        "one user it is a year.",
        tags=TAGS,
        responses={200: answers(Summary, "The summary.", SUMMARY), **errors(400)},
    )
    async def sum_up_attempts(
        user_id: UserId = None, from_: From = None, to: To = None, limit: Limit = None
    ) -> Summary:
        request = SummaryRequest.read(
            clock.now(), user_id=user_id or "", start=from_ or "", end=to or "", limit=limit or ""
        )
        return await _in_time(summaries.summary(request))

    return [list_attempts, sum_up_attempts]


async def _in_time(reading: Awaitable[T]) -> T:
    """What a query reads; raises DatabaseAway where that takes too long."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await reading
    except TimeoutError as error:
        raise DatabaseAway from error
