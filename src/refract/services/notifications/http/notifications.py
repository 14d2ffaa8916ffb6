"""The routes of what a user was told: list it, and say that it was read."""

from typing import Annotated, Any

from litestar import HttpMethod, post, route
from litestar.di import NamedDependency
from litestar.params import PathParameter
from litestar.types import ASGIApp

from refract.runtime.describing import answers, query
from refract.runtime.tokens import Claims
from refract.runtime.web import json_answer, takes_body
from refract.services.notifications.commands.reading import Reading
from refract.services.notifications.http.describing import NOTIFICATION, TAGS, errors
from refract.services.notifications.queries.notifications import NotificationPage, NotificationQueries
from refract.services.notifications.queries.paging import PageRequest

EVERYTHING = "all"
BODY_BYTES = 1_024

Caller = NamedDependency[Claims]
After = Annotated[str | None, query("Where the last page ended: its `next_cursor`.")]
Limit = Annotated[
    str | None, query("How many notifications, 20 by default; above 100 is 100.", type="integer", minimum=1, default=20)
]
Id = Annotated[
    str,
    PathParameter(description="The id of a notification, or `all`.", schema_extra={"minLength": 1, "maxLength": 36}),
]


def notification_routes(queries: NotificationQueries, reading: Reading) -> list[Any]:
    """GET /notifications and POST /notifications/{id}/read."""

    @route(
        "/notifications",
        http_method=(HttpMethod.GET, HttpMethod.HEAD),
        summary="List notifications",
        description=(
            "What the caller was told, the newest first. `unread` counts all of them, on whatever page. "
            "`status` is that of the mail: one without a mail is `sent` at once."
        ),
        tags=TAGS,
        responses={
            200: answers(
                NotificationPage,
                "A page.",
                {"notifications": [NOTIFICATION], "unread": 1, "next_cursor": "uC1mK9ab-3xQ7"},
            ),
            **errors(400),
        },
    )
    async def list_notifications(caller: Caller, after: After = None, limit: Limit = None) -> ASGIApp:
        request = PageRequest.read(after=after or "", limit=limit or "")
        return json_answer(await queries.page(caller.subject, request))

    @post(
        "/notifications/{id:str}/read",
        status_code=204,
        summary="Mark as read",
        response_description="It is read.",
        description="One notification, or with `all` for its id everything that is there by now. Again is no error.",
        tags=TAGS,
        responses=errors(400, 403, 404),
        **takes_body(BODY_BYTES),
    )
    async def mark_read(caller: Caller, id: Id) -> None:  # noqa: A002  # the name that it has in the path
        if id == EVERYTHING:
            await reading.read_all(caller.subject)
        else:
            await reading.read(caller.subject, id)

    return [list_notifications, mark_read]
