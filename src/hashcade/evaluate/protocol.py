"""Whole evaluations: search for all queries, fill up where the protocol says so, and measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade._validate import as_array, checked_labels, checked_vectors
from hashcade.codes import CodeShape
from hashcade.errors import add_hint
from hashcade.evaluate.metrics import bucket_nmi
from hashcade.evaluate.run import Database, Evaluation, Settings, measure
from hashcade.index import Encoded, HashIndex

_SCORES = 1 << 24  # slot scores at a time: 64 MB


def evaluate_hasher(
    hasher: Any,
    queries: Any,
    query_labels: ArrayLike,
    items: Any = None,
    item_labels: ArrayLike | None = None,
    *,
    query_vectors: ArrayLike | None = None,
    item_vectors: ArrayLike | None = None,
    **settings: Any,
) -> Evaluation:
    """Build a table of items with a fitted hasher, and evaluate queries against it.

    A hasher is a ``Hasher``, or anything with ``encode(X) -> Encoded`` and ``shape_``; for more
    probes than one ``encode(X, n_probe=n_probe)`` is called. Without ``items`` and ``item_labels``
    the queries are the database, and no query finds itself. With ``query_vectors`` and
    ``item_vectors`` candidates are ranked by these, not by those of ``encode``.

    The settings, which :func:`evaluate_index` has as well:

    - ``n_neighbors``: one or several numbers of neighbours; default: 1, 4 and 16.
    - ``protocol``: ``"paper"`` (default): for each number of neighbours, a query with fewer
      candidates continues to its next buckets until there are enough; all of them count in the SUF
      of that number. ``"plain"``: a query never leaves its buckets, missing results are wrong.
    - ``fill``: which buckets come next. ``"path"``: with scores those in lexicographic order of the
      query's sorted slots, last level fastest; with bucket ids those of the same parent, and so on.
      ``"sum"``: the occupied buckets with the largest sums of slot scores, one more at a time.
      ``"none"``. Default: by the protocol; the paper's is ``"path"``, but ``"sum"`` for a code book
      with one bucket per item.
    - ``n_probe``: 1 (default): begin with the query's own buckets. More: with that many occupied
      buckets, those with the largest sums of slot scores. See :meth:`Encoded.where_to_look`.
    - ``recall``: compare with exhaustive search as well.
    - ``metric``, ``threads``: as for :meth:`HashIndex.search`.
    """
    checked = Settings(**settings)
    same_set = items is None
    if same_set != (item_labels is None):
        missing = "item_labels" if item_labels is None else "items"
        raise ValueError(f"{missing} must be given as well: items and item_labels belong together")
    if same_set:
        items, item_labels, item_vectors = queries, query_labels, query_vectors
    shape = hasher.shape_
    ranked = {} if checked.n_probe == 1 else {"n_probe": checked.n_probe}
    seconds = 0.0

    def encode(name: str, X: NDArray[Any], vectors: Any) -> Iterator[Encoded]:
        nonlocal seconds
        if vectors is not None:
            vectors = checked_vectors(f"{name}_vectors", vectors)
            if len(vectors) != len(X):
                raise ValueError(f"{name}_vectors has {len(vectors)} rows, must have {len(X)}")
        for rows in _chunks(len(X), shape):
            start = time.perf_counter()
            part = hasher.encode(X[rows], **ranked)
            seconds += time.perf_counter() - start
            yield part if vectors is None else replace(part, vectors=vectors[rows])

    X = as_array("queries", queries)
    parts: Iterable[Encoded] = encode("query", X, query_vectors)
    if same_set and len(X) * shape.depth * shape.width <= _SCORES:
        parts = item_parts = list(parts)  # encoded once: there is room for all scores
    else:
        encoded = encode("item", as_array("items", items), item_vectors)
        item_parts = [replace(part, scores=None) for part in encoded]
    buckets = np.concatenate([part.bucket_ids for part in item_parts])
    vectors = np.concatenate([part.vectors for part in item_parts])
    database = _build(buckets, vectors, item_labels, shape, same_set=same_set)
    result = measure(parts, len(X), query_labels, database, checked)
    result.seconds["hash"] = seconds
    return result


def evaluate_index(
    index: HashIndex,
    encoded: Encoded,
    query_labels: ArrayLike,
    item_labels: Callable[[NDArray[np.int64]], ArrayLike] | None = None,
    *,
    exclude: ArrayLike | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate encoded queries, as ``hasher.encode`` gives them, against an existing index.

    ``item_labels`` gives the labels of items by their ids, by default ``index.labels_of``; an item
    without a label (-1) is never a right result. ``exclude``, int[q], is an id per query that it
    must not find: itself, for queries that are items. The settings are those of
    :func:`evaluate_hasher`. NMI counts an item in each of its buckets.
    """
    checked = Settings(**settings)
    buckets, entries = index.entries()
    ids, rows = np.unique(entries, return_inverse=True)
    labels = checked_labels("item_labels", (item_labels or index.labels_of)(ids), len(ids), "index")
    labelled = np.ones(len(ids), np.bool_)
    if labels.dtype.kind == "i":
        labelled = labels != -1
        labels = np.where(labelled, labels, np.iinfo(np.int64).min)  # nobody's label
    if not labelled.any():
        raise add_hint(ValueError("no item of the index has a label"), "add items with labels")
    n, query_ids = len(encoded), None if exclude is None else as_array("exclude", exclude)
    if query_ids is not None and (query_ids.shape != (n,) or not np.isin(query_ids, ids).all()):
        raise ValueError(f"exclude must be the ids of {n} items of the index")
    used = labelled[rows]
    nmi = bucket_nmi(buckets[used], labels[rows[used]])
    database = Database(index, ids, labels, query_ids, nmi, np.unique(buckets))
    parts = (encoded[rows] for rows in _chunks(n, index.shape))
    return measure(parts, n, query_labels, database, checked)


def _build(
    bucket_ids: Any, vectors: Any, labels: Any, shape: CodeShape, *, same_set: bool
) -> Database:
    items = checked_vectors("item_vectors", vectors)
    names = checked_labels("item_labels", labels, len(items), "item_vectors")
    start = time.perf_counter()
    index = HashIndex.build(bucket_ids, items, shape=shape)
    seconds = {"build": time.perf_counter() - start}
    buckets, ids = as_array("item_bucket_ids", bucket_ids), np.arange(len(items))
    nmi = bucket_nmi(buckets, names) if len(items) else 0.0
    query_ids = ids if same_set else None
    return Database(index, ids, names, query_ids, nmi, np.unique(buckets), seconds)


def _chunks(n: int, shape: CodeShape) -> list[slice]:
    """Divide queries so that the scores of a part need little memory."""
    step = min(8192, max(64, _SCORES // (shape.depth * shape.width)))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]
