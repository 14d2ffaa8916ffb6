"""The route that sends."""

from typing import Any

import msgspec
from litestar import MediaType, Request, post

from refract.kernel.errors import Invalid
from refract.runtime.web import takes_body
from refract.services.sms.commands.sending import Sending
from refract.services.sms.domain.sends import NotBound, SendKey, SendRequest
from refract.services.sms.http.bodies import LARGEST_BODY, body_of, decoded, legible
from refract.services.sms.http.describing import TAGS, SendOperation, errors, text
from refract.services.sms.http.texts import INVALID, SENT, PlainText, plain_error

BOUND_TO = b"x-sms-user-id"
"""Set by the gateway for the bearer of an API key, and by nobody else: the only user for whom that key sends."""

_DECODER = msgspec.json.Decoder(SendRequest)


def sending_routes(sending: Sending) -> list[Any]:
    """POST /api/send."""

    @post(
        "/api/send",
        status_code=200,
        media_type=MediaType.TEXT,
        summary="Send a message",
        description="Within the user's limit. The message is safe in the topic `sms-outbound` when this is answered.",
        tags=TAGS,
        operation_class=SendOperation,
        responses={200: text("It will be sent.", SENT), **errors(400, 403, 404, 422, 429)},
        **takes_body(LARGEST_BODY),
    )
    async def send(request: Request[Any, Any, Any]) -> PlainText:
        body = b""
        try:
            body = await body_of(request)
            message = decoded(_DECODER, body).checked()
            message.check_sender(_values_of(request, BOUND_TO))
            given = _key_in(request)
            key = None if given is None else SendKey.of(message, given)
        except (Invalid, NotBound) as error:
            sending.refuse(*legible(body), INVALID if isinstance(error, Invalid) else error.message)
            return plain_error(request, error)
        try:
            await sending.send(message, key)
        except Exception as error:  # noqa: BLE001  # every answer is a text of ours
            return plain_error(request, error)
        return PlainText(SENT)

    return [send]


def _key_in(request: Request[Any, Any, Any]) -> str | None:
    """The key; raises Invalid where there are two: nobody can tell which one a repeat would have."""
    keys = _values_of(request, b"idempotency-key")
    if len(keys) > 1:
        raise Invalid
    return keys[0] if keys else None


def _values_of(request: Request[Any, Any, Any], name: bytes) -> list[str]:
    """Straight from the header fields: a mapping of all of them takes longer to make than all else here."""
    return [value.decode("latin-1") for field, value in request.scope["headers"] if field == name]
