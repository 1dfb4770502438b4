"""Evaluation protocols: search for all queries, fill up if the protocol says so, and measure."""

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

    A hasher is a ``Hasher``, or any object with ``encode(X) -> Encoded`` and ``shape_``; for more
    than one probe ``encode(X, n_probe=n_probe)`` is called. Without ``items`` and ``item_labels``
    the queries are the database, and no query is among its own results. With ``query_vectors`` and
    ``item_vectors`` candidates are ranked by these, not by the vectors of ``encode``.

    The settings, also of :func:`evaluate_index`:

    - ``n_neighbors``: one or several numbers of neighbours; default: 1, 4 and 16.
    - ``protocol``: ``"paper"`` (default): for each number of neighbours, a query with fewer
      candidates continues to its next buckets until it has enough; all of them count in the SUF
      of that number. ``"plain"``: a query never leaves its buckets, missing results are wrong.
    - ``fill``: which buckets come next. ``"path"``: with scores those in lexicographic order of the
      query's sorted slots, last level fastest; with bucket ids those of the same parent, and so on.
      ``"sum"``: the occupied buckets with the largest sums of slot scores, one more at a time.
      ``"none"``. Default: by the protocol; the paper's is ``"path"``, but ``"sum"`` for a code book
      with one bucket per item.
    - ``n_probe``: 1 (default): start with the query's own buckets. More: with that many occupied
      buckets, by the largest sums of slot scores. See :meth:`Encoded.where_to_look`.
    - ``recall``: compare with exhaustive search as well.
    - ``metric``, ``threads``: as for :meth:`HashIndex.search`.
    """
    checked_settings = Settings(**settings)
    same_set = items is None
    if same_set != (item_labels is None):
        missing = "item_labels" if item_labels is None else "items"
        raise ValueError(f"{missing} must be given as well: items and item_labels belong together")
    if same_set:
        items, item_labels, item_vectors = queries, query_labels, query_vectors
    shape = hasher.shape_
    encode_options = {} if checked_settings.n_probe == 1 else {"n_probe": checked_settings.n_probe}
    seconds = 0.0

    def encode(name: str, X: NDArray[Any], vectors: Any) -> Iterator[Encoded]:
        nonlocal seconds
        if vectors is not None:
            vectors = checked_vectors(f"{name}_vectors", vectors)
            if len(vectors) != len(X):
                raise ValueError(f"{name}_vectors has {len(vectors)} rows, must have {len(X)}")
        for rows in _chunks(len(X), shape):
            start = time.perf_counter()
            part = hasher.encode(X[rows], **encode_options)
            seconds += time.perf_counter() - start
            yield part if vectors is None else replace(part, vectors=vectors[rows])

    X = as_array("queries", queries)
    parts: Iterable[Encoded] = encode("query", X, query_vectors)
    if same_set and len(X) * shape.depth * shape.width <= _SCORES:
        parts = item_parts = list(parts)  # encoded once: the scores of all fit into memory
    else:
        encoded = encode("item", as_array("items", items), item_vectors)
        item_parts = [replace(part, scores=None) for part in encoded]
    buckets = np.concatenate([part.bucket_ids for part in item_parts])
    vectors = np.concatenate([part.vectors for part in item_parts])
    vectors = checked_vectors("item_vectors", vectors)
    labels = checked_labels("item_labels", item_labels, len(vectors), "item_vectors")
    start = time.perf_counter()
    index = HashIndex.build(buckets, vectors, shape=shape)
    build_seconds = {"build": time.perf_counter() - start}
    ids, nmi = np.arange(len(vectors)), bucket_nmi(buckets, labels) if len(vectors) else 0.0
    query_ids, occupied = ids if same_set else None, np.unique(buckets)
    database = Database(index, ids, labels, query_ids, nmi, occupied, build_seconds)
    result = measure(parts, len(X), query_labels, database, checked_settings)
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
    """Evaluate encoded queries, as ``hasher.encode`` returns them, against an existing index.

    ``item_labels`` returns the labels of items by their ids, by default ``index.labels_of``; an
    item without a label (-1) is never a correct result. ``exclude``, int[q], is an id per query
    that is excluded from its results: its own, for queries that are items. The settings are those
    of :func:`evaluate_hasher`. NMI counts an item in each of its buckets.
    """
    checked_settings = Settings(**settings)
    buckets, entries = index.entries()
    ids, rows = np.unique(entries, return_inverse=True)
    labels = checked_labels("item_labels", (item_labels or index.labels_of)(ids), len(ids), "index")
    labelled = np.ones(len(ids), np.bool_)
    if labels.dtype.kind == "i":
        labelled = labels != -1
        labels = np.where(labelled, labels, np.iinfo(np.int64).min)  # no query has this label
    if not labelled.any():
        raise add_hint(ValueError("no item of the index has a label"), "add items with labels")
    n, query_ids = len(encoded), None if exclude is None else as_array("exclude", exclude)
    if query_ids is not None and (query_ids.shape != (n,) or not np.isin(query_ids, ids).all()):
        raise ValueError(f"exclude must be the ids of {n} items of the index")
    is_used = labelled[rows]
    nmi = bucket_nmi(buckets[is_used], labels[rows[is_used]])
    database = Database(index, ids, labels, query_ids, nmi, np.unique(buckets))
    parts = (encoded[rows] for rows in _chunks(n, index.shape))
    return measure(parts, n, query_labels, database, checked_settings)


def _chunks(n: int, shape: CodeShape) -> list[slice]:
    """Divide queries so that the scores of a chunk need little memory."""
    step = min(8192, max(64, _SCORES // (shape.depth * shape.width)))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]
