"""The HTTP face of links that exist: every status and message, in both modes."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from refract.runtime.caching import CacheEntry
from tests.support.links import ALICE, BOB, LinksWorld, refused, said, token_for

URL = "https://example.com/a/long/path?x=1#top"

# What a client may ask of a link, with a body where one belongs to it.
READS = ("/urls/{}", "/urls/{}/qr.svg", "/urls/{}/qr.png")
OPERATIONS: tuple[tuple[str, str, Any], ...] = (
    *(("GET", target, None) for target in READS),
    *(("HEAD", target, None) for target in READS),
    ("PATCH", "/urls/{}", {"title": "mine now"}),
    ("DELETE", "/urls/{}", None),
)


# Changing and deleting.


async def test_a_change_is_answered_with_the_whole_link(links: LinksWorld) -> None:
    link = await links.create(URL, title="before", expires_at="2026-06-01T00:00:00Z")
    target = f"/urls/{link['short_code']}"
    links.clock.advance(1.5)
    change = {
        "url": "http://example.org/",
        "title": "after",
        "notes": "n",
        "tags": ["t"],
        "expires_at": None,
        "status": "disabled",
        "redirect_status": 302,
        "stats_public": False,
        "unknown": 1,
    }
    answer = await links.call("PATCH", target, change)
    expected = {**link, **change, "original_url": "http://example.org/", "is_active": False}
    for gone in ("url", "unknown", "expires_at"):
        del expected[gone]
    assert answer.status == 200
    assert answer.json == {**expected, "updated_at": "2026-03-01T12:00:01.500000Z"}
    assert (await links.call("GET", target)).body == answer.body
    kept = await links.call("PATCH", target, {})
    assert (kept.status, kept.body) == (200, answer.body)
    dated = await links.call("PATCH", target, {"expires_at": "2026-07-01T00:00:00Z", "status": "active"})
    assert (dated.json["expires_at"], dated.json["is_active"]) == ("2026-07-01T00:00:00Z", True)
    still = await links.call("PATCH", target, {"title": "x"})
    assert still.json["expires_at"] == "2026-07-01T00:00:00Z"


async def test_what_cannot_be_changed(links: LinksWorld) -> None:
    link = await links.create(URL)
    target = f"/urls/{link['short_code']}"
    await refused(
        links,
        "PATCH",
        target,
        {
            b"": "invalid request body",
            b"{": "invalid request body",
            b"[]": "invalid request body: expected object, got array",
            b"null": "invalid request body: expected object, got null",
            b'{"title":"\\udfff"}': "invalid request body",
            b'{"title":null}': "invalid request body: title: expected string, got null",
            b'{"title":7}': "invalid request body: title: expected string, got integer",
            b'{"tags":null}': "invalid request body: tags: expected array, got null",
            b'{"tags":[null]}': "invalid request body: tags[0]: expected string, got null",
            b'{"status":null}': "invalid request body: status: expected string, got null",
            b'{"expires_at":7}': "invalid request body: expires_at: expected string or null, got integer",
            b'{"redirect_status":1e400}': "invalid request body: redirect_status: number out of range",
            b'{"redirect_status":200}': "redirect_status must be 301, 302, 307 or 308",
            b'{"url":""}': "url is required",
            b'{"url":"example.com"}': "url must include scheme and host",
            b'{"url":"data:text/html,x"}': "url scheme must be http or https",
            b'{"url":"https://sho.rt/abc"}': "url must not lead to a short domain of this service",
            b'{"title":"a\\u0000"}': "title must not contain control characters",
            b'{"notes":"a\\u0000"}': "notes must not contain control characters",
            b'{"tags":["\\u0000"]}': "a tag must not contain control characters",
            b'{"tags":[" "]}': "a tag must not be empty",
            b'{"expires_at":"soon"}': "expires_at must be RFC3339 format",
            b'{"expires_at":"2026-03-01T11:59:59Z"}': "expires_at must be in the future",
            b'{"status":"expired"}': 'status must be "active" or "disabled"',
            b'{"status":"deleted"}': 'status must be "active" or "disabled"',
            b'{"status":"on"}': 'status must be "active" or "disabled"',
            b'{"title":"%s"}' % (b"a" * 201): "title must be at most 200 characters",
            b'{"notes":"%s"}' % (b"a" * 2_001): "notes must be at most 2000 characters",
        },
    )
    assert (await links.call("GET", target)).json == link
    assert len(await links.events()) == 1


async def test_what_is_over_is_not_changed(links: LinksWorld) -> None:
    code = (await links.create(expires_at="2026-03-01T12:00:01Z"))["short_code"]
    links.clock.advance(1)
    shown = (await links.call("GET", f"/urls/{code}")).json
    assert (shown["status"], shown["is_active"]) == ("expired", False)
    revived = await links.call("PATCH", f"/urls/{code}", {"status": "active"})
    assert said(revived) == (409, "an expired link keeps its status and its expiry")
    assert (await links.call("DELETE", f"/urls/{code}")).status == 204
    assert said(await links.call("PATCH", f"/urls/{code}", {"title": "x"})) == (410, "this link is no longer active")


async def test_a_deletion_can_be_repeated(links: LinksWorld) -> None:
    code = (await links.create())["short_code"]
    await links.cache.set_many([CacheEntry(f"url:{code}", 1, b"copy", 60.0)])
    for _ in range(2):
        answer = await links.call("DELETE", f"/urls/{code}")
        assert (answer.status, answer.body) == (204, b"")
    assert await links.cache.get_many([f"url:{code}"]) == [None]
    shown = (await links.call("GET", f"/urls/{code}")).json
    assert (shown["status"], shown["is_active"]) == ("deleted", False)
    assert [event["event_type"] for event in await links.events(code)] == ["url.created", "url.deleted"]


# Owners and strangers.


async def test_only_the_owner_has_to_do_with_a_link(links: LinksWorld) -> None:
    link = await links.create()
    for method, target, body in OPERATIONS:
        answer = await links.call(method, target.format(link["short_code"]), body, owner=BOB)
        assert said(answer) == (403, None if method == "HEAD" else "forbidden"), (method, target)
    assert (await links.call("GET", "/urls", owner=BOB)).json == {"urls": []}
    assert (await links.call("GET", f"/urls/{link['short_code']}")).json == link


def absent_codes() -> Iterator[str]:
    yield from ("absent", "a" * 51, "a" * 3_000, "%C3%BC", "%F0%9F%98%80", "%ff", "%ed%a0%80", "a%20b", "..%5c", "%25")


async def test_a_link_that_is_not_there(links: LinksWorld) -> None:
    await links.create()
    for method, target, body in OPERATIONS:
        for code in absent_codes():
            answer = await links.call(method, target.format(code), body)
            assert said(answer) == (404, None if method == "HEAD" else "not found"), (method, target, code)
        nul = await links.call(method, target.format("a%00"), body)
        assert said(nul) == (400, None if method == "HEAD" else "text may not contain the character NUL")
    assert said(await links.call("GET", "/urls/a%2Fb")) == (404, "not found")


async def test_a_code_may_be_percent_encoded(links: LinksWorld) -> None:
    link = await links.create(custom_code=f"a-{secrets.token_hex(4)}")
    encoded = link["short_code"].replace("a-", "%61%2D", 1)
    assert (await links.call("GET", f"/urls/{encoded}")).json == link


async def test_nobody_without_a_good_token(links: LinksWorld) -> None:
    code = (await links.create())["short_code"]
    now = int(links.clock.now().timestamp())
    strangers = (
        (),
        ("Authorization: Bearer ",),
        ("Authorization: Bearer abc",),
        ("Authorization: Basic YTpi",),
        (f"Authorization: bearer {links.token(ALICE)}",),
        (f"Authorization: Bearer {token_for(ALICE, links.clock, exp=now)}",),
        (f"Authorization: Bearer {links.token(ALICE)[:-1]}",),
    )
    operations = (
        *((method, target.format(code), body) for method, target, body in OPERATIONS),
        ("POST", "/shorten", {"url": URL}),
        ("POST", "/shorten/bulk", {"urls": [URL]}),
        ("GET", "/urls", None),
        ("HEAD", "/urls", None),
        # Before anything else is looked at.
        ("POST", "/shorten", b"{"),
        ("POST", "/shorten", b"a" * 5_000),
        ("PATCH", "/urls/absent", b"{"),
        ("GET", "/urls?limit=0", None),
    )
    for headers in strangers:
        for method, target, body in operations:
            answer = await links.call(method, target, body, *headers, owner=None)
            assert said(answer) == (401, None if method == "HEAD" else "unauthorized"), (headers, method, target)
    assert await links.count() == 1


# Reading.


async def test_head_is_get_without_the_body(links: LinksWorld) -> None:
    code = (await links.create())["short_code"]
    for target in ("/urls", *(one.format(code) for one in READS)):
        full, short = [await links.call(method, target) for method in ("GET", "HEAD")]
        assert (full.status, short.status, short.body) == (200, 200, b"")
        for field in ("content-type", "content-length"):
            assert full.headers[field] == short.headers[field]
        assert int(full.headers["content-length"]) == len(full.body)


async def test_pictures_of_the_short_url(links: LinksWorld) -> None:
    target = f"/urls/{(await links.create())['short_code']}"
    svg, png = [await links.call("GET", f"{target}/qr.{kind}") for kind in ("svg", "png")]
    assert (svg.headers["content-type"], svg.body[:4]) == ("image/svg+xml", b"<svg")
    assert (png.headers["content-type"], png.body[:8]) == ("image/png", b"\x89PNG\r\n\x1a\n")
    wider = await links.call("GET", f"{target}/qr.svg?size=500&margin=2&color=1a2b3c&background=transparent")
    assert b'width="500"' in wider.body
    assert b"#1a2b3c" in wider.body
    for query in ("size=0", "size=many", "margin=-1", "color=red", "background=%00", "size=99999999999999999999"):
        for kind in ("svg", "png"):
            answer = await links.call("GET", f"{target}/qr.{kind}?{query}")
            assert answer.status == 400, query
            assert answer.json["error"].startswith(query.partition("=")[0]), query


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("PUT", "/urls/abc", {"GET", "HEAD", "PATCH", "DELETE"}),
        ("DELETE", "/urls", {"GET", "HEAD"}),
        ("GET", "/shorten", {"POST"}),
    ],
)
async def test_other_methods(links: LinksWorld, method: str, target: str, allowed: set[str]) -> None:
    answer = await links.call(method, target)
    assert said(answer) == (405, "method not allowed")
    assert set(answer.headers["allow"].split(", ")) - {"OPTIONS"} == allowed


async def test_every_route_says_what_it_does(links: LinksWorld) -> None:
    paths = (await links.call("GET", "/docs/openapi.json")).json["paths"]
    described = {(path, method): operation for path, methods in paths.items() for method, operation in methods.items()}
    assert {path for path, _ in described} == {
        "/shorten",
        "/shorten/bulk",
        "/urls",
        "/urls/{code}",
        "/urls/{code}/qr.svg",
        "/urls/{code}/qr.png",
    }
    for operation in described.values():
        assert operation["summary"]
        assert operation["description"]
        assert operation["tags"] == ["links"]
        assert {"400", "401", "503"} <= set(operation["responses"])
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                [content] = response["content"].values()
                assert content["schema"] == {"$ref": "#/components/schemas/ErrorAnswer"}
    one = described["/urls/{code}", "patch"]
    assert {"403", "404", "409", "410", "422"} <= set(one["responses"])
