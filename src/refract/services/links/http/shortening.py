"""The routes that make links: one, or many at once."""

from typing import Any

from litestar import Request, Response, post
from msgspec import Struct

from refract.kernel.errors import BodyTooLarge, Limited
from refract.runtime.describing import answers, error
from refract.runtime.web import takes_body
from refract.services.links.commands.bulk import BulkShortening, Result
from refract.services.links.commands.remembering import Answer
from refract.services.links.commands.shortening import Shortening
from refract.services.links.http import parameters
from refract.services.links.http.bodies import LINK_BYTES, read_rows
from refract.services.links.http.describing import LINK, TAGS, errors
from refract.services.links.http.parameters import Caller, check_sent_once, owner_of
from refract.services.links.queries.views import LinkView

PLAIN_BYTES = 4_096
"""M3's limit, for a body with the fields that M3 knows (ADR 0017)."""
BULK_BYTES = 4 * 1024 * 1024

RESULTS = {
    "results": [
        {"row": 1, "status": 201, "short_code": "aB3xY9z", "short_url": "https://sho.rt/aB3xY9z"},
        {"row": 2, "status": 400, "error": "url must include scheme and host"},
    ]
}


class BulkResults(Struct, frozen=True):
    """The answer to a request for many links."""

    results: list[Result]


def shortening_routes(shortening: Shortening, bulk: BulkShortening) -> list[Any]:
    """POST /shorten and POST /shorten/bulk."""

    @post(
        "/shorten",
        summary="Shorten a URL",
        description="The same URL without options gives the same link again, unless `force_new` is set.",
        tags=TAGS,
        responses={
            201: answers(LinkView, "A new link.", LINK),
            200: answers(LinkView, "The link that stood for the URL already.", LINK),
            **errors(400, 409, 422),
        },
        **takes_body(LINK_BYTES),
    )
    async def shorten(
        request: Request[Any, Any, Any],
        caller: Caller,
        data: parameters.ShortenRequest,
        idempotency_key: parameters.IdempotencyKey = None,
    ) -> Response[bytes]:
        check_sent_once(request)
        if not data.describes and len(await request.body()) > PLAIN_BYTES:
            raise BodyTooLarge
        return _response(await shortening.answer(owner_of(caller), data, idempotency_key))

    @post(
        "/shorten/bulk",
        status_code=200,
        summary="Shorten many URLs",
        description="Up to 1,000 rows. A bad row is named by number and reason, and the others succeed. A request "
        "has to arrive within 5 s, or is a 408: 4 MiB, the most that is taken, need 0.84 MB a second.",
        tags=TAGS,
        responses={200: answers(BulkResults, "What became of each row, in the order of the request.", RESULTS)}
        | errors(400, 422)
        | {429: error("Too many rows in a minute; `Retry-After` says how many seconds to wait.", Limited.message)},
        **takes_body(BULK_BYTES),
    )
    async def shorten_many(
        request: Request[Any, Any, Any],
        caller: Caller,
        data: parameters.BulkRequest,
        idempotency_key: parameters.IdempotencyKey = None,
    ) -> Response[bytes]:
        check_sent_once(request)
        return _response(await bulk.answer(owner_of(caller), await read_rows(data), idempotency_key))

    return [shorten, shorten_many]


def _response(answer: Answer) -> Response[bytes]:
    return Response(answer.body, status_code=answer.status, media_type="application/json")
