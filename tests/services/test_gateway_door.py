"""The door itself: what it knows, whom it believes, and how it starts."""

import logging
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar import Request, get

from refract.kernel.errors import Misconfigured
from refract.runtime.edge import Receive, Scope, Send
from refract.runtime.environment import Environment
from refract.runtime.metrics import Metrics
from refract.runtime.web import build_app
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.api import OWN_PATHS
from refract.services.gateway.domain.headers import forwarded_headers
from refract.services.gateway.service import build_gateway
from refract.services.gateway.settings import GatewaySettings, LimitSettings
from tests.support.fronts import Front, mirror, send_answer, tokens, url_of
from tests.support.http import fetch, running


async def test_what_is_not_in_the_table_is_not_found(front: Front) -> None:
    port = await front(mirror)
    for path in ("/", "/api/unknown", "/urls", "/r/metrics", "/r/%2e%2e", "/api/urls/..%2F..%2Fmetrics"):
        answer = await fetch(port, path)
        assert (answer.status, answer.json) == (404, {"error": "not found"}), path


async def test_a_wrong_method_is_told_the_right_ones(front: Front) -> None:
    answer = await fetch(await front(mirror), "/api/shorten", method="DELETE")
    assert (answer.status, answer.headers["allow"], answer.json) == (405, "POST", {"error": "method not allowed"})


async def test_health_is_the_gateways_own(front: Front) -> None:
    answer = await fetch(await front(mirror), "/health")
    assert (answer.status, answer.json) == (200, {"status": "ok", "service": "gateway"})


async def test_one_correlation_id_on_the_way_in_and_back(front: Front) -> None:
    answer = await fetch(await front(mirror), "/r/abc", "X-Correlation-ID: trace-1", "X_Correlation_Id: other")
    seen = [value for name, value in answer.json["headers"] if name.replace("_", "-") == "x-correlation-id"]
    assert seen == ["trace-1"]
    assert answer.headers["x-correlation-id"] == "trace-1"


async def test_nobody_says_who_they_are(front: Front) -> None:
    answer = await fetch(
        await front(mirror),
        "/r/abc",
        *(
            "X-User-ID: admin",
            "X_User_Id: admin",
            "x-USER_email: a@b",
            "X-Click-ID: 1.2.3.4",
            "Connection: X-User-ID, X-Forwarded-For, x-secret",
        ),
        *(
            "X-Forwarded-For: 1.2.3.4",
            "X_Forwarded_For: 1.2.3.4",
            "X-Forwarded-Proto: gopher",
            "Forwarded: for=1.2.3.4",
        ),
        *("X-Real-IP: 1.2.3.4", "X-Secret: 1", "TE: trailers", "Authorization: Bearer t", "Cookie: a=1"),
    )
    seen = answer.json["headers"]
    assert "1.2.3.4" not in str(seen)
    assert "admin" not in str(seen)
    by_name = dict(seen)
    assert sorted(name for name, _ in seen) == [
        *("authorization", "cookie", "host"),
        *("x-click-id", "x-correlation-id", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    ]
    assert by_name["host"] != "test"
    assert by_name["x-forwarded-for"] == "127.0.0.1"
    assert by_name["x-forwarded-proto"] == "http"
    assert by_name["x-forwarded-host"] == "test"
    assert by_name["authorization"] == "Bearer t"
    assert by_name["cookie"] == "a=1"


@pytest.mark.parametrize(("trusted", "address"), [([], "127.0.0.1"), (["127.0.0.0/8"], "203.0.113.9")])
async def test_the_address_seen_inside_comes_from_proxies_we_trust(
    front: Front, trusted: list[str], address: str
) -> None:
    @get("/{code:str}")
    async def show(request: Request[Any, Any, Any]) -> str:
        return str(request.scope["state"]["client_address"])

    service = build_app("url-service", [show], ready={}, trusted_proxies=[ip_network("127.0.0.0/8")])
    port = await front(service, trusted=[ip_network(network) for network in trusted])
    answer = await fetch(port, "/r/abc", "X-Forwarded-For: 203.0.113.9")
    assert (answer.status, answer.text) == (200, address)


@pytest.mark.parametrize(
    ("sent", "scheme", "host"),
    [
        (["X-Forwarded-Proto: https", "X-Forwarded-Host: go.example"], "https", "go.example"),
        (["X-Forwarded-Proto: HTTPS"], "https", "test"),
        (["X-Forwarded-Host: go.example:8443"], "http", "go.example:8443"),
        (["X-Forwarded-Proto: gopher", "X-Forwarded-Host: a b"], "http", "test"),
        (["X-Forwarded-Proto:", "X-Forwarded-Host:"], "http", "test"),
        (["X-Forwarded-Host: evil.example/path?"], "http", "test"),
        (["X-Forwarded-Proto: http, https", "X-Forwarded-Host: forged.example, go.example"], "https", "go.example"),
        (["X-Forwarded-Host: forged.example", "X-Forwarded-Host: go.example"], "http", "go.example"),
        (["X_Forwarded_Proto: https", "X_Forwarded_Host: go.example"], "http", "test"),
        (["Forwarded: proto=https;host=go.example"], "http", "test"),
    ],
)
async def test_how_a_client_came_is_what_a_trusted_proxy_says(
    in_process: Front, sent: list[str], scheme: str, host: str
) -> None:
    for trusted, expected in (("127.0.0.0/8", (scheme, host)), ("203.0.113.0/24", ("http", "test"))):
        seen = dict(
            (await fetch(await in_process(mirror, trusted=[ip_network(trusted)]), "/r/abc", *sent)).json["headers"]
        )
        assert (seen["x-forwarded-proto"], seen["x-forwarded-host"]) == expected


OURS = ("x-user-id", "x-user-email", "x-user-role", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto")
SINGLE = ("forwarded", "x-real-ip", "host", "x-correlation-id", "x-click-id")


@st.composite
def spellings(draw: st.DrawFn) -> bytes:
    """One of the names that only we may say, in some spelling."""
    name = draw(st.sampled_from(OURS + SINGLE))
    flips = draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    dashes = iter(draw(st.lists(st.sampled_from("-_."), min_size=len(name), max_size=len(name))))
    letters = (letter.upper() if flip else letter for letter, flip in zip(name, flips, strict=True))
    return "".join(next(dashes) if letter == "-" else letter for letter in letters).encode()


@given(st.lists(spellings(), max_size=5), st.lists(spellings(), max_size=3))
def test_no_spelling_of_our_names_passes(sent: list[bytes], named: list[bytes]) -> None:
    headers = [(name, b"forged") for name in sent]
    headers += [(b"Connection", b" ,".join(named)), (b"accept", b"*/*")]
    passed = forwarded_headers(headers, correlation_id="id", client="192.0.2.1", scheme="https", host=b"go.example")
    assert sorted(passed) == [
        (b"accept", b"*/*"),
        (b"x-correlation-id", b"id"),
        (b"x-forwarded-for", b"192.0.2.1"),
        (b"x-forwarded-host", b"go.example"),
        (b"x-forwarded-proto", b"https"),
    ]


def test_what_every_service_serves_itself_is_reserved() -> None:
    application: Any = build_app("url-service", [], ready={}, metrics=Metrics())._app
    served = {route.path.split("/")[1] for route in application.routes} | {"health"}
    assert served == {path.removeprefix("/") for path in OWN_PATHS}


async def test_the_health_round_reports_every_service_and_delays_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def healthy(scope: Scope, receive: Receive, send: Send) -> None:
        await send_answer(send, 200, b"{}")

    caplog.set_level(logging.INFO, "refract.gateway")
    dead = "http://127.0.0.1:1"  # a port that was free a moment ago may be another's by now
    async with running(healthy) as server:
        url = url_of(server)
        gateway = build_gateway(Proxy({"links": url, "analytics": dead}), tokens=tokens())
        await gateway.check_services()
        await gateway.stop()
    said = {(record.levelname, record.getMessage(), getattr(record, "upstream", "")) for record in caplog.records}
    assert ("INFO", "downstream healthy", url) in said
    assert ("WARNING", "downstream health check failed on startup", dead) in said


def test_each_service_has_a_url() -> None:
    variables = {
        "URL_SERVICE_URL": "http://url-service:8081",
        "ANALYTICS_SERVICE_URL": "http://analytics-service:8082",
        "USER_SERVICE_URL": "http://user-service:8083",
        "NOTIFICATION_SERVICE_URL": "http://notification-service:8084",
        "SMS_GATEWAY_URL": "http://sms-gateway:8085",
        "PROJECT_SERVICE_URL": "http://project-service:8086",
    }
    assert GatewaySettings.from_environment(Environment(variables)).urls["identity"] == "http://user-service:8083"
    assert GatewaySettings.from_environment(Environment(variables)).base_url == ""
    public = Environment({**variables, "BASE_URL": "https://go.example/"})
    assert GatewaySettings.from_environment(public).base_url == "https://go.example/"
    sampled = {**variables, "REDIRECT_LOG_SAMPLE": "0.25"}
    assert [
        GatewaySettings.from_environment(Environment(each)).redirect_log_sample for each in (variables, sampled)
    ] == [1.0, 0.25]
    with pytest.raises(Misconfigured, match="REDIRECT_LOG_SAMPLE"):
        GatewaySettings.from_environment(Environment({**variables, "REDIRECT_LOG_SAMPLE": "2"}))
    with pytest.raises(Misconfigured, match="BASE_URL"):
        GatewaySettings.from_environment(Environment({**variables, "BASE_URL": "go.example"}))
    for variable in variables:
        with pytest.raises(Misconfigured, match=f'"{variable}" is not set'):
            GatewaySettings.from_environment(Environment({**variables, variable: ""}))


def test_limits_are_those_of_the_documents_unless_set() -> None:
    assert LimitSettings.from_environment(Environment({})).per_minute == {
        "shorten": 10,
        "redirect": 300,
        "api_key": 1000,
    }
    other = {"RATE_LIMIT_SHORTEN": "1", "RATE_LIMIT_REDIRECT": "0", "RATE_LIMIT_API_KEY": "7"}
    assert LimitSettings.from_environment(Environment(other)).per_minute == {"shorten": 1, "redirect": 0, "api_key": 7}
    with pytest.raises(Misconfigured, match="RATE_LIMIT_API_KEY"):
        LimitSettings.from_environment(Environment({"RATE_LIMIT_API_KEY": "-1"}))
