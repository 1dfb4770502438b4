"""Figures for Prometheus. A registry per service, so that several can live in one process."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_AT_ONCE = 256


class Metrics:
    """Everything that is counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "hashcade_requests", "Requests answered", ["route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "hashcade_request_seconds", "Time to the answer", ["route"],
            buckets=_LATENCY, registry=self.registry,
        )  # fmt: skip
        self.refused = Counter(
            "hashcade_refused", "Requests refused because too many were under way",
            registry=self.registry,
        )  # fmt: skip
        self.queries = Counter("hashcade_queries", "Queries answered", registry=self.registry)
        self.candidates = Counter(
            "hashcade_candidates", "Items looked at by queries", registry=self.registry
        )
        self.changes = Counter("hashcade_changes", "Changes committed", registry=self.registry)
        self.flush_seconds = Histogram(
            "hashcade_journal_flush_seconds", "Time until a group of changes was on disk",
            buckets=_LATENCY, registry=self.registry,
        )  # fmt: skip
        # Children are looked up once per route: the lookup by name is most of the price.
        self._known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        # Noted during a request, counted later, many at a time: a short search is over so soon
        # that counting would be a good part of it.
        self._answered: deque[tuple[str, int, float]] = deque()
        self._searched: deque[tuple[int, Any]] = deque()

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a figure that is read when it is asked for."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._answered.append((route, status, seconds))
        if len(self._answered) >= _AT_ONCE:
            self._count()

    def committed(self, seconds: float, n_changes: int) -> None:
        """Count one group of changes."""
        self.flush_seconds.observe(seconds)
        self.changes.inc(n_changes)

    def searched(self, n_queries: int, candidates: int | npt.NDArray[np.int64]) -> None:
        """Count the queries of one search, and the items looked at: all of them, or per query."""
        self._searched.append((n_queries, candidates))
        if len(self._searched) >= _AT_ONCE or n_queries > _AT_ONCE:  # large ones are not kept
            self._count()

    def _count(self) -> None:
        with contextlib.suppress(IndexError):  # another thread may have taken the last
            while self._answered:
                route, status, seconds = self._answered.popleft()
                pair = self._known.get((route, status))
                if pair is None:
                    pair = (self._requests.labels(route, str(status)), self._seconds.labels(route))
                    self._known[route, status] = pair
                pair[0].inc()
                pair[1].observe(seconds)
        with contextlib.suppress(IndexError):
            while self._searched:
                n_queries, candidates = self._searched.popleft()
                self.queries.inc(n_queries)
                self.candidates.inc(int(np.sum(candidates)))

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        self._count()
        return generate_latest(self.registry)
