"""What is answered to somebody who is known is for no cache, at every operation, by every proof and in both modes."""

import re

import pytest

from refract.runtime.edge import Edge, Receive, Scope, Send
from tests.support.belongings import Hers, settle
from tests.support.houses import GATEWAY, House, house
from tests.support.http import Answer, running
from tests.support.redirects import CLOSE, asked, exchange

__all__ = ["house"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDLESS = ("/live", "/export")
READING = ("GET", "HEAD")
FIELD = re.compile(rb"(?im)^cache-control: (.*?)\r$")


def kept(answer: Answer) -> str:
    """What it says to caches; a field that comes twice is joined."""
    return answer.headers.get("cache-control", "")


async def proofs_of(house: House, hers: Hers) -> dict[str, str]:
    """The ways in which she may say who she is, as header fields."""
    token = house.token(hers.alice.id, hers.alice.email)
    wish = {"name": "reads", "scopes": ["links:read", "stats:read", "notifications:read"]}
    made = await house.call(GATEWAY, "POST", "/api/keys", wish, token=token)
    assert made.status == 201, made.body
    return {
        "token": f"Authorization: Bearer {token}",
        "session": f"Cookie: refract_session={token}",
        "key": f"X-API-Key: {made.json['key']}",
        "bearer key": f"Authorization: Bearer {made.json['key']}",
    }


async def test_no_cache_keeps_what_somebody_was_told(house: House) -> None:
    hers, _ = await settle(house)
    proofs = await proofs_of(house, hers)
    tried: set[tuple[str, int]] = set()
    for operation in await house.operations():
        if operation.method not in READING or operation.path == "/{code}" or operation.route is None:
            continue
        for code in ("nothing", hers.code):
            if code == hers.code and operation.path.endswith(ENDLESS):
                continue
            for name, field in proofs.items():
                if "key" in name and operation.route.scope is None:
                    continue  # the gateway lets it in nowhere else
                target = operation.target(GATEWAY, code=code, id=hers.notification)
                answer = await house.call(GATEWAY, operation.method, target, None, field)
                assert kept(answer) == "no-store", (operation, name, answer.status)
                tried.add((name, answer.status))
    assert {(name, 200) for name in proofs} <= tried
    assert {(name, 404) for name in proofs} <= tried
    token = house.token(hers.alice.id, hers.alice.email)
    made = await house.call(GATEWAY, "POST", "/api/shorten", {"url": "https://example.com/mine"}, token=token)
    assert (made.status, kept(made)) == (201, "no-store")
    at_the_service = await house.call("links", "GET", "/urls", token=token)
    assert (at_the_service.status, kept(at_the_service)) == (200, "no-store")


async def test_what_is_for_everybody_says_what_it_said(house: House) -> None:
    hers, _ = await settle(house)
    token = house.token(hers.alice.id, hers.alice.email)
    for door in (GATEWAY, "links"):
        health = await house.call(door, "GET", "/health", token=token)
        assert (health.status, kept(health)) == (200, "")
    stats = await house.call(GATEWAY, "GET", f"/api/stats/{hers.code}")
    assert (stats.status, kept(stats)) == (200, "")


async def application(scope: Scope, _receive: Receive, send: Send) -> None:
    """Says of its answer what it is asked to say."""
    said = scope["query_string"]
    headers = [(b"content-length", b"0"), *([(b"cache-control", said)] if said else [])]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def test_a_service_may_say_it_otherwise() -> None:
    token = b"Authorization: Bearer x"
    trials = [
        (b"", (), []),
        (b"", (token,), [b"no-store"]),
        (b"public", (token,), [b"public"]),
        (b"private,max-age=90", (token,), [b"private,max-age=90"]),
        (b"no-store", (token,), [b"no-store"]),
    ]
    async with running(Edge(application, "url-service")) as server:
        for said, fields, expected in trials:
            answered = await exchange(server, asked(b"/?" + said, *fields, CLOSE))
            assert FIELD.findall(answered) == expected, said


async def test_who_passes_answers_on_adds_nothing() -> None:
    async with running(Edge(application, "gateway", answers_callers=False)) as server:
        answered = await exchange(server, asked("/", b"Authorization: Bearer x", CLOSE))
    assert FIELD.findall(answered) == []
