"""Counters of a reader, exported to Prometheus by the service."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class ReaderMetrics:
    """Counters of one ``Reader``; they only grow.

    Attributes
    ----------
    requests, keys, nodes, bytes : int
        Read calls, and the keys, servers and bytes that they involved.
    fallbacks : int
        Requests answered by a replica because the master failed or was avoided.
    failures, redirects, refreshes : int
        Servers that did not answer in time, MOVED replies, reads of the slot map.
    damaged : int
        Values that were missing, or whose checksum or content was wrong.
    seconds, answers : dict
        By server, the time spent waiting for it and the number of its answers.
    """

    requests: int = 0
    keys: int = 0
    nodes: int = 0
    bytes: int = 0
    fallbacks: int = 0
    failures: int = 0
    redirects: int = 0
    refreshes: int = 0
    damaged: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    answers: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, **amounts: int) -> None:
        """Add to several counters at once."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def waited(self, address: str, seconds: float) -> None:
        """Record one answer of a server."""
        with self._lock:
            self.seconds[address] += seconds
            self.answers[address] += 1
