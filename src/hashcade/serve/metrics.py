"""Metrics for Prometheus. A registry per service, so that several can live in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Everything that is counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        count = partial(Counter, registry=self.registry)
        time = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        self._requests = count("hashcade_requests", "Requests answered", ["route", "status"])
        self._seconds = time("hashcade_request_seconds", "Time to the answer", ["route"])
        self._answered: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.refused = count("hashcade_refused", "Requests refused because of too many others")
        self.wrong_tokens = count("hashcade_wrong_tokens", "Requests with a token that is wrong")
        dropped = "Connections closed in favour of others, while their clients were waited for"
        self.dropped = count("hashcade_connections_dropped", dropped)
        self._queries = count("hashcade_queries", "Queries answered")
        self._candidates = count("hashcade_candidates", "Items compared with queries")
        self._changes = count("hashcade_changes", "Changes committed")
        flush = "Time until a group of changes was on disk"
        self._flush_seconds = time("hashcade_log_flush_seconds", flush)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a number that is read when it is asked for."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        children = self._answered.get((route, status))
        if children is None:
            labels = self._requests.labels(route, str(status)), self._seconds.labels(route)
            children = self._answered[route, status] = labels
        children[0].inc()
        children[1].observe(seconds)

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
