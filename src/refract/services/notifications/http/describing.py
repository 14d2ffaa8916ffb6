"""What the generated documentation says of these routes beyond their types."""

from typing import Any

from litestar.enums import RequestEncodingType
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import BodyKwarg, QueryParameter
from msgspec import Struct

TAGS = ["notifications"]

NOTIFICATION: dict[str, Any] = {
    "id": "0195f1a2-7b3c-7d4e-8f50-112233445566",
    "event_type": "milestone.reached",
    "title": "Link aB3xY9z reached 1,000 clicks",
    "short_code": "aB3xY9z",
    "status": "sent",
    "created_at": "2026-03-02T08:15:00Z",
    "sent_at": "2026-03-02T08:15:02Z",
}

WEBHOOK: dict[str, Any] = {
    "id": "0195f1a2-8c4d-7e5f-9061-223344556677",
    "url": "https://hooks.example.com/refract",
    "events": ["milestone.reached"],
    "status": "active",
    "created_at": "2026-03-01T12:00:00Z",
}

PREFERENCES: dict[str, Any] = {
    "channels": {
        "url.created": ["log"],
        "url.deleted": ["log"],
        "milestone.reached": ["log", "email"],
        "webhook.disabled": ["log", "email"],
    },
    "digest": "off",
    "webhooks": [WEBHOOK],
}

_MESSAGES = {
    400: ("The request is wrong; the message says what.", "limit must be a positive integer"),
    401: ("There is no good token.", "unauthorized"),
    403: ("It is another user's.", "forbidden"),
    404: ("There is no such notification.", "not found"),
    503: ("It cannot be done now, and may be tried again.", "service unavailable"),
}


class ErrorAnswer(Struct, frozen=True):
    """Every error is one message."""

    error: str


def answers(container: type[Struct], description: str, *values: Any) -> ResponseSpec:
    """A good answer, with examples."""
    return ResponseSpec(container, description=description, generate_examples=False, examples=_examples(*values))


def errors(*statuses: int) -> dict[int, ResponseSpec]:
    """The error answers of a route; all of them may be 401 and 503."""
    return {
        status: answers(ErrorAnswer, description, {"error": message})
        for status, (description, message) in _MESSAGES.items()
        if status in {401, 503, *statuses}
    }


def body(*values: Any) -> BodyKwarg:
    """A JSON body, with examples."""
    return BodyKwarg(media_type=RequestEncodingType.JSON, examples=_examples(*values))


def query(description: str, **schema: Any) -> QueryParameter:
    """A parameter that we read ourselves, because the messages are ours."""
    return QueryParameter(description=description, schema_extra={"type": "string", "one_of": None, **schema})


def _examples(*values: Any) -> list[Example]:
    return [Example(value=value) for value in values]
