"""What a log line looks like, whatever is logged."""

import io
import logging
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refract.runtime.correlation import correlated
from refract.runtime.metrics import Metrics
from refract.runtime.telemetry import JsonFormatter, TextFormatter, configure_logging, serving

NINE = ["level", "time", "service", "correlation_id", "method", "path", "status", "duration_ms", "msg"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("refract")
    before = root.handlers[:], root.level, ours.level
    flags = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = flags


def configured(level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure_logging("gateway", level, stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]


def test_every_line_has_the_nine_fields_first() -> None:
    stream = configured()
    logging.getLogger("refract.any").info("ready on %d", 8080)
    logging.getLogger("refract.any").warning(
        "request completed",
        extra={"tries": 3, "method": "GET", "path": "/a", "status": 200, "duration_ms": 5, "correlation_id": "c1"},
    )
    plain, full = lines(stream)
    assert list(plain) == NINE
    assert isinstance(plain.pop("time"), int)
    assert list(plain.values()) == ["info", "gateway", "", "", "", 0, 0, "ready on 8080"]
    assert list(full) == [*NINE, "tries"]
    del full["time"]
    assert list(full.values()) == ["warn", "gateway", "c1", "GET", "/a", 200, 5, "request completed", 3]


def test_time_is_unix_milliseconds() -> None:
    record = logging.makeLogRecord({"created": 1_740_873_600.1234, "msg": "x", "levelno": logging.INFO})
    assert msgspec.json.decode(JsonFormatter("s").format(record))["time"] == 1_740_873_600_123


def test_the_line_knows_its_service_and_its_request() -> None:
    stream = configured()
    with serving("url-service"), correlated("abc"):
        logging.getLogger("refract.any").info("inside")
    logging.getLogger("refract.any").info("outside")
    inside, outside = lines(stream)
    assert (inside["service"], inside["correlation_id"]) == ("url-service", "abc")
    assert (outside["service"], outside["correlation_id"]) == ("gateway", "")


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["debug", "info", "warn", "error", "error"]),
        ("info", ["info", "warn", "error", "error"]),
        ("warn", ["warn", "error", "error"]),
        ("error", ["error", "error"]),
    ],
)
def test_levels(level: str, expected: list[str]) -> None:
    stream = configured(level)
    for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logging.getLogger("refract.any").log(number, "x")
    assert [line["level"] for line in lines(stream)] == expected


def test_libraries_speak_from_warn_on() -> None:
    stream = configured("debug")
    for name in ("uvicorn.error", "aio_pika", "asyncpg", "asyncio"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("trouble")
    assert [line["msg"] for line in lines(stream)] == ["trouble"] * 4


def test_an_exception_is_in_the_line() -> None:
    stream = configured()
    try:
        raise ValueError("no\nsuch thing")
    except ValueError:
        logging.getLogger("refract.any").exception("failed")
    (line,) = lines(stream)
    assert list(line) == [*NINE, "error", "stack"]
    assert line["error"] == "ValueError: no\nsuch thing"
    assert "test_an_exception_is_in_the_line" in str(line["stack"])


def test_configuring_again_does_not_double_the_lines() -> None:
    configured()
    stream = configured()
    logging.getLogger("refract.any").info("once")
    assert len(lines(stream)) == 1


@given(st.text(alphabet=st.characters(codec=None)), st.text(alphabet=st.characters(codec=None)))
@example("\ud800", "\udcff\n")
def test_nothing_that_is_logged_can_forge_a_line(message: str, path: str) -> None:
    record = logging.makeLogRecord(
        {"msg": "%s", "args": (message,), "levelno": logging.INFO, "path": path, "odd": path}
    )
    written = JsonFormatter("s").format(record)
    assert not any(ord(character) < 0x20 for character in written)
    written.encode()  # can be written to any stream
    assert msgspec.json.decode(written)["level"] == "info"


def test_forged_lines_stay_inside_their_field() -> None:
    stream = configured()
    forged = 'x\n{"level":"error","msg":"forged"}\r\n\x1b[2J'
    logging.getLogger("refract.any").info("%s", forged, extra={"path": forged, "user_agent": forged})
    (line,) = lines(stream)
    assert line["msg"] == line["path"] == line["user_agent"] == forged


def test_objects_without_a_place_in_json_are_written_as_text() -> None:
    stream = configured()
    logging.getLogger("refract.any").info("x", extra={"what": {1: object}, "why": ValueError("y"), "set": {2}})
    (line,) = lines(stream)
    assert line["why"] == "y"


def test_a_terminal_gets_readable_lines_that_cannot_steer_it() -> None:
    terminal = Terminal()
    configure_logging("gateway", "info", terminal)
    logging.getLogger("refract.any").info("evil\x1b[2J\nline", extra={"status": 200})
    written = terminal.getvalue()
    assert written.count("\n") == 1
    assert "info  gateway: evil\\x1b[2J\\x0aline status=200" in written


def test_a_terminal_gets_the_traceback_below_the_line() -> None:
    error = ValueError("no")
    record = logging.makeLogRecord({"msg": "failed", "exc_info": (ValueError, error, None), "levelno": logging.ERROR})
    first, *rest = TextFormatter("s").format(record).splitlines()
    assert first.endswith("error s: failed error=ValueError: no")
    assert rest == ["  ValueError: no"]


@pytest.mark.parametrize("character", ["\u202e", "\u2028", "\u0085", "\x1b", "\U000e0001", "\udc80"])
def test_nothing_invisible_reaches_a_terminal_in_the_traceback_either(character: str) -> None:
    error = ValueError(f"a{character}b\n12:00:00 info  gateway: forged")
    record = logging.makeLogRecord(
        {"msg": f"c{character}d", "exc_info": (ValueError, error, None), "levelno": logging.ERROR}
    )
    first, *rest = TextFormatter("s").format(record).split("\n")
    assert all(line.isprintable() for line in (first, *rest))
    assert all(line.startswith("  ") for line in rest)
    assert "12:00:00 info" in rest[-1]


def test_requests_are_counted_with_bounded_labels() -> None:
    metrics = Metrics()
    metrics.request("gateway", "GET", "/r/{code}", 301, 0.002)
    metrics.request("gateway", "GET", "/r/{code}", 301, 0.2)
    for invented in ("BREW", "PROPFIND"):
        metrics.request("gateway", invented, "unmatched", 404, 0.001)
    text = metrics.exposition().decode()
    assert 'http_requests_total{method="GET",route="/r/{code}",service="gateway",status="301"} 2.0' in text
    assert 'http_requests_total{method="other",route="unmatched",service="gateway",status="404"} 2.0' in text
    assert 'http_request_duration_seconds_count{route="/r/{code}",service="gateway"} 2.0' in text


@given(st.lists(st.floats(0, 20) | st.sampled_from([0.001, 0.0025, 1.0, 10.0]), min_size=1))
def test_many_requests_at_once_are_counted_like_each_by_itself(seconds: list[float]) -> None:
    together, singly = Metrics(), Metrics()
    together.requests("links", "GET", "/{code}", 301, seconds)
    for each in seconds:
        singly.request("links", "GET", "/{code}", 301, each)
    unlike = ("_created", "_sum")  # when, and a sum in another order
    counted, expected = (
        [line for line in metrics.exposition().decode().splitlines() if not any(part in line for part in unlike)]
        for metrics in (together, singly)
    )
    assert counted == expected
