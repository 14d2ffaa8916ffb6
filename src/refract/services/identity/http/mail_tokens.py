"""The routes of one-time tokens: verify an address, ask for a new password, set it."""

from typing import Annotated, Any

from litestar import Request, post
from msgspec import Struct

from refract.kernel.errors import Limited
from refract.runtime.describing import body, error
from refract.runtime.web import takes_body
from refract.services.identity.commands.resetting import AskingForReset, Resetting
from refract.services.identity.commands.verifying import Verifying
from refract.services.identity.domain.one_time import InvalidToken
from refract.services.identity.http.accounts import BODY_BYTES, client_address
from refract.services.identity.http.describing import TAGS, errors

TOKEN = "Qm0t3vLxkRzC8f0yW2nJp7sUaE5hGd9iBoXqYrTuVwM"  # noqa: S105  # an example


class VerifyBody(Struct, frozen=True, kw_only=True):
    """The token of a verification mail."""

    token: str = ""


class ResetBody(Struct, frozen=True, kw_only=True):
    """The address whose password is forgotten."""

    email: str = ""


class ConfirmBody(Struct, frozen=True, kw_only=True):
    """The token of a reset mail, and the new password."""

    token: str = ""
    password: str = ""


TOO_MANY = error("Too many with this token at once; `Retry-After` says how long to wait.", Limited.message)
NO_TOKEN = error("The request is wrong, or the token is; the message says what.", InvalidToken.message)

VerifyRequest = Annotated[VerifyBody, body({"token": TOKEN})]
ResetRequest = Annotated[ResetBody, body({"email": "alice@example.com"})]
ConfirmRequest = Annotated[ConfirmBody, body({"token": TOKEN, "password": "a long and quiet sentence"})]


def mail_token_routes(verifying: Verifying, asking: AskingForReset, resetting: Resetting) -> list[Any]:
    """POST /verify, /reset and /reset/confirm, for which nobody has to be signed in."""

    @post(
        "/verify",
        status_code=204,
        summary="Verify an email address",
        response_description="The address is verified.",
        description="With the token of the mail, which is good for 24 hours. The same token again is no error.",
        tags=TAGS,
        responses=errors(400) | {400: NO_TOKEN},
        **takes_body(BODY_BYTES),
    )
    async def verify(data: VerifyRequest) -> None:
        await verifying.verify(data.token)

    @post(
        "/reset",
        status_code=204,
        summary="Ask for a new password",
        response_description="The mail is on its way, if there is such an account.",
        description=(
            "If the address has an account, a mail goes there with a token; the answer does not tell. A mailbox gets "
            "3 of them an hour and no more; one client address may ask 20 times an hour."
        ),
        tags=TAGS,
        responses=errors(400, 429)
        | {429: error("Too many mails lately; `Retry-After` says how many seconds to wait.", Limited.message)},
        **takes_body(BODY_BYTES),
    )
    async def ask_for_reset(request: Request[Any, Any, Any], data: ResetRequest) -> None:
        await asking.ask(data.email, client_address(request))

    @post(
        "/reset/confirm",
        status_code=204,
        summary="Set a new password",
        response_description="The new password is set.",
        description=(
            "With the token of the mail, which is good for an hour and for once. Whoever was signed in is signed out."
        ),
        tags=TAGS,
        responses=errors(400, 429) | {400: NO_TOKEN, 429: TOO_MANY},
        **takes_body(BODY_BYTES),
    )
    async def confirm_reset(data: ConfirmRequest) -> None:
        await resetting.confirm(data.token, data.password)

    return [verify, ask_for_reset, confirm_reset]
