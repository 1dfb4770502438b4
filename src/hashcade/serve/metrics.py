"""Metrics for Prometheus. A registry per service, so that several can live in one process."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Everything that is counted."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "hashcade_requests", "Requests answered", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "hashcade_request_seconds", "Time to the answer", ["route"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.refused = Counter(
            "hashcade_refused", "Requests refused because of too many others", registry=registry
        )
        self._queries = Counter("hashcade_queries", "Queries answered", registry=registry)
        self._candidates = Counter(
            "hashcade_candidates", "Items compared with queries", registry=registry
        )
        self._changes = Counter("hashcade_changes", "Changes committed", registry=registry)
        self._flush_seconds = Histogram(
            "hashcade_log_flush_seconds", "Time until a group of changes was on disk",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a number that is read when it is asked for."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def committed(self, seconds: float, n_changes: int) -> None:
        """Count one group of changes."""
        self._flush_seconds.observe(seconds)
        self._changes.inc(n_changes)

    def searched(self, n_queries: int, candidates: int) -> None:
        """Count the queries of one search, and the items compared with them."""
        self._queries.inc(n_queries)
        self._candidates.inc(candidates)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
