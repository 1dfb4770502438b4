"""What an evaluation gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hashcade.evaluate._classes import ClassFigures


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Figures of one search protocol. Shares are in percent, as in the paper.

    Attributes
    ----------
    n_neighbors
        The numbers of neighbours that were asked for, ascending: the keys of the dictionaries.
    speedup
        SUF for each number of neighbours. They differ where queries go on to further buckets until
        they have enough.
    precision
        Pr@k for each number of neighbours. A missing result counts as wrong.
    mean_average_precision
        For the largest number of neighbours.
    nmi
        Of the items' (first) buckets and their classes.
    recall
        Share of the truly nearest items that were found, for each number; None if not asked for.
    classes
        :class:`ClassFigures` for each number of neighbours.
    n_queries, n_items
        Sizes. ``n_items`` is that of the database which SUF counts: without the query itself if
        queries are items.
    n_occupied
        Buckets with items.
    same_set, protocol, fill, n_probe
        How it was done.
    seconds
        Time spent, by part: ``"hash"`` (if a hasher did it), ``"build"``, ``"search"`` (for all
        numbers of neighbours together).
    """

    n_neighbors: tuple[int, ...]
    speedup: dict[int, float]
    precision: dict[int, float]
    mean_average_precision: float
    nmi: float
    recall: dict[int, float] | None
    classes: dict[int, ClassFigures]
    n_queries: int
    n_items: int
    n_occupied: int
    same_set: bool
    protocol: str
    fill: str
    n_probe: int | None
    seconds: dict[str, float]

    def to_dict(self, *, classes: bool = False) -> dict[str, Any]:
        """Return everything as a dictionary that can be written as JSON.

        Keys are strings, as JSON has them. ``classes`` adds the figures of each class.
        """

        def plain(figures: dict[int, float]) -> dict[str, float]:
            return {str(number): value for number, value in figures.items()}

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
            "seconds": dict(self.seconds),
        }
        if classes:
            result["classes"] = {str(k): figures.to_dict() for k, figures in self.classes.items()}
        return result

    def __str__(self) -> str:
        parts = [
            *(f"SUF@{k} {self.speedup[k]:.2f}" for k in self.n_neighbors),
            *(f"Pr@{k} {self.precision[k]:.2f}" for k in self.n_neighbors),
            f"NMI {self.nmi:.2f}",
        ]
        return ", ".join(parts)
