"""Log lines of requests that are answered by the ten thousand: collected, and written together."""

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TextIO

from refract.runtime.metrics import Metrics
from refract.runtime.telemetry import JsonFormatter

log = logging.getLogger(__name__)

PAUSE = 0.01
"""Seconds for which lines are collected. Nothing else runs while they are written: with five times as many at once, who
is unlucky waits for milliseconds."""

MAX_LINES = 4096

MILLISECONDS_KNOWN = 1_000
"""The end of a line with so short a duration is made once."""

EVERY_LINE: Mapping[str, float] = MappingProxyType({})
"""Which part of the requests of a route is logged, by its path: of one that is not named each."""

Line = tuple[bytes, bytes, int, float, float, bytes]
"""Method, path, status, when it began, when it ended, correlation id."""


_unwritten: "set[RequestLog]" = set()


def flush_request_logs() -> None:
    """Write what any of them has collected: at the end of a process nobody else does."""
    for log in tuple(_unwritten):
        log.flush()


def is_in(sample: float) -> bool:
    """Whether a request is among those that are logged."""
    return random.random() < sample  # noqa: S311  # no secret


class Completed(Protocol):
    """A request whose answer has left."""

    path: bytes
    status: int
    begun: float
    correlation_id: bytes


class RequestLog:
    """The same line that the edge writes, for the fast path. `sample` is the part of the requests that is logged.

    Method, path and correlation id must hold nothing that JSON would escape: the fast path takes no others.
    """

    def __init__(self, service: str, sample: float = 1.0, *, metrics: Metrics | None = None, route: str = "") -> None:
        """With `metrics`, every request is counted as one of the route, logged or not."""
        self._service = service
        self._sample = sample
        self._metrics = metrics
        self._route = route
        self._waiting: list[Line] = []
        self._written: list[bytes] = []
        self._endings: dict[int, list[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writes = sample > 0 and log.isEnabledFor(logging.INFO)
        self.is_on = self._writes or metrics is not None
        """Whether anybody wants to know of requests."""

    def completed(self, method: bytes, path: bytes, status: int, begun: float, correlation_id: bytes) -> None:
        """Note a request that began at that monotonic second and ends now."""
        self._waiting.append((method, path, status, begun, time.monotonic(), correlation_id))
        self._expect_flush()

    def completed_together(self, method: bytes, status: int, requests: Sequence[Completed]) -> None:
        """Note requests that all end now, with one method and one status: the same in fewer words for each."""
        ended = time.monotonic()
        if self._writes and (self._sample < 1.0 or json_handler() is None):
            self._waiting += [(method, each.path, status, each.begun, ended, each.correlation_id) for each in requests]
            self._expect_flush()
            return
        if self._metrics is not None:
            seconds = [ended - request.begun for request in requests]
            self._metrics.requests(self._service, method.decode("ascii"), self._route, status, seconds)
        if not self._writes:
            return
        beginning = b'{"level":"info","time":%d,"service":"%b","correlation_id":"' % (
            time.time() * 1000,
            self._service.encode(),
        )
        middle = b'","method":"%b","path":"' % method
        endings = self._endings_with(status)
        for request in requests:
            milliseconds = round((ended - request.begun) * 1000)
            ending = endings[milliseconds] if milliseconds < MILLISECONDS_KNOWN else _ending(status, milliseconds)
            self._written.append(b"".join((beginning, request.correlation_id, middle, request.path, ending)))
        self._expect_flush()

    def flush(self) -> None:
        """Count and write what was collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            _unwritten.discard(self)
        waiting, self._waiting = self._waiting, []
        written, self._written = self._written, []
        if self._metrics is not None:
            self._count(self._metrics, waiting)
        if not self._writes:
            return
        if self._sample < 1.0:
            waiting = [line for line in waiting if is_in(self._sample)]
        handler = json_handler()
        if handler is None:
            self._log_singly(waiting)
        else:
            written += self._lines(waiting)
        if written and handler is not None:
            _write(handler, b"".join(written).decode("ascii"))

    def _count(self, metrics: Metrics, waiting: Sequence[Line]) -> None:
        seconds: dict[tuple[bytes, int], list[float]] = {}
        for method, _, status, begun, ended, _ in waiting:
            seconds.setdefault((method, status), []).append(ended - begun)
        for (method, status), each in seconds.items():
            metrics.requests(self._service, method.decode("ascii"), self._route, status, each)

    def _expect_flush(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self.flush)
            _unwritten.add(self)
        elif len(self._waiting) + len(self._written) >= MAX_LINES:
            self.flush()

    def _endings_with(self, status: int) -> list[bytes]:
        endings = self._endings.get(status)
        if endings is None:
            endings = self._endings[status] = [_ending(status, each) for each in range(MILLISECONDS_KNOWN)]
        return endings

    def _lines(self, waiting: Sequence[Line]) -> Iterable[bytes]:
        offset = time.time() - time.monotonic()
        service = self._service.encode()
        for method, path, status, begun, ended, correlation_id in waiting:
            yield b'{"level":"info","time":%d,"service":"%b","correlation_id":"%b","method":"%b","path":"%b%b' % (
                (ended + offset) * 1000,
                service,
                correlation_id,
                method,
                path,
                _ending(status, round((ended - begun) * 1000)),
            )

    def _log_singly(self, waiting: Sequence[Line]) -> None:
        for method, path, status, begun, ended, correlation_id in waiting:
            fields = {
                "service": self._service,
                "correlation_id": correlation_id.decode("ascii"),
                "method": method.decode("ascii"),
                "path": path.decode("ascii"),
                "status": status,
                "duration_ms": round((ended - begun) * 1000),
            }
            log.info("request completed", extra=fields)


def _ending(status: int, milliseconds: int) -> bytes:
    return b'","status":%d,"duration_ms":%d,"msg":"request completed"}\n' % (status, milliseconds)


def json_handler() -> "logging.StreamHandler[TextIO] | None":
    """Where lines go as they are; None where somebody else gives them their form."""
    handlers = logging.getLogger().handlers
    if handlers and isinstance(handlers[0], logging.StreamHandler) and isinstance(handlers[0].formatter, JsonFormatter):
        return handlers[0]
    return None


def _write(handler: "logging.StreamHandler[TextIO]", lines: str) -> None:
    handler.acquire()
    try:
        handler.stream.write(lines)
        handler.flush()
    except (OSError, ValueError):
        return  # as with any other line: who cannot read the log does not stop the service
    finally:
        handler.release()
