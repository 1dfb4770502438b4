"""The result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hashcade.evaluate.metrics import ClassMetrics


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics of one search protocol. Shares are in percent, as in the paper.

    Attributes
    ----------
    n_neighbors
        The numbers of neighbours, ascending: the keys of the dictionaries.
    speedup
        SUF for each number of neighbours. They differ where queries continue to further buckets
        until they have enough candidates.
    precision
        Pr@k for each number of neighbours. A missing result counts as wrong.
    mean_average_precision
        For the largest number of neighbours.
    nmi
        Of buckets and classes.
    recall
        Share of the truly nearest items among the results, per number; None if not asked for.
    classes
        :class:`ClassMetrics` for each number of neighbours.
    n_queries, n_items
        Sizes. ``n_items`` is that of the database which SUF counts: without the query itself if
        queries are items.
    n_occupied
        Buckets with items.
    same_set, protocol, fill, n_probe
        The settings.
    seconds
        Time by part: ``"hash"`` (if a hasher did it), ``"build"`` (if an index was built) and
        ``"search"`` (for all numbers of neighbours together).
    """

    n_neighbors: tuple[int, ...]
    speedup: dict[int, float]
    precision: dict[int, float]
    mean_average_precision: float
    nmi: float
    recall: dict[int, float] | None
    classes: dict[int, ClassMetrics]
    n_queries: int
    n_items: int
    n_occupied: int
    same_set: bool
    protocol: str
    fill: str
    n_probe: int
    seconds: dict[str, float]

    @property
    def milliseconds_per_query(self) -> float:
        """Time of the search for one query, hashing apart."""
        return 1000.0 * self.seconds["search"] / self.n_queries

    def to_dict(self, *, classes: bool = False) -> dict[str, Any]:
        """Return everything as a dictionary that can be written as JSON.

        Keys are strings, as JSON has them. ``classes`` adds the metrics of each class.
        """

        def plain(metrics: dict[int, float]) -> dict[str, float]:
            return {str(number): value for number, value in metrics.items()}

        result: dict[str, Any] = {
            "protocol": self.protocol,
            "same_set": self.same_set,
            "fill": self.fill,
            "n_probe": self.n_probe,
            "n_queries": self.n_queries,
            "n_items": self.n_items,
            "n_occupied": self.n_occupied,
            "n_neighbors": list(self.n_neighbors),
            "speedup": plain(self.speedup),
            "precision": plain(self.precision),
            "mean_average_precision": self.mean_average_precision,
            "nmi": self.nmi,
            "recall": None if self.recall is None else plain(self.recall),
            "milliseconds_per_query": self.milliseconds_per_query,
            "seconds": dict(self.seconds),
        }
        if classes:
            result["classes"] = {str(k): metrics.to_dict() for k, metrics in self.classes.items()}
        return result

    def __str__(self) -> str:
        parts = [
            *(f"SUF@{k} {self.speedup[k]:.2f}" for k in self.n_neighbors),
            *(f"Pr@{k} {self.precision[k]:.2f}" for k in self.n_neighbors),
            f"NMI {self.nmi:.2f}",
        ]
        return ", ".join(parts)
