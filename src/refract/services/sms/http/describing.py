"""What the generated documentation says of these routes: a body that we read ourselves, and answers in plain text."""

from dataclasses import dataclass
from typing import Any

from litestar.enums import MediaType
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example, OpenAPIMediaType, OpenAPIType, Operation, Parameter, RequestBody, Schema

from refract.services.sms.domain.limits import LARGEST_NUMBER
from refract.services.sms.domain.sends import LONGEST_KEY, LONGEST_MESSAGE
from refract.services.sms.http.texts import INTERNAL, INVALID

TAGS = ["sms"]

CONFIG: dict[str, Any] = {"userId": 101, "rateLimit": 10, "timeWindow": 5}
CONFIGURED: dict[str, Any] = {
    **CONFIG,
    "currentCount": 0,
    "lastRefreshTime": "2026-03-01T12:00:00.123456Z",
    "algorithm": "fixed",
}
MESSAGE: dict[str, Any] = {"userId": 101, "message": "Your code is 1234"}

_TEXTS = {
    400: ("The request is wrong.", INVALID),
    403: ("The API key is bound to another user.", "Forbidden"),
    404: ("Nobody has set a limit for this user.", "User Not Found"),
    422: ("The key was used for another message.", "Idempotency-Key was used for another request"),
    429: ("The limit is used up; `Retry-After` says when it is not.", "Rate Limit Exceeded"),
    500: ("Something that we did not foresee.", INTERNAL),
    503: ("A server that we need is away.", "Kafka Down : Service Unavailable"),
}


def errors(*statuses: int) -> dict[int, ResponseSpec]:
    """Those of one route, beside the ones that every route may give."""
    return {status: text(*_TEXTS[status]) for status in (*statuses, 500, 503)}


def text(description: str, example: str) -> ResponseSpec:
    """An answer in plain text."""
    return ResponseSpec(
        str,
        description=description,
        generate_examples=False,
        media_type=MediaType.TEXT,
        examples=[Example(value=example)],
    )


@dataclass
class SendOperation(Operation):
    """With the body, which the handler reads itself, and the key of a repeat."""

    def __post_init__(self) -> None:
        """Add what cannot be seen from the handler."""
        user = Schema(type=OpenAPIType.INTEGER, minimum=0, maximum=LARGEST_NUMBER)
        message = Schema(type=OpenAPIType.STRING, min_length=1, max_length=LONGEST_MESSAGE)
        body = Schema(
            type=OpenAPIType.OBJECT,
            required=["userId", "message"],
            properties={"userId": user, "message": message},
            examples=[MESSAGE],
        )
        self.request_body = RequestBody(content={MediaType.JSON: OpenAPIMediaType(schema=body)}, required=True)
        key = Parameter(
            name="Idempotency-Key",
            param_in="header",
            description="The same request with the same key is sent and counted once in 24 hours.",
            schema=Schema(type=OpenAPIType.STRING, min_length=1, max_length=LONGEST_KEY),
        )
        self.parameters = [*(self.parameters or ()), key]
