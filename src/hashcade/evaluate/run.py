"""The search of an evaluation, with queries part by part, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade._validate import checked_choice, checked_count, checked_labels
from hashcade.codes import CodeShape
from hashcade.evaluate import metrics
from hashcade.index import Encoded, HashIndex

Ints = NDArray[np.int64]

_VISITS = 1 << 22  # buckets at a time where queries visit all of them


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
    recall: dict[int, float] | None  # share of the truly nearest items; None if not requested
    exhaustive_precision: dict[int, float] | None  # of the truly nearest items, along with recall
    classes: dict[int, metrics.ClassMetrics]
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
        """Time of the search for one query, without hashing."""
        return 1000.0 * self.seconds["search"] / self.n_queries

    def to_dict(self, *, classes: bool = False) -> dict[str, Any]:
        """Return everything, with ``classes`` the metrics of each class too, ready for JSON."""
        result = {"milliseconds_per_query": self.milliseconds_per_query, **vars(self)}
        del result["classes"]
        if classes:
            result["classes"] = {k: each.to_dict() for k, each in self.classes.items()}
        for name, value in result.items():
            if isinstance(value, dict):
                result[name] = {str(key): entry for key, entry in value.items()}
        return {**result, "n_neighbors": list(self.n_neighbors)}

    def __str__(self) -> str:
        parts = [f"SUF@{k} {self.speedup[k]:.2f}" for k in self.n_neighbors]
        parts += [f"Pr@{k} {self.precision[k]:.2f}" for k in self.n_neighbors]
        return ", ".join([*parts, f"NMI {self.nmi:.2f}"])


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to search and what to measure: see ``evaluate_hasher``."""

    n_neighbors: Any = (1, 4, 16)
    protocol: str = "paper"
    fill: str | None = None
    n_probe: int = 1
    recall: bool = False
    metric: str = "euclidean"
    threads: int | None = None

    def __post_init__(self) -> None:
        counts = self.n_neighbors if isinstance(self.n_neighbors, Iterable) else [self.n_neighbors]
        numbers = tuple(sorted({checked_count("n_neighbors", count) for count in counts}))
        if not numbers:
            raise ValueError("n_neighbors is empty, must name at least one number")
        object.__setattr__(self, "n_neighbors", numbers)
        checked_choice("protocol", self.protocol, ("paper", "plain"))
        checked_choice("fill", self.fill or "none", ("path", "sum", "none"))
        checked_count("n_probe", self.n_probe)

    def fill_for(self, queries: Encoded, shape: CodeShape) -> str:
        """Resolve ``fill``: how queries with too few candidates continue."""
        has_scores = queries.scores is not None
        if self.fill == "sum" and not has_scores:
            raise ValueError("fill='sum' needs scores of the queries, got bucket ids")
        if self.fill is not None or self.protocol == "plain":
            return self.fill or "none"
        # The best bucket of a code book has the largest sum of scores, so the next best sum comes
        # next. The single buckets of a code with several need not have the largest sums.
        by_sum = not queries.by_path and (self.n_probe > 1 or shape.sparsity == 1)
        by_sum = by_sum and queries.ranked is None  # else the ranked ones are next
        return "sum" if by_sum and has_scores else "path"


@dataclass(frozen=True, eq=False)
class Database:
    """An index, with the labels and other facts about its items."""

    index: HashIndex
    ids: Ints  # (n,), ascending
    labels: NDArray[Any]  # (n,), in the order of ids
    query_ids: Ints | None  # (q,): ids of the queries, where they are items
    nmi: float
    occupied: Ints  # buckets
    seconds: dict[str, float] = field(default_factory=dict)

    def rows(self, ids: Ints) -> Ints:
        """Positions of results in ``ids``; -1 for missing ones."""
        return np.where(ids >= 0, np.searchsorted(self.ids, ids), -1)


def measure(
    parts: Iterable[Encoded],
    n_queries: int,
    query_labels: ArrayLike,
    database: Database,
    settings: Settings,
) -> Evaluation:
    """Search for queries, part by part, and compute the metrics. Only the search is timed."""
    if n_queries == 0:
        raise ValueError("there must be at least one query")
    label_values = checked_labels("query_labels", query_labels, n_queries, "query_vectors")
    query_ids, n_items, numbers = database.query_ids, len(database.ids), settings.n_neighbors
    n_others = n_items - int(query_ids is not None)
    if n_others < 1:
        raise ValueError(f"{n_items} items: there must be something to find")
    queries, items, classes = metrics.joint_codes(label_values, database.labels)

    ids = {k: np.empty((n_queries, k), np.int64) for k in numbers}  # rows of items, or -1
    candidates = {k: np.empty(n_queries, np.int64) for k in numbers}
    exact = np.empty((n_queries, numbers[-1]), np.int64)
    seconds = {**database.seconds, "search": 0.0}
    fill, n_done = "none", 0
    for part in parts:
        rows = slice(n_done, n_done + len(part))
        n_done = rows.stop
        excluded = None if query_ids is None else query_ids[rows]
        search = partial(_search, database.index, settings, part, excluded)
        fill = settings.fill_for(part, database.index.shape)
        start = time.perf_counter()
        results = _search_and_fill(search, part, database, settings, fill)
        seconds["search"] += time.perf_counter() - start
        for k, (nearest, counts) in results.items():
            ids[k][rows], candidates[k][rows] = database.rows(nearest), counts
        step = max(1, _VISITS // len(database.occupied))
        for chunk_start in range(0, len(part) if settings.recall else 0, step):
            chunk = np.arange(chunk_start, min(chunk_start + step, len(part)))
            all_buckets = np.tile(database.occupied, (len(chunk), 1))
            nearest, _ = search(chunk, numbers[-1], bucket_ids=all_buckets)
            exact[rows.start + chunk] = database.rows(nearest)

    n_relevant = np.bincount(items, minlength=len(classes))[queries]
    if query_ids is not None:
        n_relevant = n_relevant - (items[database.rows(query_ids)] == queries)
    is_correct = metrics.correct_results(ids[numbers[-1]], queries, items)
    per_class = {k: metrics.per_class(ids[k], candidates[k], queries, items) for k in numbers}
    recall = {k: metrics.recall_at(ids[k], exact[:, :k]) for k in numbers if settings.recall}
    exhaustive_precision = {
        k: metrics.precision_at(exact[:, :k], queries, items) for k in numbers if settings.recall
    }
    return Evaluation(
        n_neighbors=numbers,
        speedup={k: metrics.speedup_factor(candidates[k], n_others) for k in numbers},
        precision={k: metrics.precision_at(ids[k], queries, items) for k in numbers},
        mean_average_precision=metrics.average_precision(is_correct, n_relevant),
        nmi=database.nmi,
        recall=recall or None,
        exhaustive_precision=exhaustive_precision or None,
        classes={k: replace(each, labels=classes[each.labels]) for k, each in per_class.items()},
        n_queries=n_queries,
        n_items=n_others,
        n_occupied=len(database.occupied),
        same_set=query_ids is not None,
        protocol=settings.protocol,
        fill=fill,
        n_probe=settings.n_probe,
        seconds=seconds,
    )


def _search(
    index: HashIndex, settings: Settings, part: Encoded, excluded: Ints | None,
    rows: Any, k: int, fill: str = "none", **where: Any,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Search for some rows of a part: ids (q, k) and candidates (q,)."""
    queries = part[rows]
    result = index.search(
        queries.vectors, n_neighbors=k, fill=fill, metric=settings.metric, threads=settings.threads,
        exclude_self=False if excluded is None else excluded[rows],
        **(where or queries.where_to_look(settings.n_probe)),
    )  # fmt: skip
    return result.ids, result.candidates


def _search_and_fill(
    search: Callable[..., tuple[Ints, Ints]],
    part: Encoded, database: Database, settings: Settings, fill: str,
) -> dict[int, tuple[Ints, Ints]]:  # fmt: skip
    """Ids and candidates for each number of neighbours."""
    numbers, n_occupied = settings.n_neighbors, len(database.occupied)
    largest = numbers[-1]
    # Queries with enough candidates are done: the k nearest are the first k of more.
    ids, counts = search(slice(None), largest)
    results = {k: (ids[:, :k].copy(), counts.copy()) for k in numbers}
    unfilled = np.flatnonzero(counts < largest)
    n_candidates = counts[unfilled]  # so far
    if fill == "path":
        for k in numbers:
            rows = unfilled[n_candidates < k]
            if len(rows):
                results[k][0][rows], results[k][1][rows] = search(rows, k, fill="path")
    elif fill == "sum":
        assert part.scores is not None
        n_probe = settings.n_probe + 1
        if settings.n_probe == 1:
            n_probe = min(database.index.shape.sparsity, n_occupied)
        while len(unfilled) and n_probe <= n_occupied:
            ids, counts = search(unfilled, largest, scores=part.scores[unfilled], n_probe=n_probe)
            for k in numbers:
                too_few = n_candidates < k
                rows = unfilled[too_few]
                results[k][0][rows], results[k][1][rows] = ids[too_few, :k], counts[too_few]
            n_candidates = np.maximum(n_candidates, counts)
            too_few = n_candidates < largest
            unfilled, n_candidates = unfilled[too_few], n_candidates[too_few]
            n_probe += 1
    return results
