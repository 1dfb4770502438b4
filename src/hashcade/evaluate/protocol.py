"""Whole evaluations: search for all queries, fill up where the protocol says so, and measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hashcade._validate import (
    as_array,
    checked_choice,
    checked_count,
    checked_labels,
    checked_vectors,
)
from hashcade.codes import CodeShape
from hashcade.errors import add_hint
from hashcade.evaluate import metrics
from hashcade.evaluate.exact import exact_search
from hashcade.evaluate.result import Evaluation
from hashcade.index import Encoded, HashIndex

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_SCORES = 1 << 24  # slot scores at a time: 64 MB
_VISITS = 1 << 22  # buckets at a time where queries visit all of them


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to search and what to measure.

    Parameters
    ----------
    n_neighbors
        One or several numbers of neighbours.
    protocol
        ``"paper"``: for each number of neighbours, a query with fewer candidates continues to its
        next buckets until there are enough; all candidates count in the SUF of that number.
        ``"plain"``: a query never leaves its buckets, missing results count as wrong, and the SUF
        is the same for all numbers.
    fill
        Which buckets come next. ``"path"``: with scores those in lexicographic order of the
        query's sorted slots, last level fastest; with bucket ids those of the same parent, and so
        on. ``"sum"``: the occupied buckets with the largest sums of slot scores, one more at a
        time. ``"none"``. Default: by the protocol; the paper's is ``"path"``, but ``"sum"`` for a
        code book with one bucket per item.
    n_probe
        1: begin with the query's own buckets. More: with that many occupied buckets, those with
        the largest sums of slot scores. See :meth:`Encoded.where_to_look`.
    recall
        Whether to compare with exhaustive search as well.
    metric, threads
        As for :meth:`HashIndex.search`.
    """

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
        if self.fill is not None:
            checked_choice("fill", self.fill, ("path", "sum", "none"))
        checked_count("n_probe", self.n_probe)

    def fill_for(self, queries: Encoded, shape: CodeShape) -> str:
        """How queries with too few candidates continue."""
        has_scores = queries.scores is not None
        if self.fill == "sum" and not has_scores:
            raise ValueError("fill='sum' needs scores of the queries, got bucket ids")
        if self.fill is not None or self.protocol == "plain":
            return self.fill or "none"
        # The best bucket of a code book has the largest sum of scores, the next best follows. Of
        # a code of several buckets the sums need not be the largest, one by one.
        by_sum = not queries.by_path and (self.n_probe > 1 or shape.sparsity == 1)
        return "sum" if by_sum and has_scores else "path"


class Encoder(Protocol):
    """What is asked of a hasher: a ``Hasher``, a baseline, anything else."""

    @property
    def shape_(self) -> CodeShape:
        """Shape of its table."""

    def encode(self, X: Any, /) -> Encoded:
        """Vectors, buckets and slot scores of items; ``scores=None`` if it has none."""


# -- the public functions --------------------------------------------------------------------------


def evaluate_search(
    query_vectors: npt.ArrayLike,
    query_labels: npt.ArrayLike,
    item_vectors: npt.ArrayLike,
    item_labels: npt.ArrayLike,
    *,
    item_bucket_ids: npt.ArrayLike,
    shape: CodeShape,
    query_scores: npt.ArrayLike | None = None,
    query_bucket_ids: npt.ArrayLike | None = None,
    same_set: bool = False,
    **settings: Any,
) -> Evaluation:
    """Evaluate a table from arrays: search, re-rank by euclidean distance, count.

    Parameters
    ----------
    query_vectors : float[q, dim]
    query_labels : int or str[q]
    item_vectors : float[n, dim]
    item_labels : int or str[n]
    item_bucket_ids : int[n, sparsity] or int[n]
        The table: buckets of the items.
    shape
        Its shape. With one bucket only, the search is :func:`exact_search`.
    query_scores : float[q, depth, width]
        Slot scores of the queries, or
    query_bucket_ids : int[q, p] or int[q]
        their buckets, or both. Without bucket ids the buckets are those of the best slots.
    same_set
        Query i is item i: it is left out of the candidates and of the size of the database.
    **settings
        Of the protocol, see :class:`Settings`.

    Examples
    --------
    >>> from hashcade.codes import CodeShape
    >>> result = evaluate_search(
    ...     [[0.1], [5.1]], ["cat", "dog"], [[0.0], [0.2], [5.0]], ["cat", "cat", "dog"],
    ...     item_bucket_ids=[0, 0, 2], shape=CodeShape(width=2, depth=2),
    ...     query_bucket_ids=[0, 3], n_neighbors=1)
    >>> result.precision, result.speedup
    ({1: 100.0}, {1: 2.0})
    """
    chosen = Settings(**settings)
    vectors = checked_vectors("query_vectors", query_vectors)
    n = len(vectors)
    if query_scores is None and query_bucket_ids is None:
        raise ValueError("query_scores or query_bucket_ids must be given, got neither")
    scores = None if query_scores is None else as_array("query_scores", query_scores)
    # Without bucket ids the scores say where to look: an empty array is not read.
    buckets = np.empty((n, 0), np.int64)
    if query_bucket_ids is not None:
        buckets = as_array("query_bucket_ids", query_bucket_ids)
    for name, value in (("query_scores", scores), ("query_bucket_ids", buckets)):
        if value is not None and len(value) != n:
            raise ValueError(f"{name} has {len(value)} rows, query_vectors has {n}")
    queries = Encoded(vectors, buckets.reshape(n, -1), scores, by_path=query_bucket_ids is None)
    table = _build(item_bucket_ids, item_vectors, item_labels, shape, same_set=same_set)
    parts = (queries[rows] for rows in _chunks(n, shape))
    return _run(parts, n, query_labels, table, chosen)


def evaluate_hasher(
    hasher: Encoder,
    queries: Any,
    query_labels: npt.ArrayLike,
    items: Any = None,
    item_labels: npt.ArrayLike | None = None,
    *,
    query_vectors: npt.ArrayLike | None = None,
    item_vectors: npt.ArrayLike | None = None,
    **settings: Any,
) -> Evaluation:
    """Build a table of items with a fitted hasher, and evaluate queries against it.

    Parameters
    ----------
    hasher
        A ``Hasher``, or anything with ``encode`` and ``shape_``.
    queries : array[q, ...]
        Items as the hasher takes them: embeddings or images.
    query_labels : int or str[q]
    items : array[n, ...], optional
        The database. None: the queries themselves; no query then finds itself.
    item_labels : int or str[n]
        Needed with ``items``.
    query_vectors, item_vectors : float[q, dim], float[n, dim]
        Re-rank by these. None: by the vectors of ``hasher.encode``.
    **settings
        Of the protocol, see :class:`Settings`.
    """
    chosen = Settings(**settings)
    same_set = items is None
    if same_set != (item_labels is None):
        missing = "item_labels" if item_labels is None else "items"
        raise ValueError(f"{missing} must be given as well: items and item_labels belong together")
    if same_set:
        items, item_labels, item_vectors = queries, query_labels, query_vectors
    shape = hasher.shape_
    seconds = 0.0

    def encode(name: str, X: npt.NDArray[Any], vectors: Any) -> Iterator[Encoded]:
        nonlocal seconds
        if vectors is not None:
            vectors = checked_vectors(f"{name} vectors", vectors)
            if len(vectors) != len(X):
                raise ValueError(f"{name} vectors: {len(vectors)} rows, must be {len(X)}")
        for rows in _chunks(len(X), shape):
            start = time.perf_counter()
            part = hasher.encode(X[rows])
            seconds += time.perf_counter() - start
            yield part if vectors is None else replace(part, vectors=vectors[rows])

    X = as_array("queries", queries)
    parts: Iterable[Encoded] = encode("query", X, query_vectors)
    if same_set and len(X) * shape.depth * shape.width <= _SCORES:
        parts = item_parts = list(parts)  # encoded once: there is room for all scores
    else:
        encoded = encode("item", as_array("items", items), item_vectors)
        item_parts = [replace(part, scores=None) for part in encoded]
    table = _build(
        np.concatenate([part.bucket_ids for part in item_parts]),
        np.concatenate([part.vectors for part in item_parts]),
        item_labels, shape, same_set=same_set,
    )  # fmt: skip
    result = _run(parts, len(X), query_labels, table, chosen)
    result.seconds["hash"] = seconds
    return result


def evaluate_paper(
    hasher: Encoder,
    test: Any,
    test_labels: npt.ArrayLike,
    train: Any,
    train_labels: npt.ArrayLike,
    *,
    test_vectors: npt.ArrayLike | None = None,
    train_vectors: npt.ArrayLike | None = None,
    **settings: Any,
) -> dict[str, Evaluation]:
    """Evaluate as the paper does: test items against test items, and against training items.

    Arguments and settings are those of :func:`evaluate_hasher`. The keys of the result,
    ``"test"`` and ``"train"``, name the set that is searched in.
    """
    return {
        "test": evaluate_hasher(hasher, test, test_labels, query_vectors=test_vectors, **settings),
        "train": evaluate_hasher(
            hasher, test, test_labels, train, train_labels,
            query_vectors=test_vectors, item_vectors=train_vectors, **settings,
        ),
    }  # fmt: skip


def evaluate_index(
    index: HashIndex,
    encoded: Encoded,
    query_labels: npt.ArrayLike,
    item_labels: Callable[[Ints], npt.ArrayLike] | None = None,
    *,
    exclude: npt.ArrayLike | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate encoded queries against an existing index.

    Parameters
    ----------
    index
        Its items need labels; those without (-1) are never right.
    encoded
        The queries, as ``hasher.encode`` gives them.
    query_labels : int or str[q]
        Labels in the form in which ``item_labels`` gives them.
    item_labels
        Gives the labels of items by their ids. Default: ``index.labels_of``.
    exclude : int[q], optional
        An id per query that it must not find: itself, for queries that are items.
    **settings
        Of the protocol, see :class:`Settings`.

    Returns
    -------
    Evaluation
        Its NMI counts an item once for each of its buckets.
    """
    chosen = Settings(**settings)
    buckets, entries = index.entries()
    ids = np.unique(entries)
    labels = checked_labels("item_labels", (item_labels or index.labels_of)(ids), len(ids), "index")
    known = np.ones(len(ids), np.bool_)
    if labels.dtype.kind == "i":
        known = labels != -1
        labels = np.where(known, labels, np.iinfo(np.int64).min)  # nobody's label
    if not known.any():
        raise add_hint(ValueError("no item of the index has a label"), "add items with labels")
    own = None
    if exclude is not None:
        own = as_array("exclude", exclude)
        if own.shape != (len(encoded),) or not np.isin(own, ids).all():
            raise ValueError(f"exclude must be the ids of {len(encoded)} items of the index")
    rows = np.searchsorted(ids, entries)
    known_rows = rows[known[rows]]
    nmi = metrics.bucket_nmi(buckets[known[rows]], labels[known_rows])
    occupied = np.unique(buckets)

    def exact(vectors: Floats, k: int, own: Ints | None) -> Ints:
        nearest = np.empty((len(vectors), k), np.int64)
        step = max(1, _VISITS // len(occupied))
        for start in range(0, len(vectors), step):
            part = vectors[start : start + step]
            nearest[start : start + step] = index.search(
                part, bucket_ids=np.tile(occupied, (len(part), 1)), n_neighbors=k, fill="none",
                exclude_self=False if own is None else own[start : start + step],
                metric=chosen.metric, threads=chosen.threads,
            ).ids  # fmt: skip
        return nearest

    table = _Table(index, ids, labels, own, nmi, len(occupied), exact, {})
    parts = (encoded[rows] for rows in _chunks(len(encoded), index.shape))
    return _run(parts, len(encoded), query_labels, table, chosen)


# -- what they share -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Table:
    """An index, and what is known of its items."""

    index: HashIndex
    ids: Ints  # (n,), ascending
    labels: npt.NDArray[Any]  # (n,), in the order of ids
    own: Ints | None  # (q,): ids of the queries, where they are items
    nmi: float
    n_occupied: int
    exact: Callable[[Floats, int, Ints | None], Ints]  # the ids that exhaustive search finds
    seconds: dict[str, float]


def _build(
    bucket_ids: npt.ArrayLike,
    vectors: npt.ArrayLike,
    labels: Any,
    shape: CodeShape,
    *,
    same_set: bool,
) -> _Table:
    items = checked_vectors("item_vectors", vectors)
    names = checked_labels("item_labels", labels, len(items), "item_vectors")
    start = time.perf_counter()
    index = HashIndex.build(bucket_ids, items, shape=shape)
    seconds = {"build": time.perf_counter() - start}
    buckets = as_array("item_bucket_ids", bucket_ids)

    def exact(queries: Floats, k: int, own: Ints | None) -> Ints:
        return exact_search(queries, items, n_neighbors=k, exclude=own).ids

    ids = np.arange(len(items))
    nmi = metrics.bucket_nmi(buckets, names)
    n_occupied = len(np.unique(buckets))
    return _Table(index, ids, names, ids if same_set else None, nmi, n_occupied, exact, seconds)


def _chunks(n: int, shape: CodeShape) -> list[slice]:
    """Divide queries so that the scores of a part need little memory."""
    step = min(8192, max(64, _SCORES // (shape.depth * shape.width)))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _run(
    parts: Iterable[Encoded],
    n_queries: int,
    query_labels: npt.ArrayLike,
    table: _Table,
    settings: Settings,
) -> Evaluation:
    """Search for queries that come part by part, and measure. Making the parts is not timed."""
    if n_queries == 0:
        raise ValueError("there must be at least one query")
    names = checked_labels("query_labels", query_labels, n_queries, "query_vectors")
    own, n_items = table.own, len(table.ids)
    if own is not None and len(own) != n_queries:
        raise ValueError(f"same_set: {n_queries} queries, {n_items} items: must be equal")
    size = n_items - int(own is not None)
    if size < 1:
        raise ValueError(f"{n_items} items: there must be something to find")
    queries, items, classes = metrics.joint_codes(names, table.labels)

    numbers = settings.n_neighbors
    rows_of = {k: np.empty((n_queries, k), np.int64) for k in numbers}  # rows of items, or -1
    candidates = {k: np.empty(n_queries, np.int64) for k in numbers}
    exact = np.empty((n_queries, numbers[-1] if settings.recall else 0), np.int64)
    seconds = {**table.seconds, "search": 0.0}
    filling, first = "none", 0
    for part in parts:
        here = slice(first, first + len(part))
        first = here.stop
        part_own = None if own is None else own[here]
        filling = settings.fill_for(part, table.index.shape)
        start = time.perf_counter()
        results = _search_part(part, table, part_own, filling, settings)
        seconds["search"] += time.perf_counter() - start
        for k, (ids, counts) in results.items():
            rows_of[k][here], candidates[k][here] = _rows(table, ids), counts
        if settings.recall:
            exact[here] = _rows(table, table.exact(part.vectors, numbers[-1], part_own))

    in_class = np.bincount(items, minlength=len(classes))[queries]
    if own is not None:
        in_class = in_class - (items[np.searchsorted(table.ids, own)] == queries)
    right = metrics.right_results(rows_of[numbers[-1]], queries, items)
    per_class = {k: metrics.per_class(rows_of[k], candidates[k], queries, items) for k in numbers}
    return Evaluation(
        n_neighbors=numbers,
        speedup={k: metrics.speedup_factor(candidates[k], size) for k in numbers},
        precision={k: metrics.precision_at(rows_of[k], queries, items) for k in numbers},
        mean_average_precision=metrics.average_precision(right, in_class),
        nmi=table.nmi,
        recall={k: metrics.recall_at(rows_of[k], exact[:, :k]) for k in numbers}
        if settings.recall
        else None,
        classes={k: replace(each, labels=classes[each.labels]) for k, each in per_class.items()},
        n_queries=n_queries,
        n_items=size,
        n_occupied=table.n_occupied,
        same_set=own is not None,
        protocol=settings.protocol,
        fill=filling,
        n_probe=settings.n_probe,
        seconds=seconds,
    )


def _rows(table: _Table, ids: Ints) -> Ints:
    """Positions of results in the table's list of ids; -1 stays."""
    return np.where(ids >= 0, np.searchsorted(table.ids, ids), -1)


# -- the search ------------------------------------------------------------------------------------


def _search_part(
    part: Encoded, table: _Table, own: Ints | None, fill: str, settings: Settings
) -> dict[int, tuple[Ints, Ints]]:
    """Ids and candidates of some queries, for each number of neighbours."""
    index, numbers = table.index, settings.n_neighbors
    last = numbers[-1]
    if index.shape.n_buckets == 1:
        ids = table.exact(part.vectors, last, own)
        counts = np.full(len(part), len(table.ids) - int(own is not None))
        return {k: (ids[:, :k], counts) for k in numbers}

    def search(
        rows: Any, k: int, *, fill: str = "none", n_probe: int | None = None
    ) -> tuple[Ints, Ints]:
        some = part[rows]
        where = some.where_to_look(settings.n_probe)
        if n_probe is not None:
            where = {"scores": some.scores, "n_probe": n_probe}
        result = index.search(
            some.vectors, n_neighbors=k, fill=fill, metric=settings.metric,
            exclude_self=False if own is None else own[rows], threads=settings.threads, **where,
        )  # fmt: skip
        return result.ids, result.candidates

    # Queries with enough candidates are done: few results are the first of many.
    ids, counts = search(slice(None), last)
    results = {k: (ids[:, :k].copy(), counts.copy()) for k in numbers}

    def put(k: int, rows: Ints, ids: Ints, counts: Ints) -> None:
        results[k][0][rows], results[k][1][rows] = ids[:, :k], counts

    short = np.flatnonzero(counts < last)
    if fill == "path":
        for k in numbers:
            rows = short[counts[short] < k]
            if len(rows):
                put(k, rows, *search(rows, k, fill="path"))
    elif fill == "sum":
        n_probe = settings.n_probe + 1
        if settings.n_probe == 1:
            n_probe = min(index.shape.sparsity, table.n_occupied)
        most = counts[short]
        while len(short) and n_probe <= table.n_occupied:
            ids, counts = search(short, last, n_probe=n_probe)
            for k in numbers:
                needy = most < k
                put(k, short[needy], ids[needy], counts[needy])
            most = np.maximum(most, counts)
            short, most = short[most < last], most[most < last]
            n_probe += 1
    return results
