"""Metrics: the registry of a process, and what is counted of every request."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """One registry per process, never the library's global one: tests and embedded services make their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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

    def request(self, service: str, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. The route is a template and odd methods are one, so that clients cannot add series."""
        known = method if method in _METHODS else "other"
        self._requests.labels(service, known, route, status).inc()
        self._seconds.labels(service, route).observe(seconds)

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
