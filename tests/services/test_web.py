"""What every service's application does: errors, bodies, health, readiness, metrics, correlation, logs."""

import asyncio
import logging
import re
from ipaddress import ip_network
from typing import Any

import pytest
from litestar import Request, get, post
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Struct

from refract.kernel.errors import Invalid, Kind, Limited, RefractError, Unavailable
from refract.runtime.correlation import current_correlation_id
from refract.runtime.edge import Edge
from refract.runtime.metrics import Metrics
from refract.runtime.server import ServerLimits
from refract.runtime.web import STATUSES, build_app, metrics_app, takes_body
from tests.support.http import Client, fetch, head, running
from tests.support.waiting import eventually

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Tag(Struct):
    name: str


class NewLink(Struct):
    url: str
    clicks: int = 0
    tags: list[Tag] = []


class Failing(RefractError):
    message = "what happened"


@post("/links", **takes_body(1000))
async def create(data: JSONBody[NewLink]) -> dict[str, Any]:
    return {"url": data.url}


@post("/imports", **takes_body(1000, documented=False))
async def run_import(request: Request[Any, Any, Any]) -> dict[str, int]:
    return {"bytes": len(await request.body())}


@get("/links/{code:str}")
async def show(code: FromPath[str], limit: FromQuery[int] = 20) -> dict[str, Any]:
    return {"code": code, "limit": limit}


@get("/fail/{kind:str}")
async def fail(kind: FromPath[str]) -> None:
    if kind == "limited":
        raise Limited(1.2)
    if kind == "unavailable":
        raise Unavailable("database", "connection refused by postgres://user:secret@host")
    error = type("Error", (Failing,), {"kind": Kind(kind.replace("-", " "))})
    raise error


@get("/crash")
async def crash() -> None:
    raise KeyError("the secret of the house")


@get("/who")
async def who(request: Request[Any, Any, Any]) -> dict[str, Any]:
    state = request.scope["state"]
    return {
        "address": state["client_address"],
        "correlation_id": state["correlation_id"],
        "current": current_correlation_id(),
    }


ROUTES = [create, run_import, show, fail, crash, who]


def application(**options: Any) -> Edge:
    return build_app("url-service", ROUTES, ready=options.pop("ready", {}), **options)


async def post_to(app: Edge, target: str, body: bytes, *headers: str) -> tuple[int, Any]:
    async with running(app) as server, await Client.connect(server.port) as client:
        answer = await client.post(target, body, *headers)
        return answer.status, answer.json


# Errors.


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.LIMITED])
async def test_the_kind_of_an_error_picks_the_status(kind: Kind) -> None:
    async with running(application()) as server:
        answer = await fetch(server.port, f"/fail/{kind.value.replace(' ', '-')}")
    expected = "service unavailable" if kind is Kind.UNAVAILABLE else "what happened"
    assert (answer.status, answer.json) == (STATUSES[kind], {"error": expected})
    assert answer.headers["content-type"] == "application/json"


def test_every_kind_has_a_status() -> None:
    assert set(STATUSES) == set(Kind)


async def test_a_limited_client_is_told_when_to_come_back() -> None:
    async with running(application()) as server:
        answer = await fetch(server.port, "/fail/limited")
    assert (answer.status, answer.json, answer.headers["retry-after"]) == (429, {"error": "rate limit exceeded"}, "2")


async def test_routes_that_do_not_exist() -> None:
    async with running(application()) as server:
        missing = await fetch(server.port, "/nowhere")
        assert (missing.status, missing.json) == (404, {"error": "not found"})
        wrong = await fetch(server.port, "/links", method="PUT")
        assert (wrong.status, wrong.json) == (405, {"error": "method not allowed"})
        assert set(wrong.headers["allow"].split(", ")) == {"POST", "OPTIONS"}
        odd = await fetch(server.port, "/links/a?limit=many")
        assert (odd.status, odd.json) == (400, {"error": "invalid request: limit: expected integer, got string"})


async def test_an_unexpected_error_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async with running(application()) as server:
        answer = await fetch(server.port, "/crash", "X-Correlation-ID: c1")
    assert (answer.status, answer.json) == (500, {"error": "internal server error"})
    assert answer.headers["x-correlation-id"] == "c1"
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "the secret of the house" in caplog.text
    assert record.path == "/crash"  # type: ignore[attr-defined]


# Bodies.


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"url":', "invalid request body"),
        (b'{"url":"\xff"}', "invalid request body"),
        (b'{"url":"\\ud800"}', "invalid request body"),
        (b"", "invalid request body"),
        (b'{"url":"x","deep":' + b"[" * 900, "invalid request body"),
        (b"[]", "invalid request body: expected object, got array"),
        (b"{}", "invalid request body: object missing required field url"),
        (b'{"url":1}', "invalid request body: url: expected string, got integer"),
        (b'{"url":null}', "invalid request body: url: expected string, got null"),
        (b'{"url":"x","clicks":"5"}', "invalid request body: clicks: expected integer, got string"),
        (
            b'{"url":"x","tags":[{"name":"a"},{"name":2}]}',
            "invalid request body: tags[1].name: expected string, got integer",
        ),
    ],
)
async def test_a_body_that_does_not_fit_is_named(body: bytes, message: str) -> None:
    assert await post_to(application(), "/links", body) == (400, {"error": message})


async def test_a_body_that_fits_is_taken() -> None:
    body = '{"url":"https://example.com/ü","unknown":1}'.encode()
    assert await post_to(application(), "/links", body) == (201, {"url": "https://example.com/ü"})
    assert await post_to(application(), "/imports", b"a" * 1000) == (201, {"bytes": 1000})


@pytest.mark.parametrize(("target", "status"), [("/links", 400), ("/imports", 413)])
@pytest.mark.parametrize("size", [1001, 20_000, 200_000])
async def test_a_body_over_the_limit_of_its_route(target: str, status: int, size: int) -> None:
    limits = ServerLimits(body=100_000)
    async with running(application(), limits=limits) as server:
        for by_length in (True, False):
            async with await Client.connect(server.port) as client:
                framing = f"Content-Length: {size}" if by_length else "Transfer-Encoding: chunked"
                body = b"a" * size if by_length else b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"a" * size)
                await client.send(head("POST", target, framing) + body)
                answer = await client.answer()
                assert (answer.status, answer.json) == (status, {"error": "request body too large"})


async def test_a_client_that_goes_away_while_sending_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    gone = asyncio.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            gone.set()

    log, watch = logging.getLogger("refract.runtime.edge"), Watch()
    log.addHandler(watch)
    caplog.set_level(logging.INFO, "refract")
    async with running(application()) as server:
        async with await Client.connect(server.port) as client:
            await client.send(head("POST", "/links", "Content-Length: 900") + b"{")
            await eventually(lambda: server._state.tasks)
        async with asyncio.timeout(30):
            await gone.wait()
    log.removeHandler(watch)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


# Health, readiness, metrics.


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_health_is_the_same_for_every_method(method: str) -> None:
    async with running(application()) as server:
        answer = await fetch(server.port, "/health", method=method)
        assert (answer.status, answer.body) == (200, b'{"status":"ok","service":"url-service"}')
        assert answer.headers["content-type"] == "application/json"
        assert (await fetch(server.port, "/health", method="HEAD")).headers["content-length"] == "39"


async def test_requests_are_measured_by_route() -> None:
    metrics = Metrics()
    async with running(application(metrics=metrics)) as server:
        await fetch(server.port, "/links/one")
        await fetch(server.port, "/links/two")
        await fetch(server.port, "/random/42")
        await fetch(server.port, "/health")
        answer = await fetch(server.port, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    counted = 'http_requests_total{method="GET",route="%s",service="url-service",status="%d"} %.1f'
    for route, status, count in (("/links/{code}", 200, 2), ("unmatched", 404, 1), ("/health", 200, 1)):
        assert counted % (route, status, count) in answer.text
    assert "/random" not in answer.text


async def test_metrics_can_be_shown_on_an_address_of_their_own() -> None:
    metrics = Metrics()
    async with running(application(metrics=metrics, show_metrics=False)) as server:
        assert (await fetch(server.port, "/metrics")).status == 404
        async with running(metrics_app(metrics)) as inside:
            assert 'route="unmatched"' in (await fetch(inside.port, "/metrics")).text
            assert (await fetch(inside.port, "/links")).status == 404


async def test_describes_its_routes() -> None:
    async with running(application()) as server:
        document = (await fetch(server.port, "/docs/openapi.json")).json
    assert {"/links", "/links/{code}"} <= set(document["paths"])
    assert "/ready" not in document["paths"]


# Correlation, addresses, logs.


@pytest.mark.parametrize("target", ["/health", "/who", "/nowhere", "/fail/invalid"])
async def test_an_id_that_fits_is_kept_and_echoed(target: str) -> None:
    async with running(application()) as server:
        answer = await fetch(server.port, target, "X-Correlation-ID: order-7.a_B")
        assert answer.headers["x-correlation-id"] == "order-7.a_B"
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "offered", [(), ("X-Correlation-ID: ",), ("X-Correlation-ID: a b",), (f"X-Correlation-ID: {'a' * 129}",)]
)
async def test_any_other_id_is_replaced(offered: tuple[str, ...]) -> None:
    async with running(application()) as server:
        answer = await fetch(server.port, "/who", *offered)
    given = answer.headers["x-correlation-id"]
    assert UUID.fullmatch(given)
    assert answer.json["correlation_id"] == answer.json["current"] == given


async def test_requests_at_the_same_time_keep_their_ids() -> None:
    async with running(application()) as server:
        ids = [f"id-{number}" for number in range(50)]
        answers = await asyncio.gather(*(fetch(server.port, "/who", f"X-Correlation-ID: {id_}") for id_ in ids))
    assert [answer.json["current"] for answer in answers] == ids


async def test_only_a_trusted_proxy_speaks_for_a_client() -> None:
    async with running(application()) as server:
        assert (await fetch(server.port, "/who", "X-Forwarded-For: 1.2.3.4")).json["address"] == "127.0.0.1"
    async with running(application(trusted_proxies=[ip_network("127.0.0.0/8")])) as server:
        assert (await fetch(server.port, "/who", "X-Forwarded-For: 1.2.3.4")).json["address"] == "1.2.3.4"


async def test_one_line_a_request_without_the_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running(application(trusted_proxies=[ip_network("127.0.0.0/8")])) as server:
        for target in ("/links/a?token=secret", "/nowhere", "/fail/invalid", "/health"):
            await fetch(server.port, target, "X-Correlation-ID: c1", "X-Forwarded-For: 203.0.113.77")
    lines = [vars(record) for record in caplog.records if record.getMessage() == "request completed"]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("GET", "/links/a", 200),
        ("GET", "/nowhere", 404),
        ("GET", "/fail/invalid", 400),
        ("GET", "/health", 200),
    ]
    assert all(isinstance(line["duration_ms"], int) for line in lines)
    everything = "".join(str(vars(record)) for record in caplog.records)
    assert "203.0.113.77" not in everything
    assert "127.0.0.1" not in everything
    assert "secret" not in everything


async def _reported(caplog: pytest.LogCaptureFixture) -> int:
    """The status in the line about a request, which may be written after its client has its answer."""

    def lines() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.getMessage() == "request completed"]

    await eventually(lines)
    (line,) = lines()
    return int(vars(line)["status"])


@get("/wait")
async def wait_for_the_end(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def test_a_client_that_left_is_reported_as_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refract")
    app = build_app("url-service", [wait_for_the_end], ready={})
    async with running(app) as server:
        async with await Client.connect(server.port) as client:
            await client.send(head("GET", "/wait"))
            await eventually(lambda: server._state.tasks)
        assert await _reported(caplog) == 499


async def test_an_answer_of_the_servers_own_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refract")
    async with running(application(), limits=ServerLimits(receive=0.2)) as server:
        async with await Client.connect(server.port) as client:
            await client.send(head("POST", "/links", "Content-Length: 900") + b"{")
            assert (await client.answer()).status == 408
        assert await _reported(caplog) == 408


async def test_an_application_without_an_answer_is_reported_as_what_the_server_makes_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        pass

    caplog.set_level(logging.INFO, "refract")
    async with running(Edge(silent, "url-service")) as server:
        assert (await fetch(server.port, "/a")).status == 500
        assert await _reported(caplog) == 500


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "ends"])
async def test_half_an_answer_is_logged_with_its_request(caplog: pytest.LogCaptureFixture, fails: bool) -> None:
    async def half(scope: Any, receive: Any, send: Any) -> None:
        scope["path"] = "/changed-by-routing"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if fails:
            raise RuntimeError("a bug")

    async with running(Edge(half, "url-service")) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/half", "X-Correlation-ID: c1"))
        await eventually(lambda: "c1" in [vars(record).get("correlation_id") for record in caplog.records])
    ours = [one for one in caplog.records if one.name.startswith("refract")]
    (line,) = [vars(record) for record in ours if record.levelno == logging.ERROR]
    assert (line["method"], line["path"], line["correlation_id"]) == ("GET", "/half", "c1")


async def test_a_service_inside_another_answers_once_with_one_id() -> None:
    inner = application()
    outer = Edge(inner, "gateway")
    async with running(outer) as server, await Client.connect(server.port) as client:
        await client.send(head("GET", "/who", "X-Correlation-ID: c1"))
        raw = await client.reader.readuntil(b"\r\n\r\n")
    assert raw.count(b"x-correlation-id: c1") == raw.count(b"nosniff") == 1


def test_an_invalid_request_is_a_400() -> None:
    assert STATUSES[Invalid.kind] == 400
