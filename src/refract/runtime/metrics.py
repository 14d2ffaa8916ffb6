"""Metrics: the registry of a process, and what is counted of every request."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_REFUSED = 400
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """One registry per process, never the library's global one: tests and embedded services make their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.answered = 0
        """Requests that were not refused, for those who want to know how busy this process is."""
        self._requests = Counter(
            "http_requests_total",
            "Requests answered, by service, method, route template and status",
            ("service", "method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "How long requests took, by service and route template",
            ("service", "route"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        # The library's own lookup of a series costs more than the counting.
        self._series: dict[tuple[str, str, str, int], tuple[Counter, Histogram]] = {}

        self.outbox_published = self._counter("outbox_published", "Outbox rows published", "service")
        self.outbox_failed = self._counter("outbox_failed", "Attempts to publish an outbox row that failed", "service")
        self.outbox_pending = Gauge(
            "outbox_pending", "Outbox rows that wait to be published", ("service",), registry=self.registry
        )
        self.inbox_handled = self._counter("inbox_handled", "Events handled by a reader", "reader")
        self.inbox_repeated = self._counter("inbox_repeated", "Events that came again and were passed over", "reader")
        self.inbox_buried = self._counter("inbox_buried", "Messages moved to the dead letters", "reader")
        self.records_passed_over = self._counter(
            "records_passed_over", "Records of a topic that could not be handled", "reader"
        )
        self.records_dropped = self._counter(
            "records_dropped", "Records that were to be written soon and had no room, or were refused", "topic"
        )
        self.idempotency_hits = self._counter(
            "idempotency_hits", "Requests to shorten that made nothing new: known by their url, or by their key", "by"
        )

    def _counter(self, name: str, documentation: str, label: str) -> Counter:
        return Counter(name, documentation, (label,), registry=self.registry)

    def request(self, service: str, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. The route is a template and odd methods are one, so that clients cannot add series."""
        self.answered += status < _REFUSED
        key = service, method if method in _METHODS else "other", route, status
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._requests.labels(*key), self._seconds.labels(service, route)
        series[0].inc()
        series[1].observe(seconds)

    def requests(self, service: str, method: str, route: str, status: int, seconds: Sequence[float]) -> None:
        """Count many requests at once: the library's way costs a lock for each."""
        self.request(service, method, route, status, seconds[0])
        counter, histogram = self._series[service, method if method in _METHODS else "other", route, status]
        rest = sorted(seconds[1:])
        if not rest:
            return
        self.answered += len(rest) if status < _REFUSED else 0
        counter.inc(len(rest))
        histogram._sum.inc(sum(rest))  # noqa: SLF001  # no public way takes more than one
        first = bisect_left(_BUCKETS, rest[0])
        for bucket, bound in enumerate((*_BUCKETS[first:], math.inf), first):
            number = bisect_right(rest, bound)
            if number:
                histogram._buckets[bucket].inc(number)  # noqa: SLF001
                del rest[:number]
            if not rest:
                return

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
