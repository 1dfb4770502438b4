"""A table in a Redis Cluster behind the service: for searches alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from hashcade.cluster import ClusterTable
from hashcade.errors import ConfigError
from hashcade.index import HashIndex
from hashcade.serve.metrics import Metrics
from hashcade.serve.settings import ServeSettings
from hashcade.store import ReadOnlyError, State
from hashcade.table import HashTable

_REFUSED = "a table in a cluster is read only: change the one it was published from"


class PublishedTable:
    """Looks to the service like the index of a table in a directory; changes are refused."""

    unsaved = n_folds = n_failed_folds = 0  # nothing is written here
    save_failure = failure = None

    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        url, name = split_name(str(settings.table))
        self._use_model = settings.use_model
        self.cluster = ClusterTable.open(
            url, name=name, cache_bytes=settings.cache, model=settings.model
        )
        metrics.registry.register(_Collector(self.cluster))

    @property
    def table(self) -> HashTable:
        """The generation that is searched now."""
        table = self.cluster.table
        if self._use_model:
            return table
        return HashTable.from_parts(None, table.index, table.catalog)

    @property
    def index(self) -> HashIndex:
        """Its index."""
        return self.cluster.table.index

    @property
    def state(self) -> State:
        """Index and catalog of one generation."""
        table = self.cluster.table
        return State(table.index, table.catalog)

    def has_seen(self, sequence: int) -> bool:
        """Whether a change is here; looked for once, as nobody should keep a thread waiting."""
        return self.cluster.sequence >= sequence or self.cluster.follow() >= sequence

    epoch = 0  # for changes, which there are none of

    def _refuse(self, *args: Any, **options: Any) -> Future[Any]:
        raise ReadOnlyError(_REFUSED)

    add = remove = _refuse

    def fold(self) -> bool:
        """Refused: there is nothing to save."""
        raise ReadOnlyError(_REFUSED)

    def readiness(self) -> dict[str, Any]:
        """Which generation is searched, and how much of the cluster answers."""
        reader = self.cluster.reader
        answers = reader.reachable()
        return {
            "generation": self.cluster.generation,
            "directory_loaded": True,  # it is, or the service does not start
            "servers_reachable": sum(answers.values()) / len(answers),
            "slots_reachable": reader.coverage(answers),
        }

    def close(self, seconds: float | None = None) -> None:
        """Close the connections."""
        self.cluster.close()


def split_name(address: str) -> tuple[str, str]:
    """Address of the cluster and name of the table in ``redis://host:port/NAME``."""
    parts = urlsplit(address)
    name = parts.path.strip("/")
    if not name or "/" in name:
        raise ConfigError(
            "the address of a table in a cluster must end in its name",
            hint="write redis://host:6379/NAME, with the NAME it was published as",
        )
    return f"{parts.scheme}://{parts.netloc}", name


class _Collector:
    """The counters of a cluster for Prometheus, read when they are asked for."""

    COUNTERS = (
        ("requests", "Fetches from Redis"),
        ("keys", "Keys that were fetched"),
        ("nodes", "Redis servers that were asked, over all fetches"),
        ("bytes", "Bytes that were fetched"),
        ("fallbacks", "Requests that a replica answered"),
        ("failures", "Requests that a server did not answer in time"),
        ("redirects", "Replies that named another server"),
        ("damaged", "Values that were missing, or had a wrong checksum or content"),
    )

    def __init__(self, cluster: ClusterTable) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Any]:
        """All metrics."""
        reader, cache = self._cluster.reader, self._cluster.cache
        for name, text in self.COUNTERS:
            value = getattr(reader.metrics, name)
            yield CounterMetricFamily(f"hashcade_cluster_{name}", text, value=value)
        seconds = CounterMetricFamily(
            "hashcade_cluster_fetch_seconds", "Time waited for a server", labels=["server"]
        )
        answers = CounterMetricFamily(
            "hashcade_cluster_answers", "Answers of a server", labels=["server"]
        )
        for address in list(reader.metrics.answers):
            seconds.add_metric([address], reader.metrics.seconds[address])
            answers.add_metric([address], reader.metrics.answers[address])
        yield seconds
        yield answers
        for name, text, value in (
            ("avoided_servers", "Servers that failed within a second", len(reader.avoided)),
            ("cache_bytes", "Bytes of blocks that are kept", cache.n_bytes),
            ("cache_limit_bytes", "Bytes of blocks that may be kept", cache.limit),
            ("lag_changes", "Published changes that are not here yet", self._cluster.lag),
            ("generation_stale", "1 if a newer one could not be loaded, else 0",
             self._cluster.failure is not None),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"hashcade_cluster_{name}", text, value=float(value))
        for name, text, value in (
            ("blocks_fetched", "Blocks that were not in the cache", cache.n_fetched),
            ("blocks_dropped", "Blocks that were dropped from the cache", cache.n_dropped),
            ("vectors_fetched", "Vectors that were fetched by themselves", cache.n_vectors),
            ("searches", "Searches of this generation", cache.n_searches),
            ("cache_hits", "Searches that found everything in the cache", cache.n_hits),
        ):
            yield CounterMetricFamily(f"hashcade_cluster_{name}", text, value=value)
        info = InfoMetricFamily("hashcade_cluster_generation", "The generation that is searched")
        info.add_metric([], {"generation": self._cluster.generation})
        yield info
