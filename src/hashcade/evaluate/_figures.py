"""Figures of what a search found: row numbers of items, best first, padded with -1."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hashcade.codes._check import as_array, checked_count
from hashcade.evaluate._check import (
    Ints,
    checked_depth,
    checked_ids,
    checked_labels,
    joint_labels,
    right_results,
)

_CHUNK = 4096  # rows at a time where a row needs n_neighbors² bytes


def precision_at(
    ids: npt.ArrayLike,
    query_labels: npt.ArrayLike,
    item_labels: npt.ArrayLike,
    *,
    n_neighbors: int | None = None,
) -> float:
    """Share of results that have the label of their query, in percent (Pr@k).

    Parameters
    ----------
    ids : int[q, n]
        Row numbers of the items found, best first. -1 stands for no result, and counts as wrong.
    query_labels : int or str[q]
    item_labels : int or str[n_items]
    n_neighbors
        Look at so many of the results. Default: all of them.

    Examples
    --------
    >>> precision_at([[0, 2], [1, -1]], ["cat", "dog"], ["cat", "dog", "cat"])
    75.0
    >>> precision_at([[0, 2], [1, -1]], ["cat", "dog"], ["cat", "dog", "cat"], n_neighbors=1)
    100.0
    """
    right = _right(ids, query_labels, item_labels, n_neighbors)[0]
    return 100.0 * float(right.mean())


def mean_average_precision(
    ids: npt.ArrayLike,
    query_labels: npt.ArrayLike,
    item_labels: npt.ArrayLike,
    *,
    n_neighbors: int | None = None,
    same_set: bool = False,
) -> float:
    """Mean over the queries of the average precision of their results, in percent.

    The average precision of a query is the sum of the precisions at the places of its right
    results, divided by the number of right results that it could have: its class in the database,
    or ``n_neighbors`` if that is less. A query whose class the database does not have counts 0.

    Parameters
    ----------
    ids, query_labels, item_labels, n_neighbors
        As for :func:`precision_at`.
    same_set
        Query i is item i, and does not find itself.

    Examples
    --------
    >>> share = mean_average_precision([[1, 0, 2]], ["cat"], ["cat", "dog", "cat"])
    >>> round(share, 3)  # (1/2 + 2/3) / 2
    58.333
    """
    right, queries, items = _right(ids, query_labels, item_labels, n_neighbors)
    if same_set and len(queries) != len(items):
        raise ValueError(f"same_set: {len(queries)} queries, {len(items)} items: must be equal")
    places = np.arange(1, right.shape[1] + 1)
    total = (right * (np.cumsum(right, axis=1) / places)).sum(axis=1)
    in_class = np.bincount(items, minlength=1 + int(queries.max()))[queries] - int(same_set)
    possible = np.minimum(in_class, right.shape[1])
    return 100.0 * float((total / np.maximum(possible, 1)).mean())


def recall_at(
    ids: npt.ArrayLike, exact_ids: npt.ArrayLike, *, n_neighbors: int | None = None
) -> float:
    """Share of the truly nearest items that were found, in percent.

    Parameters
    ----------
    ids : int[q, n]
        What was found, none twice for one query.
    exact_ids : int[q, m]
        What exhaustive search finds, see :func:`exact_search`.
    n_neighbors
        Look at so many of both. Default: at all of them, as many as there are of each.

    Notes
    -----
    Items are compared, not distances: of several at the same distance the search must have chosen
    the same, as :func:`exact_search` and ``HashIndex`` do (the lower id).

    Examples
    --------
    >>> recall_at([[4, 7], [1, 2]], [[7, 5], [2, 1]])
    75.0
    """
    found = checked_ids("ids", ids, None)
    exact = checked_ids("exact_ids", exact_ids, None)
    if len(found) != len(exact):
        raise ValueError(f"ids has {len(found)} rows, exact_ids has {len(exact)}")
    if n_neighbors is not None:
        found = found[:, : checked_depth(n_neighbors, found.shape[1])]
        exact = exact[:, : checked_depth(n_neighbors, exact.shape[1])]
    there = exact >= 0
    share = 0.0
    for start in range(0, len(exact), _CHUNK):
        rows = slice(start, start + _CHUNK)
        hit = (exact[rows, :, None] == found[rows, None, :]).any(axis=2) & there[rows]
        share += float((hit.sum(axis=1) / np.maximum(there[rows].sum(axis=1), 1)).sum())
    return 100.0 * share / len(exact)


def speedup_factor(candidates: npt.ArrayLike, n_items: int) -> float:
    """Size of the database divided by the mean number of items that a query looks at (SUF).

    Parameters
    ----------
    candidates : int[q]
        Items that each query looked at.
    n_items
        Items that it would look at in an exhaustive search: for queries that are items themselves
        one less than there are.

    Returns
    -------
    float
        Infinite if no query looked at anything.

    Examples
    --------
    >>> speedup_factor([10, 20, 30], 1000)
    50.0
    """
    counts = as_array("candidates", candidates)
    if counts.ndim != 1 or len(counts) == 0:
        raise ValueError(f"candidates has shape {counts.shape}, must be (q,) with q >= 1")
    if counts.dtype.kind not in "iu" or bool((counts < 0).any()):
        raise ValueError("candidates must be integers >= 0")
    total = int(counts.sum(dtype=np.int64))
    size = checked_count("n_items", n_items)
    return size * len(counts) / total if total else math.inf


def _right(
    ids: npt.ArrayLike,
    query_labels: npt.ArrayLike,
    item_labels: npt.ArrayLike,
    n_neighbors: int | None,
) -> tuple[npt.NDArray[np.bool_], Ints, Ints]:
    names = checked_labels("item_labels", item_labels)
    found = checked_ids("ids", ids, len(names))
    wanted = checked_labels("query_labels", query_labels, len(found), "ids")
    queries, items, _ = joint_labels(wanted, names)
    found = found[:, : checked_depth(n_neighbors, found.shape[1])]
    return right_results(found, queries, items), queries, items
