"""The result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, fields
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
        SUF for each number of neighbours.
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
        """Return everything as a dictionary that can be written as JSON, with strings as keys.

        ``classes`` adds the metrics of each class.
        """
        result: dict[str, Any] = {"milliseconds_per_query": self.milliseconds_per_query}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "classes":
                if not classes:
                    continue
                value = {k: metrics.to_dict() for k, metrics in value.items()}
            if isinstance(value, dict):
                value = {str(key): entry for key, entry in value.items()}
            result[field.name] = list(value) if isinstance(value, tuple) else value
        return result

    def __str__(self) -> str:
        parts = [
            *(f"SUF@{k} {self.speedup[k]:.2f}" for k in self.n_neighbors),
            *(f"Pr@{k} {self.precision[k]:.2f}" for k in self.n_neighbors),
            f"NMI {self.nmi:.2f}",
        ]
        return ", ".join(parts)
