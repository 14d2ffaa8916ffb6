"""What the gateway's log says of each way that a request can take: one line with its id, and nothing secret."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from ipaddress import ip_network
from typing import Any

import pytest

from refract.runtime.client_address import hashes_with
from refract.runtime.edge import Edge, Receive, Scope, Send
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.request_log import flush_request_logs
from refract.runtime.telemetry import configure_logging
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import TARGETS
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.http.counting import Limits
from refract.services.gateway.http.guarding import Breakers
from tests.support.clocks import ManualClock
from tests.support.fronts import authorization, front_of, mirror, read_body, send_answer, serve_gateway, signed, url_of
from tests.support.http import fetch, running

ADDRESS, SECRET_QUERY = "203.0.113.77", "code=sesame"
SESSION = f"Cookie: refract_session={signed('u-1', 'hidden@example.com')}"
BEARER = authorization(signed("u-2", "hidden@example.com"))

WAYS = [
    ("GET", "/api/urls", [BEARER], 200),
    ("GET", "/api/urls", [], 401),
    ("GET", "/api/urls", [f"{BEARER[:-4]}AAAA"], 401),
    ("GET", "/api/me", [f"{SESSION}x"], 401),
    ("POST", "/api/keys", [SESSION], 403),
    ("POST", "/api/sms/send", [BEARER], 403),
    ("GET", "/nothing/here", [], 404),
    ("GET", "/%C3%A9%22", [], 200),
    ("PUT", "/api/urls", [BEARER], 405),
    ("GET", "/r/abc", [], 200),
    ("GET", "/r/abc", [], 429),
    ("GET", "/api/stats/abc", [], 502),
    ("GET", "/api/stats/abc", [], 503),
    ("GET", "/api/projects", [BEARER], 502),
]


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the lines go; afterwards logging is as it was."""
    root, ours = logging.getLogger(), logging.getLogger("refract")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    written = io.StringIO()
    configure_logging("gateway", "info", written)
    yield written
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "application"])
async def test_every_way_is_one_line_with_its_id_and_nothing_secret(stream: io.StringIO, fast: bool) -> None:
    breakers = Breakers(TARGETS, ManualClock())
    limits = Limits(EmbeddedRateLimiter(ManualClock()), RouteLimits({"redirect": 2}, hashes_with("salt")))
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(running(Edge(mirror, "url-service")))
        urls = {**dict.fromkeys(TARGETS, url_of(upstream)), "analytics": "http://127.0.0.1:1"}
        del urls["projects"]
        trusted = [ip_network("127.0.0.0/8")]
        port = await serve_gateway(Proxy(urls), stack, trusted=trusted, counted=limits, breakers=breakers, fast=fast)
        asked = []
        for number, (method, path, sent, status) in enumerate(WAYS):
            tries = 5 if status == 502 and "stats" in path else 1
            for attempt in range(tries):
                trace = f"trace-{number}-{attempt}"
                fields = (*sent, f"X-Forwarded-For: {ADDRESS}", f"X-Correlation-ID: {trace}")
                answer = await fetch(port, f"{path}?{SECRET_QUERY}", *fields, method=method)
                assert (answer.status, answer.headers["x-correlation-id"]) == (status, trace), (method, path)
                asked.append((trace, method, status))
    flush_request_logs()
    text = stream.getvalue()
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    done = [line for line in lines if line["msg"] == "request completed"]
    ours = [(line["correlation_id"], line["method"], line["status"]) for line in done if line["service"] == "gateway"]
    assert sorted(ours) == sorted(asked)
    theirs = {line["correlation_id"] for line in done if line["service"] == "url-service"}
    assert theirs == {trace for trace, _, status in asked if status == 200}
    assert all(line["correlation_id"].startswith("trace-") for line in lines), "warnings and errors, too"
    secrets = (ADDRESS, "127.0.0.1", SECRET_QUERY, "sesame", "hidden", SESSION[-60:], BEARER[-60:-4], "eyJ")
    assert [secret for secret in secrets if secret in text] == []


@pytest.mark.parametrize("way", ["fast", "application", "proxy"])
async def test_redirects_are_logged_as_often_as_is_asked_and_all_else_always(stream: io.StringIO, way: str) -> None:
    """Passed on, refused, and where a service is in trouble: of links only the requests that are no redirects."""
    breakers = Breakers(TARGETS, ManualClock())
    counted = Limits(EmbeddedRateLimiter(ManualClock()), RouteLimits({"redirect": 3}, hashes_with("salt")))
    asked = ["/abc", "/r/abc", "/%C3%A9%22", "/abc", "/r/abc", "/api/urls", "/nothing/here", "/ready"]
    async with AsyncExitStack() as stack:
        front = front_of("proxy" if way == "proxy" else "in_process", stack)
        options: dict[str, Any] = {"breakers": breakers, "counted": counted, "redirect_log_sample": 0.0}
        port = await front(mirror, fast=way != "application", **options)
        statuses = [(await fetch(port, path)).status for path in asked]
    assert statuses == [200, 200, 200, 429, 429, 401, 404, 200]
    flush_request_logs()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    told = {line["path"] for line in lines if line["msg"] == "request completed"}
    assert told == {"/api/urls", "/nothing/here", "/ready"}


TROUBLE = [
    ("GET", "/r/abc", 500, "links"),
    ("GET", "/api/urls", 503, "links"),
    ("POST", "/api/auth/login", 502, "identity"),
]


@pytest.mark.parametrize("way", ["in_process", "proxy"])
async def test_a_service_in_trouble_is_a_warning_with_the_requests_id(stream: io.StringIO, way: str) -> None:
    statuses = {"/abc": 500, "/urls": 503, "/login": 502, "/gone": 404}

    async def service(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await send_answer(send, statuses[scope["path"]], b"{}")

    async with AsyncExitStack() as stack:
        port = await front_of(way, stack)(Edge(service, "url-service"), breakers=Breakers(TARGETS, ManualClock()))
        assert (await fetch(port, "/r/gone")).status == 404
        for method, path, status, _ in TROUBLE:
            answer = await fetch(port, path, BEARER, f"X-Correlation-ID: trace-{status}", method=method)
            assert (answer.status, answer.body) == (status, b"{}")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    told = [(line["level"], line["msg"], line["service"]) for line in lines if "target" in line]
    assert told == [("warn", "downstream error", "gateway")] * len(TROUBLE)
    details = [(line["correlation_id"], line["status"], line["target"]) for line in lines if "target" in line]
    assert details == [(f"trace-{status}", status, target) for _, _, status, target in TROUBLE]
