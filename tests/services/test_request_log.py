"""The log lines of the hot path: the same as the edge writes, in part if asked, and none lost at the end."""

import asyncio
import io
import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from refract.runtime import request_log
from refract.runtime.edge import Edge, answer
from refract.runtime.metrics import Metrics
from refract.runtime.request_log import MAX_LINES, RequestLog, flush_request_logs
from refract.runtime.telemetry import configure_logging
from tests.support.http import Client, fetch
from tests.support.redirects import RedirectWorld, redirects
from tests.support.waiting import eventually

__all__ = ["redirects"]

FIELDS = ["level", "time", "service", "correlation_id", "method", "path", "status", "duration_ms", "msg"]


@dataclass
class Redirected:
    """A request as the hot path hands it over with others."""

    path: bytes = b"/abc"
    status: int = 301
    begun: float = 0.0
    correlation_id: bytes = b"id"


class Terminal(io.StringIO):
    """A stream before which a person sits."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Logging as it was."""
    root, ours = logging.getLogger(), logging.getLogger("refract")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    monkeypatch.setattr(request_log, "_unwritten", set())  # other tests may have left lines that nobody writes any more
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def complete(log: RequestLog, count: int = 1) -> None:
    for number in range(count):
        log.completed(b"GET", b"/abc", 301, time.monotonic() - 0.25, b"id-%d" % number)


def lines_in(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def has_lines(stream: io.StringIO, count: int) -> bool:
    return stream.getvalue().count("request completed") == count


async def test_a_line_has_the_nine_fields() -> None:
    stream = io.StringIO()
    configure_logging("process", "info", stream)
    log = RequestLog("url-service")
    complete(log)
    log.flush()
    [line] = lines_in(stream)
    assert list(line) == FIELDS
    assert abs(line.pop("time") - time.time() * 1000) < 60_000
    assert 250 <= line.pop("duration_ms") < 60_000
    assert line == {
        "level": "info",
        "service": "url-service",
        "correlation_id": "id-0",
        "method": "GET",
        "path": "/abc",
        "status": 301,
        "msg": "request completed",
    }


async def test_lines_are_written_together_and_soon() -> None:
    stream = io.StringIO()
    configure_logging("process", "info", stream)
    log = RequestLog("url-service")
    complete(log, 100)
    assert stream.getvalue() == ""
    await eventually(lambda: len(lines_in(stream)) == 100)
    assert [line["correlation_id"] for line in lines_in(stream)] == [f"id-{number}" for number in range(100)]
    complete(log)
    await eventually(lambda: len(lines_in(stream)) == 101)


async def test_a_flood_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "PAUSE", 3600.0)
    stream = io.StringIO()
    configure_logging("process", "info", stream)
    log = RequestLog("url-service")
    complete(log, MAX_LINES + 10)
    assert len(lines_in(stream)) == MAX_LINES
    log.flush()
    log.flush()
    assert len(lines_in(stream)) == MAX_LINES + 10


def complete_together(log: RequestLog, count: int) -> None:
    for _ in range(count // 100):
        log.completed_together(b"GET", 301, [Redirected() for _ in range(100)])


@pytest.mark.parametrize("complete", [complete, complete_together])
@pytest.mark.parametrize(("sample", "least", "most"), [(0.0, 0, 0), (0.5, 400, 600), (1.0, 1000, 1000)])
async def test_a_sample(complete: Callable[[RequestLog, int], None], sample: float, least: int, most: int) -> None:
    stream = io.StringIO()
    configure_logging("process", "info", stream)
    random.seed(7)
    log = RequestLog("url-service", sample)
    assert log.is_on == (sample > 0)
    if log.is_on:
        complete(log, 1000)
    log.flush()
    assert least <= len(lines_in(stream)) <= most


async def test_level_warn_writes_none() -> None:
    configure_logging("process", "warn", io.StringIO())
    assert not RequestLog("url-service").is_on


async def test_a_person_reads_text() -> None:
    stream = Terminal()
    configure_logging("process", "info", stream)
    log = RequestLog("url-service")
    complete(log)
    log.flush()
    line = stream.getvalue()
    assert "info  url-service: request completed correlation_id=id-0 method=GET path=/abc status=301" in line


async def test_a_reader_that_has_gone_stops_nobody() -> None:
    stream = io.StringIO()
    configure_logging("process", "info", stream)
    log = RequestLog("url-service")
    complete(log)
    stream.close()
    log.flush()
    complete(log)
    await asyncio.sleep(request_log.PAUSE * 2)


async def test_both_paths_write_the_same_line(redirects: RedirectWorld) -> None:
    code = await redirects.link("logged")
    stream = io.StringIO()
    configure_logging("process", "info", stream)
    instance = await redirects.instance(sample=1.0)
    requests = [(code, "GET"), (code, "HEAD"), (f"{code}?a=b", "GET"), (redirects.code("absent"), "GET")]
    written: list[list[dict[str, Any]]] = []
    for server in (instance.fast, instance.slow):
        before = len(stream.getvalue())
        async with await Client.connect(server.port) as client:
            for target, method in requests:
                await client.get(f"/{target}", "X-Correlation-ID: one", method=method)
        await eventually(partial(has_lines, stream, (len(written) + 1) * len(requests)))
        lines = [line for line in lines_in(io.StringIO(stream.getvalue()[before:])) if "path" in line]
        assert all(list(line) == FIELDS for line in lines)
        written.append([{**line, "time": 0, "duration_ms": 0} for line in lines])
    assert written[0] == written[1]
    assert [(line["method"], line["path"], line["status"]) for line in written[0]] == [
        ("GET", f"/{code}", 301),
        ("HEAD", f"/{code}", 301),
        ("GET", f"/{code}", 301),
        ("GET", f"/{redirects.code('absent')}", 404),
    ]
    assert "127.0.0.1" not in stream.getvalue()


async def test_a_sample_counts_on_both_paths_and_for_redirects_only(redirects: RedirectWorld) -> None:
    code = await redirects.link("unlogged")
    stream = io.StringIO()
    configure_logging("process", "info", stream)
    instance = await redirects.instance(sample=0.0)
    for server in (instance.fast, instance.slow):
        async with await Client.connect(server.port) as client:
            for target in (code, redirects.code("absent"), "urls"):
                await client.get(f"/{target}")
    flush_request_logs()
    done = [line for line in lines_in(stream) if line["msg"] == "request completed"]
    assert [line["path"] for line in done] == ["/urls", "/urls"]


async def test_the_last_lines_are_written_at_the_end(redirects: RedirectWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "PAUSE", 3600.0)
    stream = io.StringIO()
    configure_logging("process", "info", stream)
    instance = await redirects.instance(sample=1.0)
    code = await redirects.link("last")
    await fetch(instance.fast.port, f"/{code}")
    assert f"/{code}" not in stream.getvalue()
    clicks = next(task for task in instance.service.tasks if task.name == "clicks")
    assert clicks.drain is not None
    await clicks.drain()
    assert [line["status"] for line in lines_in(stream) if line.get("path") == f"/{code}"] == [301]


async def test_every_request_is_counted_logged_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logging("process", "info", io.StringIO())
    metrics = Metrics()
    log = RequestLog("url-service", 0.0, metrics=metrics, route="/{code}")
    assert log.is_on
    now = time.monotonic()
    monkeypatch.setattr(request_log, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    for status, seconds in ((301, 0.0004), (301, 0.003), (301, 0.003), (404, 30.0)):
        log.completed(b"GET", b"/abc", status, now - seconds, b"id")
    log.flush()
    log.flush()  # once is enough
    exposition = metrics.exposition().decode()
    assert 'http_requests_total{method="GET",route="/{code}",service="url-service",status="301"} 3.0' in exposition
    assert 'http_requests_total{method="GET",route="/{code}",service="url-service",status="404"} 1.0' in exposition
    labels = 'route="/{code}",service="url-service"'
    for bound, number in (("0.001", 1), ("0.0025", 1), ("0.005", 3), ("10.0", 3), ("+Inf", 4)):
        assert f'http_request_duration_seconds_bucket{{le="{bound}",{labels}}} {number}.0' in exposition
    [total] = re.findall(rf"http_request_duration_seconds_sum{{{re.escape(labels)}}} ([0-9.]+)", exposition)
    assert float(total) == pytest.approx(30.0064, abs=0.01)


@pytest.mark.parametrize(
    ("path", "at_once"), [("/plain-1", False), ('/with"quote', True), ("/ünusual", True), ("/a b", True)]
)
async def test_the_edge_collects_lines_that_need_no_escaping(path: str, at_once: bool) -> None:
    stream = io.StringIO()
    configure_logging("process", "info", stream)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 204, b"")

    scope = {"method": "GET", "path": path, "headers": [(b"x-correlation-id", b"c-1")], "client": None}
    await Edge(application, "links")(scope, _nothing, _nothing)
    assert bool(stream.getvalue()) is at_once
    flush_request_logs()
    [line] = lines_in(stream)
    assert list(line) == FIELDS
    assert (line["service"], line["correlation_id"], line["path"], line["status"]) == ("links", "c-1", path, 204)
    flush_request_logs()
    assert len(lines_in(stream)) == 1


async def _nothing(*_: Any) -> None:
    """Neither a client nor its request."""
