"""What clients send, read strictly: whatever is not exactly right is one and the same error."""

from typing import Any, TypeVar

import msgspec
from litestar import Request

from refract.kernel.errors import BodyTooLarge, Invalid
from refract.services.sms.domain.limits import LARGEST_NUMBER
from refract.services.sms.domain.sends import LONGEST_MESSAGE

Body = TypeVar("Body")

LARGEST_BODY = 64 * 1024
"""Bytes: the longest message with every character escaped has less than half of that."""


async def body_of(request: Request[Any, Any, Any]) -> bytes:
    """The bytes of a body; raises Invalid where there are too many, or the client has left."""
    body = bytearray()
    try:
        while True:
            event: Any = await request.receive()
            body.extend(event.get("body", b""))
            if len(body) > LARGEST_BODY or event["type"] == "http.disconnect":
                raise Invalid
            if not event.get("more_body", False):
                return bytes(body)
    except BodyTooLarge as error:
        raise Invalid from error


def decoded(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """What a body says; raises Invalid."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid from error


def legible(body: bytes) -> tuple[int | None, str]:
    """The user and the message of a body that is wrong, as far as they can be made out."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, ""
    if not isinstance(document, dict):
        return None, ""
    user_id, message = document.get("userId"), document.get("message")
    known = isinstance(user_id, int) and not isinstance(user_id, bool) and 0 <= user_id <= LARGEST_NUMBER
    text = message[:LONGEST_MESSAGE].replace("\0", "") if isinstance(message, str) else ""
    return (user_id if known else None), text
