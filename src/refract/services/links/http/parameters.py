"""The parameters of these routes: texts that we read ourselves, because the messages are ours."""

from typing import Annotated, Any

from litestar import Request
from litestar.di import NamedDependency
from litestar.enums import RequestEncodingType
from litestar.openapi.spec import Example
from litestar.params import BodyKwarg, HeaderParameter, PathParameter, QueryParameter

from refract.kernel.errors import Invalid
from refract.runtime.tokens import Claims
from refract.services.links.domain.drafts import Wish
from refract.services.links.domain.link import Owner
from refract.services.links.http.bodies import BulkBody, ChangeBody

Caller = NamedDependency[Claims]


def owner_of(caller: Claims) -> Owner:
    """The owner that a token speaks for."""
    return Owner(caller.subject, caller.email)


def check_sent_once(request: Request[Any, Any, Any]) -> None:
    """Raises Invalid where there are two keys: nobody can tell which one a repetition would have."""
    keys = sum(name == b"idempotency-key" for name, _ in request.scope["headers"])
    if keys > 1:
        raise Invalid("Idempotency-Key must be sent once")


def _query(description: str, **schema: Any) -> QueryParameter:
    return QueryParameter(description=description, schema_extra={"type": "string", "one_of": None, **schema})


def _body(*examples: Any) -> BodyKwarg:
    return BodyKwarg(media_type=RequestEncodingType.JSON, examples=[Example(value=example) for example in examples])


Code = Annotated[str, PathParameter(description="The short code of a link.", schema_extra={"maxLength": 50})]

IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        description="The same key with the same body gets the same answer for 24 hours, and has one effect.",
        schema_extra={"type": "string", "one_of": None, "minLength": 1, "maxLength": 255},
    ),
]

After = Annotated[str | None, _query("Where the last page ended: its `next_cursor`, with the same `sort`.")]
Limit = Annotated[
    str | None, _query("How many links, 20 by default; above 100 is 100.", type="integer", minimum=1, default=20)
]
Search = Annotated[str | None, _query("Only links with this text in destination, title or code, in either case.")]
Tag = Annotated[str | None, _query("Only links with this tag.")]
StatusFilter = Annotated[
    str | None,
    _query("Only links in this status; all of them otherwise.", enum=["active", "expired", "disabled", "deleted"]),
]
SortOrder = Annotated[
    str | None, _query("The newest first, or the most clicked.", enum=["created", "clicks"], default="created")
]

Size = Annotated[
    str | None, _query("Pixels of the picture's side.", type="integer", minimum=32, maximum=2000, default=300)
]
Margin = Annotated[str | None, _query("Modules of quiet zone.", type="integer", minimum=0, maximum=20, default=4)]
Color = Annotated[str | None, _query("Three or six hex digits.", default="000000")]
Background = Annotated[str | None, _query("Three or six hex digits, or `transparent`.", default="ffffff")]

ShortenRequest = Annotated[
    Wish,
    _body(
        {"url": "https://example.com/a/long/path"},
        {
            "url": "https://example.com/a/long/path",
            "custom_code": "spring-26",
            "expires_at": "2026-06-01T00:00:00Z",
            "title": "Spring",
            "tags": ["campaign"],
        },
    ),
]
BulkRequest = Annotated[
    BulkBody,
    _body({"urls": ["https://example.com/one", {"url": "https://example.com/two", "title": "Two"}]}),
]
ChangeRequest = Annotated[ChangeBody, _body({"title": "Summer", "expires_at": None}, {"status": "disabled"})]
