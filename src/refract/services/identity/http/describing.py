"""What the generated documentation says of these routes beyond their types."""

from typing import Any

from litestar.enums import RequestEncodingType
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import BodyKwarg
from msgspec import Struct

TAGS = ["accounts"]

_MESSAGES = {
    400: ("The request is wrong; the message says what.", "invalid request body"),
    401: ("There is no good token.", "unauthorized"),
    403: ("The address has to be verified first.", "email address is not verified"),
    409: ("It contradicts what is there.", "email already registered"),
    429: ("Too many failed attempts; `Retry-After` says how many seconds to wait.", "rate limit exceeded"),
    503: ("It cannot be done now, and may be tried again.", "service unavailable"),
}


class ErrorAnswer(Struct, frozen=True):
    """Every error is one message."""

    error: str


def answers(container: type[Struct] | None, description: str, *values: Any) -> ResponseSpec:
    """A good answer, with examples."""
    return ResponseSpec(container, description=description, generate_examples=False, examples=_examples(*values))


def error(description: str, message: str) -> ResponseSpec:
    """An error answer of one route, in the place of what others say with the same status."""
    return answers(ErrorAnswer, description, {"error": message})


def errors(*statuses: int) -> dict[int, ResponseSpec]:
    """The error answers of a route; all of them may be 503."""
    return {
        status: error(description, message)
        for status, (description, message) in _MESSAGES.items()
        if status in {503, *statuses}
    }


def body(*values: Any) -> BodyKwarg:
    """A JSON body, with examples."""
    return BodyKwarg(media_type=RequestEncodingType.JSON, examples=_examples(*values))


def _examples(*values: Any) -> list[Example]:
    return [Example(value=value) for value in values]
