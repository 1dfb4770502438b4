"""The protocols: which items each query looks at, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.codes._check import as_array, checked_count
from hashcade.codes._shape import CodeShape
from hashcade.evaluate._check import Ints, checked_depths, checked_labels
from hashcade.evaluate._classes import per_class
from hashcade.evaluate._exact import exact_search
from hashcade.evaluate._figures import (
    mean_average_precision,
    precision_at,
    recall_at,
    speedup_factor,
)
from hashcade.evaluate._nmi import bucket_nmi
from hashcade.evaluate._result import Evaluation
from hashcade.index._check import checked_vectors
from hashcade.index._index import HashIndex

FILL_OF = {"paper": "path", "plain": "none"}
FILLS = ("path", "sum", "none")
_SCORES = 1 << 24  # numbers of scores at a time: 64 MB


@dataclass(frozen=True, eq=False)
class Queries:
    """Some of the queries, and where they look: scores or bucket ids."""

    first: int
    vectors: npt.NDArray[np.float32]
    scores: npt.NDArray[Any] | None
    bucket_ids: npt.NDArray[Any] | None

    def some(self, chosen: Ints) -> Queries:
        """The chosen ones of them."""
        return Queries(
            self.first,
            self.vectors[chosen],
            None if self.scores is None else self.scores[chosen],
            None if self.bucket_ids is None else self.bucket_ids[chosen],
        )


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
    n_neighbors: Any = (1, 4, 16),
    same_set: bool = False,
    protocol: str = "paper",
    fill: str | None = None,
    n_probe: int | None = None,
    recall: bool = False,
    threads: int | None = None,
) -> Evaluation:
    """Evaluate a table: hash, search, re-rank by euclidean distance, count.

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
        Slot scores of the queries, or else
    query_bucket_ids : int[q, p]
        their buckets; filling then goes through the buckets of the same parent, and so on.
    n_neighbors
        One or several numbers of neighbours.
    same_set
        Query i is item i: it is left out of the candidates and of the size of the database.
    protocol
        ``"paper"``: for each number of neighbours, a query with fewer candidates goes on to its
        next buckets in lexicographic order of its sorted slots (last level fastest) until there
        are enough; what it looked at counts in the SUF of that number. ``"plain"``: queries stay in
        their own buckets, missing results count as wrong, and the SUF is the same for all numbers.
    fill
        ``"path"``, ``"none"``, or ``"sum"``: occupied buckets in the order of their sums of slot
        scores, one by one. None: by the protocol.
    n_probe
        With scores: begin with that many occupied buckets, those with the largest sums of slot
        scores, instead of the buckets of the hash function. (``fill="sum"`` always begins so, with
        ``shape.sparsity`` buckets if nothing is said.)
    recall
        Whether to compare with exhaustive search as well.
    threads
        At most this many. Default: all cores.

    Examples
    --------
    >>> from hashcade.codes import CodeShape
    >>> figures = evaluate_search(
    ...     [[0.1], [5.1]], ["cat", "dog"], [[0.0], [0.2], [5.0]], ["cat", "cat", "dog"],
    ...     item_bucket_ids=[0, 0, 2], shape=CodeShape(width=2, depth=2),
    ...     query_bucket_ids=[0, 3], n_neighbors=1)
    >>> figures.precision, figures.speedup
    ({1: 100.0}, {1: 2.0})
    """
    vectors = checked_vectors("query_vectors", query_vectors)
    n = len(vectors)
    if (query_scores is None) == (query_bucket_ids is None):
        given = "neither" if query_scores is None else "both"
        raise ValueError(f"one of query_scores and query_bucket_ids must be given, got {given}")
    where = as_array("query_scores" if query_scores is not None else "query_bucket_ids",
                     query_scores if query_scores is not None else query_bucket_ids)  # fmt: skip
    if len(where) != n:
        name = "query_scores" if query_scores is not None else "query_bucket_ids"
        raise ValueError(f"{name} has {len(where)} rows, query_vectors has {n}")
    if query_bucket_ids is not None and where.ndim == 1:
        where = where[:, None]

    def parts() -> Iterator[Queries]:
        for rows in query_chunks(n, shape):
            some = where[rows]
            if query_scores is not None:
                yield Queries(rows.start, vectors[rows], some, None)
            else:
                yield Queries(rows.start, vectors[rows], None, some)

    return run_protocol(
        parts(), n, query_labels, item_vectors, item_labels,
        item_bucket_ids=item_bucket_ids, shape=shape, with_scores=query_scores is not None,
        n_neighbors=n_neighbors, same_set=same_set, protocol=protocol, fill=fill,
        n_probe=n_probe, recall=recall, threads=threads,
    )  # fmt: skip


def query_chunks(n: int, shape: CodeShape) -> list[slice]:
    """Divide queries so that the scores of a part need little memory."""
    if not isinstance(shape, CodeShape):
        raise ValueError(f"shape={shape!r} must be a CodeShape")
    step = min(8192, max(64, _SCORES // (shape.depth * shape.width)))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def run_protocol(
    parts: Iterator[Queries],
    n_queries: int,
    query_labels: npt.ArrayLike,
    item_vectors: npt.ArrayLike,
    item_labels: npt.ArrayLike,
    *,
    item_bucket_ids: npt.ArrayLike,
    shape: CodeShape,
    with_scores: bool,
    n_neighbors: Any,
    same_set: bool,
    protocol: str,
    fill: str | None,
    n_probe: int | None,
    recall: bool,
    threads: int | None,
) -> Evaluation:
    """Evaluate queries that come part by part; otherwise as :func:`evaluate_search`.

    The time that ``parts`` takes to make them is not counted.
    """
    # ---- everything is checked first
    if protocol not in FILL_OF:
        raise ValueError(f"protocol={protocol!r} must be one of {', '.join(map(repr, FILL_OF))}")
    filling = FILL_OF[protocol] if fill is None else fill
    if filling not in FILLS:
        raise ValueError(f"fill={fill!r} must be one of {', '.join(map(repr, FILLS))}")
    if n_queries == 0:
        raise ValueError("there must be at least one query")
    if not with_scores and (n_probe is not None or filling == "sum"):
        option = f"n_probe={n_probe!r}" if n_probe is not None else "fill='sum'"
        raise ValueError(f"{option} needs scores of the queries, got bucket ids")
    numbers = checked_depths(n_neighbors)
    probes = None if n_probe is None else checked_count("n_probe", n_probe)
    if filling == "sum" and probes is None:
        probes = shape.sparsity
    items = checked_vectors("item_vectors", item_vectors)
    names = checked_labels("item_labels", item_labels, len(items), "item_vectors")
    wanted = checked_labels("query_labels", query_labels, n_queries, "query_vectors")
    if same_set and n_queries != len(items):
        raise ValueError(f"same_set: {n_queries} queries, {len(items)} items: must be equal")
    size = len(items) - int(same_set)
    if size < 1:
        raise ValueError(f"{len(items)} items: there must be something to find")

    # ---- the table
    start = time.perf_counter()
    index = HashIndex.build(item_bucket_ids, items, shape=shape)
    seconds = {"build": time.perf_counter() - start, "search": 0.0}
    buckets = as_array("item_bucket_ids", item_bucket_ids)

    # ---- the searches
    ids = {k: np.empty((n_queries, k), dtype=np.int64) for k in numbers}
    candidates = {k: np.empty(n_queries, dtype=np.int64) for k in numbers}
    exact = np.empty((n_queries, numbers[-1] if recall else 0), dtype=np.int64)
    everything = shape.n_buckets == 1
    for part in parts:
        rows = slice(part.first, part.first + len(part.vectors))
        own = np.arange(rows.start, rows.stop) if same_set else None
        start = time.perf_counter()
        # Who has enough candidates needs no filling: few results are the beginning of many.
        if everything:
            found = _look_everywhere(part, items, numbers[-1], own)
            looked_at = np.full(len(found), size)
        else:
            found, looked_at = _search(index, part, numbers[-1], "none", probes, own, threads)
        for k in numbers:
            ids[k][rows], candidates[k][rows] = found[:, :k], looked_at
            short = np.flatnonzero(looked_at < k)
            if filling == "none" or everything or len(short) == 0:
                continue
            fill_up = _fill_by_sum if filling == "sum" else _search
            leave = None if own is None else own[short]
            more = fill_up(index, part.some(short), k, filling, probes, leave, threads)
            ids[k][rows.start + short], candidates[k][rows.start + short] = more
        seconds["search"] += time.perf_counter() - start
        if recall:
            exact[rows] = _look_everywhere(part, items, numbers[-1], own)

    # ---- the figures
    last = numbers[-1]
    return Evaluation(
        n_neighbors=numbers,
        speedup={k: speedup_factor(candidates[k], size) for k in numbers},
        precision={k: precision_at(ids[k], wanted, names) for k in numbers},
        mean_average_precision=mean_average_precision(ids[last], wanted, names, same_set=same_set),
        nmi=bucket_nmi(buckets, names),
        recall={k: recall_at(ids[k], exact[:, :k]) for k in numbers} if recall else None,
        classes={k: per_class(ids[k], candidates[k], wanted, names) for k in numbers},
        n_queries=n_queries,
        n_items=size,
        n_occupied=len(np.unique(buckets)),
        same_set=bool(same_set),
        protocol=protocol,
        fill=filling,
        n_probe=probes,
        seconds=seconds,
    )


def _look_everywhere(
    part: Queries, items: npt.NDArray[np.float32], k: int, own: Ints | None
) -> Ints:
    """Ids of the nearest of all items."""
    return exact_search(part.vectors, items, n_neighbors=k, exclude=own).ids


def _search(
    index: HashIndex,
    part: Queries,
    k: int,
    fill: str,
    n_probe: int | None,
    own: Ints | None,
    threads: int | None,
) -> tuple[Ints, Ints]:
    """Ids and candidates of a part of the queries."""
    result = index.search(
        part.vectors, scores=part.scores, bucket_ids=part.bucket_ids, n_neighbors=k,
        n_probe=n_probe, fill=fill, exclude_self=own, threads=threads,
    )  # fmt: skip
    return result.ids, result.candidates


def _fill_by_sum(
    index: HashIndex,
    part: Queries,
    k: int,
    fill: str,
    n_probe: int | None,
    own: Ints | None,
    threads: int | None,
) -> tuple[Ints, Ints]:
    """The same, with one bucket more and more for the queries that have not enough yet."""
    assert n_probe is not None
    ids = np.empty((len(part.vectors), k), dtype=np.int64)
    candidates = np.empty(len(part.vectors), dtype=np.int64)
    short = np.arange(len(part.vectors))
    n_occupied = int(index.stats()["n_occupied"])
    while len(short):
        leave = None if own is None else own[short]
        some = part.some(short)
        found, looked_at = _search(index, some, k, "none", n_probe, leave, threads)
        ids[short], candidates[short] = found, looked_at
        short = short[looked_at < k] if n_probe < n_occupied else short[:0]
        n_probe += 1
    return ids, candidates
