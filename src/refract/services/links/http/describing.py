"""What the generated documentation says of these routes beyond their types."""

from typing import Any

from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from msgspec import Struct

TAGS = ["links"]

LINK: dict[str, Any] = {
    "short_code": "aB3xY9z",
    "short_url": "https://sho.rt/aB3xY9z",
    "original_url": "https://example.com/a/long/path",
    "title": "Spring",
    "notes": "",
    "tags": ["campaign"],
    "status": "active",
    "is_active": True,
    "redirect_status": 301,
    "stats_public": True,
    "created_at": "2026-03-01T12:00:00Z",
    "updated_at": "2026-03-01T12:00:00Z",
    "expires_at": "2026-06-01T00:00:00Z",
    "total_clicks": 42,
    "last_clicked_at": "2026-03-02T08:15:00Z",
}

_MESSAGES = {
    400: ("The request is wrong; the message says what.", "invalid request body"),
    401: ("There is no good token.", "unauthorized"),
    403: ("The link is another user's.", "forbidden"),
    404: ("There is no such link.", "not found"),
    409: ("It contradicts what is there.", "short code already taken"),
    410: ("The link is deleted.", "this link is no longer active"),
    422: ("The destination is refused, or the key was used for another request.", "url is flagged as unsafe: malware"),
    503: ("It cannot be done now, and may be tried again.", "service unavailable"),
}


class ErrorAnswer(Struct, frozen=True):
    """Every error is one message."""

    error: str


def answers(container: type[Struct], description: str, *examples: Any) -> ResponseSpec:
    """A good answer, with examples."""
    return ResponseSpec(container, description=description, generate_examples=False, examples=_examples(*examples))


def errors(*statuses: int) -> dict[int, ResponseSpec]:
    """The error answers of a route; all of them may be 401 and 503."""
    return {
        status: ResponseSpec(
            ErrorAnswer, description=description, generate_examples=False, examples=_examples({"error": message})
        )
        for status, (description, message) in _MESSAGES.items()
        if status in {401, 503, *statuses}
    }


def _examples(*values: Any) -> list[Example]:
    return [Example(value=value) for value in values]
