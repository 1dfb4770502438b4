"""Exact exhaustive search, by matrix products.

The product form ‖x‖² − 2 q·x is fast but inexact. It only rules out what cannot be among the
nearest, with the worst rounding error as a margin; for the rest, some dozen items per query,
(x − q)² is computed in float64. So the results are bit-identical to those of ``HashIndex``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade._validate import as_array, checked_count, checked_vectors
from hashcade.index import SearchResult

_PRODUCTS = 1 << 24  # products of one chunk: 64 MB
_PAIRS = 1 << 16  # pairs compared in float64 at a time
_BLOCK = 32  # items that share a minimum

Floats = NDArray[np.float32]
AnyFloats = NDArray[Any]
Ints = NDArray[np.int64]


def exact_search(
    query_vectors: ArrayLike,
    item_vectors: ArrayLike,
    *,
    n_neighbors: int = 10,
    same_set: bool = False,
    exclude: ArrayLike | None = None,
) -> SearchResult:
    """Find the nearest of all items, by euclidean distance; of equal ones the lower id first.

    From vectors, float[q, dim] and float[n, dim], to row numbers as ids, padded with -1 where
    there are fewer items than ``n_neighbors``. With ``same_set`` query i is item i, and is excluded
    from its results; ``exclude``, int[q], does the same for given rows of items.
    ``candidates`` is the size of the database, without the query itself.

    >>> result = exact_search([[0.0], [9.0]], [[1.0], [5.0], [8.0]], n_neighbors=2)
    >>> result.ids.tolist(), result.distances.tolist()
    ([[0, 1], [2, 1]], [[1.0, 5.0], [1.0, 4.0]])
    """
    items = checked_vectors("item_vectors", item_vectors)
    queries = checked_vectors("query_vectors", query_vectors)
    dims = queries.shape[1], items.shape[1]
    if dims[0] != dims[1]:
        raise ValueError(f"query_vectors has dim {dims[0]}, item_vectors has dim {dims[1]}")
    if same_set and len(queries) != len(items):
        raise ValueError(f"same_set: {len(queries)} queries, {len(items)} items: must be equal")
    excluded: Ints | None = np.arange(len(queries)) if same_set else None
    if exclude is not None:
        excluded = as_array("exclude", exclude)
        if excluded.shape != (len(queries),) or excluded.dtype.kind not in "iu":
            raise ValueError(f"exclude has shape {excluded.shape}, must be int[{len(queries)}]")
        if bool(((excluded < 0) | (excluded >= len(items))).any()):
            raise ValueError(f"exclude must be >= 0 and < {len(items)}, the number of items")
    k = checked_count("n_neighbors", n_neighbors)
    ids = np.full((len(queries), k), -1)
    distances = np.full((len(queries), k), np.inf, dtype=np.float32)
    n_others = len(items) - int(excluded is not None)
    if n_others > 0:
        # Centred: smaller numbers have smaller errors, and distances do not change. (Squares of
        # numbers beyond 1e15 may overflow float32.)
        needs_float64 = max(np.abs(items).max(), np.abs(queries).max(initial=0.0)) > 1e15
        dtype = np.float64 if needs_float64 else np.float32
        mean = items.mean(axis=0, dtype=np.float64).astype(dtype)
        centred = items - mean
        squares = np.einsum("ij,ij->i", centred, centred)  # (n,)
        step = max(1, _PRODUCTS // len(items))
        for start in range(0, len(queries), step):
            rows = slice(start, start + step)
            skip = None if excluded is None else excluded[rows]
            pairs = _near_pairs(queries[rows] - mean, centred, squares, min(k, n_others), skip)
            _rank_pairs(queries[rows], items, *pairs, ids[rows], distances[rows])
    return SearchResult(
        distances, ids, np.full(len(queries), n_others), np.zeros(len(queries), np.bool_)
    )


def _near_pairs(
    queries: AnyFloats, items: AnyFloats, squares: AnyFloats, k: int, excluded: Ints | None
) -> tuple[Ints, Ints]:
    """Pairs (query, item) that may be among the nearest: all that are, and a few more."""
    keys = queries @ items.T  # (q, n)
    keys *= -2.0
    keys += squares
    n_queries, n_items = keys.shape
    if excluded is not None:
        keys[np.arange(n_queries), excluded] = np.inf
    # The k-th smallest of a sample of keys is not below the k-th smallest of all; the minima of
    # blocks are a good sample, which takes one pass over memory.
    n_blocks = n_items // _BLOCK
    sample = keys
    if n_blocks >= 4 * k:
        sample = keys[:, : n_blocks * _BLOCK].reshape(n_queries, _BLOCK, n_blocks).min(axis=1)
    limit = np.partition(sample, k - 1, axis=1)[:, k - 1]  # (q,)
    # The error of a key is at most that of dim rounded terms; so is that of the limit.
    max_norm = float(np.sqrt(squares.max(initial=0.0)))
    norms = np.sqrt(np.einsum("ij,ij->i", queries, queries))
    error = (items.shape[1] + 8) * 2.0**-23 * (max_norm * max_norm + 2.0 * norms * max_norm)
    limit = limit + 2.0 * error + 1e-36
    rows, columns = np.nonzero(keys <= limit[:, None])
    if excluded is not None:  # an infinite limit would let the query itself through
        keep = columns != excluded[rows]
        rows, columns = rows[keep], columns[keep]
    return rows, columns


def _rank_pairs(
    queries: Floats, items: Floats, rows: Ints, columns: Ints, ids: Ints, distances: Floats
) -> None:
    """Write the nearest of the pairs, which are sorted by query, to ids and distances (q, k)."""
    pair_distances = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _PAIRS):
        part = slice(start, start + _PAIRS)
        differences = items[columns[part]].astype(np.float64)
        differences -= queries[rows[part]]
        pair_distances[part] = np.sqrt(np.einsum("ij,ij->i", differences, differences))
    order = np.lexsort((columns, pair_distances, rows))
    rows, columns, pair_distances = rows[order], columns[order], pair_distances[order]
    first = np.searchsorted(rows, np.arange(len(queries)))
    rank = np.arange(len(rows)) - first[rows]
    is_result = rank < ids.shape[1]
    ids[rows[is_result], rank[is_result]] = columns[is_result]
    distances[rows[is_result], rank[is_result]] = pair_distances[is_result]
