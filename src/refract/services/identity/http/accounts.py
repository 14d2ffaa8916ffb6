"""The routes of M2: register, sign in, and who am I."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import HttpMethod, Request, Response, post, route
from litestar.di import NamedDependency
from msgspec import Struct

from refract.kernel.errors import Limited
from refract.runtime.describing import answers, body, error
from refract.runtime.tokens import Claims
from refract.runtime.web import takes_body
from refract.services.identity.commands.registering import Registering
from refract.services.identity.commands.signing_in import SigningIn
from refract.services.identity.domain.accounts import InvalidCredentials
from refract.services.identity.http.cookies import is_secure, session_cookie
from refract.services.identity.http.describing import TAGS, errors
from refract.services.identity.http.routes import FOR_KEYS

BODY_BYTES = 1_024
READING = (HttpMethod.GET, HttpMethod.HEAD)

ALICE = {"email": "alice@example.com", "password": "a long and quiet sentence"}
WHO = {"user_id": "550e8400-e29b-41d4-a716-446655440000", "email": "alice@example.com"}
TOKEN = {"token": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.…", "expires_at": "2026-03-02T12:00:00Z"}
SESSION = {"expires_at": TOKEN["expires_at"]}

Caller = NamedDependency[Claims]


class Credentials(Struct, frozen=True, kw_only=True):
    """Who somebody wants to be; what is left out is empty."""

    email: str = ""
    password: str = ""


class SignInBody(Credentials, frozen=True, kw_only=True):
    """Credentials, and whether the token is to be kept by the browser, in a cookie that no script reads."""

    session: bool = False


class Account(Struct, frozen=True):
    """A user, as they see themselves."""

    user_id: str
    email: str


class SignedIn(Struct, frozen=True, omit_defaults=True):
    """The token, unless it went into the cookie, and until when it is good."""

    expires_at: datetime
    token: str = ""


def account_routes(registering: Registering, signing_in: SigningIn, base_url: str) -> list[Any]:
    """POST /register and POST /login."""

    @post(
        "/register",
        summary="Register",
        description="The address is trimmed and kept in lower case. A mail asks its owner to verify it.",
        tags=TAGS,
        responses={201: answers(Account, "A new user.", WHO)}
        | errors(400, 409, 429)
        | {429: error("Too many registrations at once; `Retry-After` says how long to wait.", Limited.message)},
        **takes_body(BODY_BYTES),
    )
    async def register(request: Request[Any, Any, Any], data: Annotated[Credentials, body(ALICE)]) -> Response[bytes]:
        user = await registering.register(data.email, data.password, client_address(request))
        return _json(Account(user.id, user.email), 201)

    @post(
        "/login",
        status_code=200,
        summary="Sign in",
        description=(
            "The token is good for 24 hours. With `session` it is not in the answer but in an HttpOnly cookie. "
            "After 10 failures for one account or 50 from one client address within 15 minutes, the answer is 429."
        ),
        tags=TAGS,
        responses={200: answers(SignedIn, "Signed in.", TOKEN, SESSION)}
        | errors(400, 401, 403, 429)
        | {401: error("The address or the password is wrong; which of them is not said.", InvalidCredentials.message)},
        **takes_body(BODY_BYTES),
    )
    async def login(
        request: Request[Any, Any, Any], data: Annotated[SignInBody, body(ALICE, {**ALICE, "session": True})]
    ) -> Response[bytes]:
        signed = await signing_in.sign_in(data.email, data.password, client_address(request))
        if not data.session:
            return _json(SignedIn(signed.expires_at, signed.token))
        cookie = session_cookie(signed.token, secure=is_secure(request, base_url))
        return _json(SignedIn(signed.expires_at), headers={"Set-Cookie": cookie})

    return [register, login]


def own_routes() -> list[Any]:
    """GET and HEAD /me."""

    @route(
        "/me",
        http_method=READING,
        summary="Who am I",
        description="What the token says; nothing is looked up.",
        tags=TAGS,
        responses={200: answers(Account, "The owner of the token.", WHO)} | errors(401),
        opt=FOR_KEYS,
    )
    async def who_am_i(caller: Caller) -> Response[bytes]:
        return _json(Account(caller.subject, caller.email))

    return [who_am_i]


def client_address(request: Request[Any, Any, Any]) -> str:
    """Whose request it is, as the edge found it."""
    address: str = request.scope["state"]["client_address"]
    return address


def _json(answer: Struct, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    kept = {"Cache-Control": "no-store", **(headers or {})}  # a token, and who somebody is, are for no cache
    return Response(msgspec.json.encode(answer), status_code=status, headers=kept, media_type="application/json")
