"""The routes by which tokens and accounts end, and the list of dead tokens that the gateway reads."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.params import QueryParameter
from msgspec import Struct

from refract.runtime.describing import body, error
from refract.runtime.web import takes_body
from refract.services.identity.commands.confirming import WrongPassword
from refract.services.identity.commands.deleting import Deleting, LastAdministrator
from refract.services.identity.commands.leaving import Leaving
from refract.services.identity.commands.passwords import ChangingPassword
from refract.services.identity.http.accounts import BODY_BYTES, Caller, client_address
from refract.services.identity.http.cookies import expired_cookie, is_secure
from refract.services.identity.http.describing import TAGS, errors
from refract.services.identity.queries.revocations import RevocationQueries

CHANGE = {"current": "a long and quiet sentence", "new": "another one, as quiet"}
FAREWELL = {"password": "a long and quiet sentence"}

After = Annotated[str | None, QueryParameter(description="Where the last page ended: its `next_cursor`.")]


class PasswordBody(Struct, frozen=True, kw_only=True):
    """The password that is, and the one that is to be; what is left out is empty."""

    current: str = ""
    new: str = ""


class FarewellBody(Struct, frozen=True, kw_only=True):
    """The password, without which nobody ends an account; what is left out is empty."""

    password: str = ""


def leaving_routes(leaving: Leaving, changing: ChangingPassword, deleting: Deleting, base_url: str) -> list[Any]:
    """POST /logout, POST /password and DELETE /me; all want a token."""

    def gone(request: Request[Any, Any, Any]) -> Response[None]:
        """Nothing to say, but to the browser: its cookie is over, whether the token came in one or not."""
        cookie = expired_cookie(secure=is_secure(request, base_url))
        return Response(None, status_code=204, headers={"Set-Cookie": cookie, "Cache-Control": "no-store"})

    @post(
        "/logout",
        status_code=204,
        summary="Sign out",
        response_description="Signed out.",
        description="The token is dead everywhere within a second, and the cookie of a session is over.",
        tags=TAGS,
        responses=errors(401),
        **takes_body(BODY_BYTES),
    )
    async def logout(request: Request[Any, Any, Any], caller: Caller) -> Response[None]:
        await leaving.leave(caller)
        return gone(request)

    @post(
        "/password",
        status_code=204,
        summary="Change the password",
        response_description="The password is changed.",
        description="Every token of before is dead, this one too. After 10 wrong `current`, it is 429.",
        tags=TAGS,
        responses=errors(400, 401, 429) | {403: error("`current` is not the password.", WrongPassword.message)},
        **takes_body(BODY_BYTES),
    )
    async def change_password(
        request: Request[Any, Any, Any], caller: Caller, data: Annotated[PasswordBody, body(CHANGE)]
    ) -> Response[None]:
        await changing.change(caller, data.current, data.new, client_address(request))
        return gone(request)

    @delete(
        "/me",
        status_code=204,
        summary="Delete the account",
        response_description="The account is deleted.",
        description=(
            "For good: every token is dead within a second, links stop, notifications and preferences are gone, and "
            "the address is free again. Counts stay, and are nobody's. After 10 wrong passwords, it is 429."
        ),
        tags=TAGS,
        responses=errors(400, 401, 409, 429)
        | {
            403: error("It is not the password.", WrongPassword.message),
            409: error("Nobody would be left who may do everything.", LastAdministrator.message),
        },
        **takes_body(BODY_BYTES),
    )
    async def delete_account(
        request: Request[Any, Any, Any], caller: Caller, data: Annotated[FarewellBody, body(FAREWELL)]
    ) -> Response[None]:
        await deleting.delete(caller, data.password, client_address(request))
        return gone(request)

    return [logout, change_password, delete_account]


def revocation_routes(queries: RevocationQueries) -> list[Any]:
    """GET /revocations, for the gateway alone: it has no row in the public table, and says nothing secret."""

    @get("/revocations", include_in_schema=False)
    async def list_revocations(after: After = None) -> Response[bytes]:
        page = await queries.page(after or "")
        return Response(msgspec.json.encode(page), headers={"Cache-Control": "no-store"}, media_type="application/json")

    return [list_revocations]
