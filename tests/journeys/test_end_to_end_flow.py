"""Document 000's stories from end to end (M5 §11.6) in both modes; and then nothing holds a client's address.

The last is ACCEPTANCE 38 in its short form.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.http import fetch, running
from tests.support.platforms import PASSWORD, DistributedPlatform, Platform, platform_in
from tests.support.servers import RabbitMQ, Redis
from tests.support.traces import Strangers, listening, search
from tests.support.waiting import eventually
from tests.support.wandering import clients_of, fail_to_sign_in, wander, wear_out

BROWSER = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:121.0) Gecko/20100101 Firefox/121.0"
UNAUTHORIZED = {"error": "unauthorized"}
REDIRECT_LIMIT = 20
STRANGERS = Strangers()
"""Everybody who comes to these platforms, from wherever they do."""


@pytest.fixture(scope="module", params=["embedded", "distributed"])
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The tests share it, each with an account of its own and from an address of its own. It logs all it can."""
    settings = {"TRUSTED_PROXIES": "127.0.0.1", "RATE_LIMIT_REDIRECT": str(REDIRECT_LIMIT), "LOG_LEVEL": "debug"}
    folder = tmp_path_factory.mktemp(request.param)
    with platform_in(request.param, folder, request, own=(RabbitMQ, Redis), **settings) as platform:
        yield platform


@pytest.fixture
def source() -> str:
    """An address of this machine that no other test uses, so that limits are counted for this test alone."""
    return STRANGERS.peer()


async def destination(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The page that a link leads to."""
    body = b"landed"
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def test_the_full_flow(platform: Platform, source: str) -> None:
    story = f"X-Correlation-ID: {secrets.token_hex(8)}"
    account = {"email": f"{secrets.token_hex(6)}@example.com", "password": PASSWORD}
    registered = await platform.call("POST", "/api/auth/register", account, story, source=source)
    assert (registered.status, registered.json["email"]) == (201, account["email"])
    assert registered.json["user_id"]
    signed_in = await platform.call("POST", "/api/auth/login", account, story, source=source)
    assert (signed_in.status, signed_in.json.keys()) == (200, {"token", "expires_at"})
    token = signed_in.json["token"]
    async with running(destination) as page:
        url = f"http://127.0.0.1:{page.port}/{secrets.token_hex(4)}"
        made = await platform.call("POST", "/api/shorten", {"url": url}, story, token=token, source=source)
        assert (made.status, made.json["original_url"]) == (201, url)
        code = made.json["short_code"]
        assert made.json["short_url"].endswith(f"/{code}")
        redirected = await platform.call("GET", f"/r/{code}", None, story, BROWSER, source=source)
        assert (redirected.status, redirected.headers["location"]) == (301, url)
        assert (await fetch(page.port, urlsplit(url).path)).body == b"landed"

    stats = await platform.stats(code, clicks=1)
    assert stats == {
        "short_code": code,
        "total_clicks": 1,
        "clicks_last_24h": 1,
        "clicks_last_7d": 1,
        "top_referers": [],
        "bot_clicks": 0,
    }

    async def told() -> bool:
        return "url.created" in [it["event_type"] for it in await platform.notifications(token)]

    await eventually(told)
    answers = (registered, signed_in, made, redirected)
    assert {answer.headers["x-correlation-id"] for answer in answers} == {story.partition(": ")[2]}


async def test_the_eleventh_link_in_a_minute_is_refused(platform: Platform, source: str) -> None:
    _, token = await platform.sign_up(source=source)
    answers = [
        await platform.call(
            "POST", "/api/shorten", {"url": f"https://example.com/{number}"}, token=token, source=source
        )
        for number in range(11)
    ]

    assert [answer.status for answer in answers] == [201] * 10 + [429]
    assert answers[-1].json == {"error": "rate limit exceeded"}
    assert re.fullmatch("[1-9][0-9]*", answers[-1].headers["retry-after"])


async def test_the_gateway_itself_refuses_who_has_no_token(platform: Platform, source: str) -> None:
    for number, path in enumerate(("/api/urls", "/api/notifications", "/api/me")):
        story = f"{secrets.token_hex(8)}-{number}"
        answer = await platform.call("GET", path, None, f"X-Correlation-ID: {story}", source=source)
        assert (answer.status, answer.json) == (401, UNAUTHORIZED)
        [line] = await eventually(partial(platform.lines_of, story))
        assert (line["service"], line["path"], line["status"]) == ("gateway", path, 401), "nobody else was asked"


async def test_a_correlation_id_is_in_the_answer_and_in_every_log(platform: Platform, source: str) -> None:
    story = f"e2e-test-{secrets.token_hex(4)}"
    _, token = await platform.sign_up(source=source)
    answer = await platform.call("GET", "/api/urls", None, f"X-Correlation-ID: {story}", token=token, source=source)
    assert (answer.status, answer.headers["x-correlation-id"]) == (200, story)

    def services() -> bool:
        return {line["service"] for line in platform.lines_of(story)} == {"gateway", "url-service"}

    await eventually(services)


async def test_ten_clicks_are_a_milestone_that_its_owner_is_told_of(platform: Platform, source: str) -> None:
    _, token = await platform.sign_up(source=source)
    code = await platform.shorten(token, f"https://example.com/{secrets.token_hex(4)}", source=source)
    for _ in range(10):
        assert (await platform.call("GET", f"/r/{code}", None, BROWSER, source=source)).status == 301

    async def milestones() -> list[dict[str, Any]]:
        return [it for it in await platform.notifications(token) if it["event_type"] == "milestone.reached"]

    assert len(await eventually(milestones, timeout=60)) == 1
    assert (await platform.stats(code, clicks=10))["clicks_last_24h"] == 10

    async def listed() -> bool:
        answer = await platform.call("GET", "/api/urls", token=token)
        [link] = [it for it in answer.json["urls"] if it["short_code"] == code]
        return bool(link["total_clicks"] == 10 and link["last_clicked_at"])

    await eventually(listed)


async def test_what_is_public_asks_for_no_token(platform: Platform, source: str) -> None:
    _, token = await platform.sign_up(source=source)
    code = await platform.shorten(token, f"https://example.com/{secrets.token_hex(4)}", source=source)

    for target, status in ((f"/r/{code}", 301), (f"/{code}", 301), (f"/api/stats/{code}", 200), ("/health", 200)):
        assert (await platform.call("GET", target, source=source)).status == status, target
    timeline = await platform.call("GET", f"/api/stats/{code}/timeline?interval=day", source=source)
    assert (timeline.status, timeline.json["interval"]) == (200, "day")
    assert (await platform.call("GET", f"/api/stats/{code}/series?interval=day", source=source)).status == 401


@pytest.mark.parametrize("platform", ["distributed"], indirect=True)
async def test_a_service_that_is_away_is_left_alone_and_found_again(platform: DistributedPlatform, source: str) -> None:
    _, token = await platform.sign_up(source=source)
    code = await platform.shorten(token, f"https://example.com/{secrets.token_hex(4)}", source=source)
    await platform.stop_service("links")
    begun = time.monotonic()
    answers = [await platform.call("GET", "/api/urls", token=token, source=source) for _ in range(6)]

    assert [answer.status for answer in answers] == [502] * 5 + [503]
    assert answers[-1].json == {"error": "service unavailable"}
    assert (await platform.call("GET", f"/api/stats/{code}")).status == 200, "the others are as they were"

    platform.start_service("links")
    early = await platform.call("GET", "/api/urls", token=token, source=source)
    if time.monotonic() < begun + 25:  # it has taken longer to start on a machine that is very busy
        assert early.status == 503, "not for half a minute"
    await platform.turn_clock()
    healed = await platform.call("GET", "/api/urls", token=token, source=source)
    assert (healed.status, healed.json["urls"][0]["short_code"]) == (200, code)


async def test_no_address_is_anywhere_after_everything_that_clients_do(platform: Platform) -> None:
    strangers, canary = STRANGERS, f"Canary/{secrets.token_hex(8)}"
    async with listening(platform) as listener:
        _, token = await platform.sign_up(source=strangers.peer())
        code = await platform.shorten(token, "https://example.com/somewhere", source=strangers.peer())
        clients = clients_of(strangers)
        wandering = [wander(platform, client, code, canary) for client in clients]
        clicks = sum(await asyncio.gather(*wandering, wear_out(platform, strangers.peer(), code, REDIRECT_LIMIT)))
        await fail_to_sign_in(platform, clients[0], clients[1], clients[4])
        await platform.stats(code, clicks)
        if isinstance(platform, DistributedPlatform):
            await platform.stop_service("analytics")
            answer = await platform.call("GET", f"/api/stats/{code}", source=strangers.peer())
            assert answer.status == 502
            await asyncio.to_thread(platform.start_service, "analytics")
        await eventually(lambda: heard(platform, listener.events, canary))
    route, line = b'route="/{code}"', b"request completed"
    found = await search(platform, listener, strangers, canary.encode(), route, line, *strangers.networks())

    assert found.traces == []
    # It looked where something is: in the tables of the clicks and of the events, in the metrics, in the logs.
    tables = {name.rpartition(" ")[2].removeprefix("public.") for name in found.seen[canary.encode()]}
    assert tables >= {"clicks", "outbox"}
    assert any(name.startswith("metrics") for name in found.seen[route])
    assert any(name.endswith("stdout") for name in found.seen[line])
    assert len(found.seen.keys() & strangers.networks()) >= 8, "networks are kept, and addresses are not"


def heard(platform: Platform, events: list[bytes], canary: str) -> bool:
    """Whether the listener was told of clicks; an embedded platform has only what it wrote."""
    return platform.mode == "embedded" or any(canary.encode() in event for event in events)
