"""The result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from hashcade.evaluate.metrics import ClassMetrics


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics of one search protocol. Shares are in percent, as in the paper.

    ``seconds`` is the time by part: ``"hash"`` (if a hasher did it), ``"build"`` (if an index was
    built) and ``"search"`` (for all numbers of neighbours together).
    """

    n_neighbors: tuple[int, ...]  # ascending: the keys of the dictionaries
    speedup: dict[int, float]  # SUF
    precision: dict[int, float]  # Pr@k; a missing result counts as wrong
    mean_average_precision: float  # for the largest number of neighbours
    nmi: float  # of buckets and classes
    recall: dict[int, float] | None  # share of the truly nearest items; None if not asked for
    classes: dict[int, ClassMetrics]
    n_queries: int
    n_items: int  # that SUF counts: without the query itself if queries are items
    n_occupied: int  # buckets with items
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
        """Return everything as a dictionary that can be written as JSON, with strings as keys.

        ``classes`` adds the metrics of each class.
        """
        result: dict[str, Any] = {"milliseconds_per_query": self.milliseconds_per_query}
        result |= {field.name: getattr(self, field.name) for field in fields(self)}
        del result["classes"]
        if classes:
            result["classes"] = {k: metrics.to_dict() for k, metrics in self.classes.items()}
        for name, value in result.items():
            if isinstance(value, dict):
                result[name] = {str(key): entry for key, entry in value.items()}
        return {**result, "n_neighbors": list(self.n_neighbors)}

    def __str__(self) -> str:
        parts = [f"SUF@{k} {self.speedup[k]:.2f}" for k in self.n_neighbors]
        parts += [f"Pr@{k} {self.precision[k]:.2f}" for k in self.n_neighbors]
        return ", ".join([*parts, f"NMI {self.nmi:.2f}"])
