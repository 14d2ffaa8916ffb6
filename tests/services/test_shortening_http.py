"""The routes that make links: every status and message, in both modes."""

import json
import re
import secrets
from typing import Any

from tests.support.links import BASE_URL, BOB, LinksWorld, refused, said

URL = "https://example.com/a/long/path?x=1#top"


async def test_a_new_link_is_answered_whole(links: LinksWorld) -> None:
    answer = await links.call("POST", "/shorten", {"url": URL, "unknown": {"field": 1}})
    link = answer.json
    assert answer.status == 201
    assert re.fullmatch("[0-9A-Za-z]{7}", link["short_code"])
    assert link == {
        "short_code": link["short_code"],
        "short_url": f"{BASE_URL}/{link['short_code']}",
        "original_url": URL,
        "title": "",
        "notes": "",
        "tags": [],
        "status": "active",
        "is_active": True,
        "redirect_status": 301,
        "stats_public": True,
        "created_at": "2026-03-01T12:00:00Z",
        "updated_at": "2026-03-01T12:00:00Z",
        "total_clicks": 0,
    }
    assert (await links.call("GET", f"/urls/{link['short_code']}")).body == answer.body
    again = await links.call("POST", "/shorten", {"url": URL})
    assert (again.status, again.body) == (200, answer.body)
    other = await links.call("POST", "/shorten", {"url": URL, "force_new": True})
    assert other.status == 201
    [event] = await links.events(link["short_code"])
    assert event["event_type"] == "url.created"


async def test_a_link_with_all_that_it_can_have(links: LinksWorld) -> None:
    alias = f"Spring-{secrets.token_hex(4)}"
    wish = {
        "url": URL,
        "custom_code": alias,
        "expires_at": "2026-06-01T02:00:00.5+02:00",
        "title": " Spring ",
        "notes": "two\nlines",
        "tags": ["b", "a", "b"],
        "redirect_status": 308,
        "stats_public": False,
    }
    answer = await links.call("POST", "/shorten", wish)
    assert answer.status == 201
    shown = (await links.call("GET", f"/urls/{alias}")).json
    assert shown == answer.json
    assert (shown["short_code"], shown["short_url"]) == (alias, f"{BASE_URL}/{alias}")
    assert (shown["expires_at"], shown["title"], shown["notes"]) == (
        "2026-06-01T00:00:00.500000Z",
        "Spring",
        "two\nlines",
    )
    assert (shown["tags"], shown["redirect_status"], shown["stats_public"]) == (["a", "b"], 308, False)
    nulls = dict.fromkeys(("custom_code", "expires_at", "title", "notes", "tags", "redirect_status", "stats_public"))
    assert (await links.call("POST", "/shorten", {"url": URL, **nulls})).status == 201
    taken = await links.call("POST", "/shorten", {"url": URL, "custom_code": alias}, owner=BOB)
    assert said(taken) == (409, "short code already taken")


async def test_what_cannot_be_shortened(links: LinksWorld) -> None:
    await refused(
        links,
        "POST",
        "/shorten",
        {
            b"": "invalid request body",
            b"{": "invalid request body",
            b"not json": "invalid request body",
            b'{"url":"\\ud800"}': "invalid request body",
            b'{"url":"\xff"}': "invalid request body",
            b'{"deep":' + b"[" * 2_000: "invalid request body",
            b"[]": "invalid request body: expected object, got array",
            b"null": "invalid request body: expected object, got null",
            b'"https://example.com"': "invalid request body: expected object, got string",
            b'{"url":7}': "invalid request body: url: expected string or null, got integer",
            b'{"url":["https://example.com"]}': "invalid request body: url: expected string or null, got array",
            b'{"url":"http://a.example","tags":"a"}': "invalid request body: tags: expected array or null, got string",
            b'{"url":"https://example.com","tags":[1]}': "invalid request body: tags[0]: expected string, got integer",
            b'{"url":"https://example.com","redirect_status":"301"}': (
                "invalid request body: redirect_status: expected integer or null, got string"
            ),
            b'{"url":"https://example.com","redirect_status":99999999999999999999999999}': (
                "redirect_status must be 301, 302, 307 or 308"
            ),
            b'{"url":"https://example.com","redirect_status":301.5}': (
                "invalid request body: redirect_status: expected integer or null, got number"
            ),
            b'{"url":"https://example.com","redirect_status":303}': "redirect_status must be 301, 302, 307 or 308",
            b'{"url":"https://example.com","stats_public":1}': (
                "invalid request body: stats_public: expected boolean or null, got integer"
            ),
            b'{"url":"https://example.com","force_new":"yes"}': (
                "invalid request body: force_new: expected boolean, got string"
            ),
            b"{}": "url is required",
            b'{"url":null}': "url is required",
            b'{"url":""}': "url is required",
            b'{"url":"example.com"}': "url must include scheme and host",
            b'{"url":"https://"}': "url must include scheme and host",
            b'{"url":"javascript:alert(1)"}': "url scheme must be http or https",
            b'{"url":"ftp://example.com/"}': "url scheme must be http or https",
            b'{"url":"https://example.com/\\u0000"}': "url must not contain control characters",
            b'{"url":"https://example.com/","expires_at":"tomorrow"}': "expires_at must be RFC3339 format",
            b'{"url":"https://example.com/","expires_at":"2026-03-01T12:00:00Z"}': "expires_at must be in the future",
            b'{"url":"https://example.com/","title":"a\\u0000b"}': "title must not contain control characters",
            b'{"url":"https://example.com/","tags":["a\\u0000b"]}': "a tag must not contain control characters",
            b'{"url":"https://example.com/","custom_code":"a b"}': (
                "custom_code must be 3 to 50 letters, digits or hyphens"
            ),
            b'{"url":"https://example.com/","custom_code":"shorten"}': "custom_code is reserved",
        },
    )
    assert await links.count() == 0


async def test_a_body_over_its_limit(links: LinksWorld) -> None:
    code = (await links.create())["short_code"]
    for method, target, limit in (
        ("POST", "/shorten", 64 * 1024),
        ("PATCH", f"/urls/{code}", 64 * 1024),
        ("POST", "/shorten/bulk", 4 * 1024 * 1024),
    ):
        over = await links.call(method, target, b" " * (limit + 1))
        assert said(over) == (400, "request body too large")
        just = await links.call(method, target, b" " * limit)
        assert said(just) == (400, "invalid request body")


async def test_what_has_no_texts_may_have_4096_bytes(links: LinksWorld) -> None:
    bodies: list[dict[str, object]] = [{}, {"custom_code": "abc"}, {"title": "", "notes": None, "tags": []}]
    for fields in bodies:
        body = json.dumps({"url": URL, **fields}).encode()
        assert (await links.call("POST", "/shorten", body.ljust(4_096))).status in (200, 201)
        over = await links.call("POST", "/shorten", body.ljust(4_097))
        assert said(over) == (400, "request body too large")


async def test_the_longest_texts_fit_however_they_are_sent(links: LinksWorld) -> None:
    url = "https://example.com/?" + "\U0001f600" * 600
    texts = {"title": "\U0001f600" * 200, "notes": "\U0001f600" * 2_000}
    tags = sorted(f"{number:02}" + "\U0001f600" * 48 for number in range(20))
    body = json.dumps({"url": url, **texts, "tags": tags}).encode()
    assert len(body) > 40_000, "two escapes for each letter"
    made = await links.call("POST", "/shorten", body)
    assert made.status == 201, made.body
    for link in (made.json, (await links.call("PATCH", f"/urls/{made.json['short_code']}", body)).json):
        assert {name: link[name] for name in (*texts, "tags", "original_url")} == {
            **texts,
            "tags": tags,
            "original_url": url,
        }


async def test_a_dangerous_destination(links: LinksWorld) -> None:
    code = (await links.create())["short_code"]
    links.safety.threats = {URL: "malware"}
    for method, target in (("POST", "/shorten"), ("PATCH", f"/urls/{code}")):
        assert said(await links.call(method, target, {"url": URL})) == (422, "url is flagged as unsafe: malware")
    links.safety.away = True
    for method, target in (("POST", "/shorten"), ("PATCH", f"/urls/{code}")):
        assert said(await links.call(method, target, {"url": URL})) == (503, "service unavailable")
    assert await links.count() == 1


async def test_a_request_that_is_repeated_with_its_key(links: LinksWorld) -> None:
    wish, key = {"url": URL, "title": "once"}, "Idempotency-Key: 7"
    first = await links.call("POST", "/shorten", wish, key)
    again = await links.call("POST", "/shorten", wish, key)
    assert (first.status, first.body) == (again.status, again.body)
    assert first.status == 201
    other = await links.call("POST", "/shorten", {"url": URL}, key)
    assert said(other) == (422, "Idempotency-Key was used for another request")
    long = await links.call("POST", "/shorten", wish, f"Idempotency-Key: {'k' * 256}")
    assert said(long) == (400, "Idempotency-Key must have 1 to 255 characters")
    rows = {"urls": [{"url": URL, "title": "row"}]}
    many = [await links.call("POST", "/shorten/bulk", rows, "Idempotency-Key: 8") for _ in range(2)]
    assert many[0].body == many[1].body
    assert await links.count() == 2


async def test_two_keys_are_refused_since_nobody_knows_which_one_a_repetition_has(links: LinksWorld) -> None:
    for target, body in (("/shorten", {"url": URL}), ("/shorten/bulk", {"urls": [URL]})):
        for second in ("one", "another"):
            answer = await links.call("POST", target, body, "Idempotency-Key: one", f"idempotency-key: {second}")
            assert said(answer) == (400, "Idempotency-Key must be sent once")
        assert (await links.call("POST", target, body, "Idempotency-Key: one-" + target[-4:])).status in {200, 201}
    assert await links.count() == 1


async def test_many_at_once(links: LinksWorld) -> None:
    rows: list[Any] = [URL, "example.com", {"url": URL, "title": "another"}, 7, {"url": 7}, None, URL]
    answer = await links.call("POST", "/shorten/bulk", {"urls": rows})
    assert answer.status == 200
    results = answer.json["results"]
    assert [(result["row"], result["status"]) for result in results] == [
        (1, 201),
        (2, 400),
        (3, 201),
        (4, 400),
        (5, 400),
        (6, 400),
        (7, 200),
    ]
    assert results[0]["short_url"] == f"{BASE_URL}/{results[0]['short_code']}"
    assert results[6]["short_code"] == results[0]["short_code"]
    assert results[1] == {"row": 2, "status": 400, "error": "url must include scheme and host"}
    assert await links.count() == 2
    await refused(
        links,
        "POST",
        "/shorten/bulk",
        {
            b"{": "invalid request body",
            b"{}": "invalid request body: object missing required field urls",
            b'{"urls":["https://example.com/\xff"]}': "invalid request body",
            b'{"urls":["https://example.com/\\ud800"]}': "invalid request body",
            b'{"urls":["https://example.com",nul]}': "invalid request body",
            b'{"urls":[' + b"[" * 5_000 + b"]" * 5_000 + b"]}": "invalid request body",
            b'["https://example.com"]': "invalid request body: expected object, got array",
            b'{"urls":"https://example.com"}': "invalid request body: urls: expected array, got string",
            b'{"urls":null}': "invalid request body: urls: expected array, got null",
            b'{"urls":[]}': "urls must have 1 to 1000 rows",
            b'{"urls":[' + b"1," * 1_000 + b"1]}": "urls must have 1 to 1000 rows",
        },
    )
