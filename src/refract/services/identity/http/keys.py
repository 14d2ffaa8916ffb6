"""The routes of API keys: for their owners, and for the gateway, which asks whom one speaks for."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Response, delete, post, route
from litestar.params import PathParameter
from msgspec import UNSET, Meta, Struct, UnsetType

from refract.kernel.clock import Clock
from refract.kernel.errors import Limited, NotFound
from refract.kernel.events import Moment
from refract.runtime.describing import answers, body, error, query
from refract.runtime.web import takes_body
from refract.services.identity.api import LARGEST_KEY_ID, KeyId
from refract.services.identity.commands.key_uses import KeyUses
from refract.services.identity.commands.keys import Keys, MadeKey
from refract.services.identity.commands.resolving_keys import ResolvingKeys
from refract.services.identity.domain.keys import KeyStatus, KeyWish, NotForKeys, NotForSms
from refract.services.identity.http.accounts import READING, Caller
from refract.services.identity.http.describing import errors
from refract.services.identity.queries.keys import KeyPage, KeyPageRequest, KeyQueries

TAGS = ["keys"]
BODY_BYTES = 4_096
MOST_TOLD = 10_000
"""Keys that a gateway tells the uses of in one request."""

TOLD_BYTES = 512 * 1024

WISH = {"name": "Blog automation", "scopes": ["links:read", "links:write"], "expires_at": "2027-01-01T00:00:00Z"}
SMS_WISH = {"name": "Codes by SMS", "scopes": ["sms:send"], "sms_user_id": 101}
SHOWN: dict[str, Any] = {
    "id": 12,
    "key_prefix": "refract_k3Jx9QaZ",
    **WISH,
    "status": "active",
    "created_at": "2026-03-01T12:00:00Z",
}
MADE = {**SHOWN, "key": "refract_k3Jx9QaZ…"}
LISTED = {**SHOWN, "last_used_at": "2026-03-02T08:15:00Z", "usage_count": 421}

After = Annotated[str | None, query("Where the last page ended: its `next_cursor`.")]
Limit = Annotated[
    str | None, query("How many keys, 20 by default; above 100 is 100.", type="integer", minimum=1, default=20)
]
OfStatus = Annotated[
    str | None, query("`all` shows revoked keys too.", name="status", enum=["active", "all"], default="active")
]
Id = Annotated[
    str, PathParameter(description="The id of a key.", schema_extra={"type": "integer", "minimum": 1, "one_of": None})
]
Uses = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class KeyBody(Struct, frozen=True, kw_only=True):
    """What a key is to be called and good for; `sms_user_id` goes with `sms:send`, and only there."""

    name: str = ""
    scopes: list[str] = []
    expires_at: Moment | None = None
    sms_user_id: int | None = None


class NewKey(Struct, frozen=True, kw_only=True):
    """A new key, and the only answer in which it stands. What it does not have is left out."""

    id: int
    key: str
    key_prefix: str
    name: str
    scopes: list[str]
    sms_user_id: int | UnsetType = UNSET
    status: KeyStatus = "active"
    created_at: datetime
    expires_at: datetime | UnsetType = UNSET

    @classmethod
    def of(cls, made: MadeKey) -> "NewKey":
        """As its owner sees it."""
        wish = made.wish
        return cls(
            id=made.id,
            key=made.key.text,
            key_prefix=made.key.prefix,
            name=wish.name,
            scopes=list(wish.scopes),
            sms_user_id=UNSET if wish.sms_user_id is None else wish.sms_user_id,
            created_at=made.created_at,
            expires_at=UNSET if wish.expires_at is None else wish.expires_at,
        )


class Question(Struct, frozen=True, kw_only=True):
    """The gateway asks whom a key speaks for, and tells how often it was used since it last did."""

    key: str
    uses: Uses = 0


class Told(Struct, frozen=True, kw_only=True):
    """How often keys were used, by their ids."""

    uses: Annotated[dict[KeyId, Uses], Meta(max_length=MOST_TOLD)]


KeyRequest = Annotated[KeyBody, body(WISH, SMS_WISH)]


def key_routes(keys: Keys, queries: KeyQueries, clock: Clock) -> list[Any]:
    """POST and GET /keys, DELETE /keys/{id}: for users who are signed in, and never by a key."""

    @post(
        "/keys",
        summary="Make an API key",
        description=(
            "The key is in this answer and in no other. It is good for its scopes until `expires_at`, for good where "
            "there is none, and survives a change of password. Scopes are `links:read`, `links:write`, `stats:read`, "
            "`notifications:read`, and for administrators `sms:send`, which wants the `sms_user_id` in whose name the "
            "key may send."
        ),
        tags=TAGS,
        responses={201: answers(NewKey, "A new key.", MADE)}
        | errors(400, 401)
        | {
            403: error("The caller may not give that away.", NotForSms.message),
            429: error("More than 60 keys in an hour; `Retry-After` says how long to wait.", Limited.message),
        },
        **takes_body(BODY_BYTES),
    )
    async def make_key(caller: Caller, data: KeyRequest) -> Response[bytes]:
        wish = KeyWish.of(data.name, data.scopes, data.expires_at, data.sms_user_id, clock.now())
        return _json(NewKey.of(await keys.make(caller, wish)), 201)

    @route(
        "/keys",
        http_method=READING,
        summary="List API keys",
        description=(
            "The caller's, the newest first; what was revoked or is over is forgotten 90 days later. "
            "Uses are counted within a minute or two."
        ),
        tags=TAGS,
        responses={200: answers(KeyPage, "A page.", {"keys": [LISTED], "next_cursor": "uC1mK9ab-3"})}
        | errors(400, 401)
        | {403: error("It was asked with an API key.", NotForKeys.message)},
    )
    async def list_keys(
        caller: Caller, after: After = None, limit: Limit = None, status: OfStatus = None
    ) -> Response[bytes]:
        request = KeyPageRequest.read(after=after or "", limit=limit or "", status=status or "")
        return _json(await queries.page(caller.subject, request))

    @delete(
        "/keys/{id:str}",
        status_code=204,
        summary="Revoke an API key",
        response_description="The key is revoked.",
        description=(
            "It is refused everywhere within a second, or within 60 where there is no broker or it is away. "
            "Again is no error."
        ),
        tags=TAGS,
        responses=errors(400, 401, 404) | {403: error("It was asked with an API key.", NotForKeys.message)},
    )
    async def revoke_key(caller: Caller, id: Id) -> None:  # noqa: A002  # the name that it has in the path
        await keys.revoke(caller, _key_id(id))

    return [make_key, list_keys, revoke_key]


def inner_key_routes(resolving: ResolvingKeys, uses: KeyUses) -> list[Any]:
    """POST /keys/resolve and /keys/uses, for the gateway alone: they have no row in the public table."""

    @post("/keys/resolve", status_code=200, include_in_schema=False, **takes_body(BODY_BYTES))
    async def resolve_key(data: Annotated[Question, body()]) -> Response[bytes]:
        return _json(await resolving.resolve(data.key, data.uses))

    @post("/keys/uses", status_code=204, include_in_schema=False, **takes_body(TOLD_BYTES))
    async def count_uses(data: Annotated[Told, body()]) -> None:
        await uses.count(data.uses)

    return [resolve_key, count_uses]


def _key_id(text: str) -> int:
    """The number in a path; what cannot be one is nobody's key."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(LARGEST_KEY_ID)) or int(text) > LARGEST_KEY_ID:
        raise NotFound
    return int(text)


def _json(answer: object, status: int = 200) -> Response[bytes]:
    kept = {"Cache-Control": "no-store"}  # a key, and what somebody has, are for no cache
    return Response(msgspec.json.encode(answer), status_code=status, headers=kept, media_type="application/json")
