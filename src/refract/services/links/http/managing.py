"""The routes of links that exist: list them, read one, change it, delete it, and its QR codes."""

import asyncio
from collections.abc import Callable
from typing import Any

from litestar import HttpMethod, Response, delete, patch, route

from refract.kernel.clock import Clock
from refract.kernel.errors import Limited
from refract.runtime.describing import answers, error
from refract.runtime.web import takes_body
from refract.services.links.adapters.qr import QrOptions, render_png, render_svg
from refract.services.links.commands.managing import Managing
from refract.services.links.domain.destinations import OwnDomains
from refract.services.links.http import parameters
from refract.services.links.http.bodies import LINK_BYTES, read_change
from refract.services.links.http.describing import LINK, TAGS, errors
from refract.services.links.http.parameters import Caller, Code, owner_of
from refract.services.links.queries.links import LinkQueries
from refract.services.links.queries.paging import PageRequest
from refract.services.links.queries.searching import SearchTooLong
from refract.services.links.queries.views import LinkPage, LinkView, LinkViews

READING = (HttpMethod.GET, HttpMethod.HEAD)


def reading_routes(queries: LinkQueries) -> list[Any]:
    """GET /urls and GET /urls/{code}."""

    @route(
        "/urls",
        http_method=READING,
        summary="List links",
        description="The caller's links, page by page; links that are made meanwhile do not shift the pages.",
        tags=TAGS,
        responses={200: answers(LinkPage, "A page.", {"urls": [LINK], "next_cursor": "c1mK9"}), **errors(400)}
        | {
            422: error("The search would take too long.", SearchTooLong.message),
            429: error("Too many searches at once; `Retry-After` says how many seconds to wait.", Limited.message),
        },
    )
    async def list_links(
        caller: Caller,
        after: parameters.After = None,
        limit: parameters.Limit = None,
        q: parameters.Search = None,
        tag: parameters.Tag = None,
        status: parameters.StatusFilter = None,
        sort: parameters.SortOrder = None,
    ) -> LinkPage:
        request = PageRequest.read(
            after=after or "", limit=limit or "", q=q or "", tag=tag or "", status=status or "", sort=sort or ""
        )
        return await queries.page(owner_of(caller), request)

    @route(
        "/urls/{code:str}",
        http_method=READING,
        summary="Read a link",
        description="One link of the caller, in whatever status it is.",
        tags=TAGS,
        responses={200: answers(LinkView, "The link.", LINK), **errors(400, 403, 404)},
    )
    async def show_link(caller: Caller, code: Code) -> LinkView:
        return await queries.one(owner_of(caller), code)

    return [list_links, show_link]


def changing_routes(managing: Managing, views: LinkViews, own: OwnDomains, clock: Clock) -> list[Any]:
    """PATCH and DELETE /urls/{code}."""

    @patch(
        "/urls/{code:str}",
        summary="Change a link",
        description="Whatever is left out stays as it is. A changed destination no longer stands for its first URL.",
        tags=TAGS,
        responses={200: answers(LinkView, "The link as it is now.", LINK), **errors(400, 403, 404, 409, 410, 422)},
        **takes_body(LINK_BYTES),
    )
    async def change_link(caller: Caller, code: Code, data: parameters.ChangeRequest) -> LinkView:
        change = read_change(data, own, clock.now())
        return views.of(await managing.change(owner_of(caller), code, change))

    @delete(
        "/urls/{code:str}",
        summary="Delete a link",
        response_description="The link is deleted.",
        description="For good: it redirects no more, and its code is never handed out again. Again is no error.",
        tags=TAGS,
        responses=errors(400, 403, 404),
    )
    async def delete_link(caller: Caller, code: Code) -> None:
        await managing.retire(owner_of(caller), code)

    return [change_link, delete_link]


def picture_routes(queries: LinkQueries) -> list[Any]:
    """GET /urls/{code}/qr.svg and qr.png."""
    return [
        _picture_route(queries, "svg", "image/svg+xml", render_svg),
        _picture_route(queries, "png", "image/png", render_png),
    ]


def _picture_route(queries: LinkQueries, name: str, media_type: str, render: Callable[[str, QrOptions], bytes]) -> Any:
    @route(
        f"/urls/{{code:str}}/qr.{name}",
        http_method=READING,
        summary=f"QR code as {name.upper()}",
        response_description="The picture.",
        description="A picture of the short URL, for the owner of the link.",
        tags=TAGS,
        media_type=media_type,
        responses=errors(400, 403, 404),
    )
    async def show_picture(
        caller: Caller,
        code: Code,
        size: parameters.Size = None,
        margin: parameters.Margin = None,
        color: parameters.Color = None,
        background: parameters.Background = None,
    ) -> Response[bytes]:
        options = QrOptions.read(size, margin, color, background)
        link = await queries.one(owner_of(caller), code)
        # In a thread: a picture takes some milliseconds, for which redirects would wait.
        return Response(await asyncio.to_thread(render, link.short_url, options), media_type=media_type)

    return show_picture
