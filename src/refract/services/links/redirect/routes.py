"""The slow twin of the fast path: the same redirect as a route of the application."""

from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Request, route
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIHeader, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.params import PathParameter
from litestar.types import ASGIApp
from msgspec import Struct

from refract.runtime.client_address import ClientAddresses
from refract.services.links.domain.link import REDIRECT_STATUSES
from refract.services.links.redirect.engine import Redirects
from refract.services.links.redirect.visits import CLICK_ID

REDIRECT_PATH = "/{code}"
"""What the route is called in metrics and by whoever wants fewer of its log lines."""

Code = Annotated[str, PathParameter(description="The short code of a link.", schema_extra={"maxLength": 50})]


class Refusal(Struct, frozen=True):
    """Why there is no redirect; a browser gets a small page instead."""

    error: str


_LOCATION = OpenAPIHeader(description="The destination.", schema=Schema(type=OpenAPIType.STRING))


@dataclass
class FollowOperation(Operation):
    """A redirect as it is: without a body, and without the answer to a wrong parameter, since any code may be asked."""

    def __post_init__(self) -> None:
        """Correct what is concluded from the handler."""
        assert self.responses is not None
        self.responses = {status: answer for status, answer in self.responses.items() if status != "400"}
        for status in REDIRECT_STATUSES:
            self.responses[str(status)] = OpenAPIResponse(
                description="Where the link leads, with the status that its owner chose.",
                headers={"Location": _LOCATION},
            )


def redirect_route(redirects: Redirects, addresses: ClientAddresses) -> Any:
    """GET and HEAD of a short code."""

    @route(
        "/{code:str}",
        http_method=["GET", "HEAD"],
        status_code=301,
        summary="Follow a short link",
        description="The click is counted, and the visitor sent on. A browser gets a small page where that cannot be.",
        tags=["redirect"],
        operation_class=FollowOperation,
        responses={
            404: ResponseSpec(Refusal, description="There is no such link.", generate_examples=False),
            410: ResponseSpec(
                Refusal, description="It has expired, or is disabled or deleted.", generate_examples=False
            ),
            429: ResponseSpec(Refusal, description="Too many from this address.", generate_examples=False),
            503: ResponseSpec(Refusal, description="Nobody can tell at the moment.", generate_examples=False),
        },
    )
    async def follow(request: Request[Any, Any, Any], code: Code) -> ASGIApp:
        scope = request.scope
        fields, peer = dict(scope["headers"]), scope["client"]
        if CLICK_ID in fields and (peer is None or not addresses.trusts(peer[0])):
            del fields[CLICK_ID]
        return await redirects.answer(
            scope["method"].encode(),
            code,
            fields,
            scope["query_string"],
            client=scope["state"]["client_address"],
            correlation_id=scope["state"]["correlation_id"],
        )

    return follow
