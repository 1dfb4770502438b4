"""Exhaustive search by matrix products, exact all the same.

The product form ‖x‖² − 2 q·x is fast and inexact. It only rules out what cannot be among the
nearest, with the worst rounding error as a margin; the rest, some dozen items a query, is measured
as (x − q)² in float64. So the results are those of ``HashIndex``, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade._validate import as_array, checked_count, checked_vectors
from hashcade.index import SearchResult

_PRODUCTS = 1 << 24  # numbers in the table of one chunk: 64 MB
_PAIRS = 1 << 16  # pairs measured in float64 at a time
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
    there are fewer items than ``n_neighbors``. With ``same_set`` query i is item i, and does not
    find itself; ``exclude``, int[q], says the same for some of the items by their rows.
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
    size = len(items) - int(excluded is not None)
    if size > 0:
        # Around the mean the numbers are small, and so are the errors; distances do not change.
        # (Squares of numbers as large as 1e15 are beyond float32.)
        wide = max(np.abs(items).max(), np.abs(queries).max(initial=0.0)) > 1e15
        kind = np.float64 if wide else np.float32
        centre = items.mean(axis=0, dtype=np.float64).astype(kind)
        moved = items - centre
        squares = np.einsum("ij,ij->i", moved, moved)  # (n,)
        step = max(1, _PRODUCTS // len(items))
        for start in range(0, len(queries), step):
            rows = slice(start, start + step)
            out = None if excluded is None else excluded[rows]
            pairs = _near_pairs(queries[rows] - centre, moved, squares, min(k, size), out)
            _rank_pairs(queries[rows], items, *pairs, ids[rows], distances[rows])
    return SearchResult(
        distances, ids, np.full(len(queries), size), np.zeros(len(queries), np.bool_)
    )


def _near_pairs(
    queries: AnyFloats, items: AnyFloats, squares: AnyFloats, k: int, excluded: Ints | None
) -> tuple[Ints, Ints]:
    """Pairs (query, item) that may be among the nearest: all that are, and few more."""
    gaps = queries @ items.T  # (q, n)
    gaps *= -2.0
    gaps += squares
    n_queries, n_items = gaps.shape
    if excluded is not None:
        gaps[np.arange(n_queries), excluded] = np.inf
    # The k-th smallest of some of the gaps is not below the k-th smallest of all; the minima of
    # blocks are good ones to take, and one pass over memory gives them.
    n_blocks = n_items // _BLOCK
    few = gaps
    if n_blocks >= 4 * k:
        few = gaps[:, : n_blocks * _BLOCK].reshape(n_queries, _BLOCK, n_blocks).min(axis=1)
    limit = np.partition(few, k - 1, axis=1)[:, k - 1]  # (q,)
    # Each gap is off by at most dim roundings of its terms; so is the limit.
    longest = float(np.sqrt(squares.max(initial=0.0)))
    lengths = np.sqrt(np.einsum("ij,ij->i", queries, queries))
    slack = (items.shape[1] + 8) * 2.0**-23 * (longest * longest + 2.0 * lengths * longest)
    limit = limit + 2.0 * slack + 1e-36
    rows, columns = np.nonzero(gaps <= limit[:, None])
    if excluded is not None:  # an infinite limit would let the query itself through
        keep = columns != excluded[rows]
        rows, columns = rows[keep], columns[keep]
    return rows, columns


def _rank_pairs(
    queries: Floats, items: Floats, rows: Ints, columns: Ints, ids: Ints, distances: Floats
) -> None:
    """Enter the nearest of the pairs, which come by query, into ids and distances (q, k)."""
    gaps = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _PAIRS):
        part = slice(start, start + _PAIRS)
        apart = items[columns[part]].astype(np.float64)
        apart -= queries[rows[part]]
        gaps[part] = np.sqrt(np.einsum("ij,ij->i", apart, apart))
    order = np.lexsort((columns, gaps, rows))
    rows, columns, gaps = rows[order], columns[order], gaps[order]
    first = np.searchsorted(rows, np.arange(len(queries)))
    place = np.arange(len(rows)) - first[rows]
    best = place < ids.shape[1]
    ids[rows[best], place[best]] = columns[best]
    distances[rows[best], place[best]] = gaps[best]
