"""Log lines of requests that are answered by the ten thousand: collected, and written together."""

import asyncio
import logging
import random
import time
from typing import TextIO

from refract.runtime.metrics import Metrics
from refract.runtime.telemetry import JsonFormatter

log = logging.getLogger(__name__)

PAUSE = 0.05
"""Seconds for which lines are collected."""

MAX_LINES = 4096


Line = tuple[bytes, bytes, int, float, float, bytes]
"""Method, path, status, when it began, when it ended, correlation id."""


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
        self._timer: asyncio.TimerHandle | None = None
        self._writes = sample > 0 and log.isEnabledFor(logging.INFO)
        self.is_on = self._writes or metrics is not None
        """Whether anybody wants to know of requests."""

    def completed(self, method: bytes, path: bytes, status: int, begun: float, correlation_id: bytes) -> None:
        """Note a request that began at that monotonic second and ends now."""
        self._waiting.append((method, path, status, begun, time.monotonic(), correlation_id))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self.flush)
        elif len(self._waiting) >= MAX_LINES:
            self.flush()

    def flush(self) -> None:
        """Count and write what was collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        if self._metrics is not None:
            self._count(self._metrics, waiting)
        if self._sample < 1.0:
            waiting = [line for line in waiting if random.random() < self._sample]  # noqa: S311  # no secret
        handlers = logging.getLogger().handlers
        if not waiting or not handlers or not self._writes:
            return
        handler = handlers[0]
        if isinstance(handler, logging.StreamHandler) and isinstance(handler.formatter, JsonFormatter):
            self._write(handler, waiting)
        else:
            self._log_singly(waiting)

    def _count(self, metrics: Metrics, waiting: list[Line]) -> None:
        seconds: dict[tuple[bytes, int], list[float]] = {}
        for method, _, status, begun, ended, _ in waiting:
            known = seconds.get((method, status))
            if known is None:
                seconds[method, status] = [ended - begun]
            else:
                known.append(ended - begun)
        for (method, status), each in seconds.items():
            metrics.requests(self._service, method.decode("ascii"), self._route, status, each)

    def _write(self, handler: "logging.StreamHandler[TextIO]", waiting: list[Line]) -> None:
        offset = time.time() - time.monotonic()
        service = self._service.encode()
        lines = b"".join(
            b'{"level":"info","time":%d,"service":"%b","correlation_id":"%b","method":"%b","path":"%b",'
            b'"status":%d,"duration_ms":%d,"msg":"request completed"}\n'
            % ((ended + offset) * 1000, service, correlation_id, method, path, status, round((ended - begun) * 1000))
            for method, path, status, begun, ended, correlation_id in waiting
        )
        handler.acquire()
        try:
            handler.stream.write(lines.decode("ascii"))
            handler.flush()
        except (OSError, ValueError):
            return  # as with any other line: who cannot read the log does not stop the service
        finally:
            handler.release()

    def _log_singly(self, waiting: list[Line]) -> None:
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
