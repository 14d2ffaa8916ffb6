"""What the gateway tells the public of everything that it offers: a document, and a page of it for browsers."""

from base64 import b64encode
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from litestar import HttpMethod, Response, route

DOCUMENT = "openapi.json"
PAGE = "index.html"
"""`make api` writes both: a gateway of distributed mode has no service in its process that it could ask."""

_KEPT = {"cache-control": "public, max-age=300"}
"""They change with a release."""


def document_routes() -> list[Any]:
    """GET /docs and GET /docs/openapi.json."""
    document, page = _served(DOCUMENT), _served(PAGE)
    headers = _KEPT | {"content-security-policy": _policy(page), "referrer-policy": "no-referrer"}

    @route("/docs", http_method=(HttpMethod.GET, HttpMethod.HEAD), include_in_schema=False)
    async def show_page() -> Response[bytes]:
        return Response(page, media_type="text/html", headers=headers)

    @route("/docs/openapi.json", http_method=(HttpMethod.GET, HttpMethod.HEAD), include_in_schema=False)
    async def show_document() -> Response[bytes]:
        return Response(document, media_type="application/json", headers=_KEPT)

    return [show_page, show_document]


@lru_cache
def _served(name: str) -> bytes:
    return files(__package__).joinpath("served", name).read_bytes()


def _policy(page: bytes) -> str:
    """What a browser may do with the page: show it in the one style that is in it."""
    style = page.partition(b"<style>")[2].partition(b"</style>")[0]
    digest = b64encode(sha256(style).digest()).decode()
    rules = ("default-src 'none'", f"style-src 'sha256-{digest}'", "base-uri 'none'", "form-action 'none'")
    return "; ".join([*rules, "frame-ancestors 'none'"])
