"""Metrics of search results. Results are row numbers of items, best first, padded with -1."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._validate import as_array, checked_count, checked_labels, name_rows

Ints = npt.NDArray[np.int64]

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
        Row numbers of the results, best first. -1 stands for no result, and counts as wrong.
    query_labels : int or str[q]
    item_labels : int or str[n_items]
    n_neighbors
        Use only this many results per query. Default: all of them.

    Examples
    --------
    >>> precision_at([[0, 2], [1, -1]], ["cat", "dog"], ["cat", "dog", "cat"])
    75.0
    >>> precision_at([[0, 2], [1, -1]], ["cat", "dog"], ["cat", "dog", "cat"], n_neighbors=1)
    100.0
    """
    right = _compare(ids, query_labels, item_labels, n_neighbors)[0]
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

    The average precision of a query is the sum of the precisions at the ranks of its right
    results, divided by the number of right results that it could have: its class in the database,
    or ``n_neighbors`` if that is less. A query whose class the database does not have counts 0.

    Arguments are those of :func:`precision_at`; with ``same_set`` query i is item i, and does not
    find itself.

    Examples
    --------
    >>> share = mean_average_precision([[1, 0, 2]], ["cat"], ["cat", "dog", "cat"])
    >>> round(share, 3)  # (1/2 + 2/3) / 2
    58.333
    """
    right, queries, items, _ = _compare(ids, query_labels, item_labels, n_neighbors)
    if same_set and len(queries) != len(items):
        raise ValueError(f"same_set: {len(queries)} queries, {len(items)} items: must be equal")
    in_class = np.bincount(items, minlength=1 + int(queries.max()))[queries] - int(same_set)
    return average_precision(right, in_class)


def average_precision(right: npt.NDArray[np.bool_], in_class: Ints) -> float:
    """Mean average precision of results (q, n), from the number of items in each query's class."""
    ranks = np.arange(1, right.shape[1] + 1)
    total = (right * (np.cumsum(right, axis=1) / ranks)).sum(axis=1)
    possible = np.minimum(in_class, right.shape[1])
    return 100.0 * float((total / np.maximum(possible, 1)).mean())


def recall_at(
    ids: npt.ArrayLike, exact_ids: npt.ArrayLike, *, n_neighbors: int | None = None
) -> float:
    """Share of the truly nearest items among the results, in percent.

    ``ids`` (q, n) are results, none twice for one query; ``exact_ids`` (q, m) those of
    :func:`exact_search`. Items are compared, not distances: among items at equal distance both
    searches must prefer the same, as :func:`exact_search` and ``HashIndex`` do (the lower id).

    Examples
    --------
    >>> recall_at([[4, 7], [1, 2]], [[7, 5], [2, 1]])
    75.0
    """
    results = _checked_ids("ids", ids, None)
    exact = _checked_ids("exact_ids", exact_ids, None)
    if len(results) != len(exact):
        raise ValueError(f"ids has {len(results)} rows, exact_ids has {len(exact)}")
    if n_neighbors is not None:
        results = results[:, : _checked_columns(n_neighbors, results.shape[1])]
        exact = exact[:, : _checked_columns(n_neighbors, exact.shape[1])]
    present = exact >= 0
    share = 0.0
    for start in range(0, len(exact), _CHUNK):
        rows = slice(start, start + _CHUNK)
        hit = (exact[rows, :, None] == results[rows, None, :]).any(axis=2) & present[rows]
        share += float((hit.sum(axis=1) / np.maximum(present[rows].sum(axis=1), 1)).sum())
    return 100.0 * share / len(exact)


def speedup_factor(candidates: npt.ArrayLike, n_items: int) -> float:
    """Size of the database divided by the mean number of candidates of a query (SUF).

    ``n_items`` are the candidates of an exhaustive search: for queries that are items themselves
    one less than there are items. Infinite if no query had a candidate.

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


def bucket_nmi(bucket_ids: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Normalised mutual information of buckets and classes, in percent.

    Normalised by the arithmetic mean of the two entropies; 100 if both are one group. With
    several buckets per item (n, sparsity), the first of each counts, which is its best.

    Examples
    --------
    >>> bucket_nmi([7, 7, 3, 3], ["cat", "cat", "dog", "dog"])
    100.0
    >>> bucket_nmi([7, 3, 7, 3], ["cat", "cat", "dog", "dog"])
    0.0
    """
    buckets = as_array("bucket_ids", bucket_ids)
    if buckets.ndim == 2 and buckets.shape[1] > 0:
        buckets = buckets[:, 0]
    if buckets.ndim != 1 or len(buckets) == 0:
        raise ValueError(f"bucket_ids has shape {buckets.shape}, must be (n,) or (n, sparsity)")
    if buckets.dtype.kind not in "iu":
        raise ValueError(f"bucket_ids has dtype {buckets.dtype}, must be integers")
    names = checked_labels("labels", labels, len(buckets), "bucket_ids")
    one = np.unique(buckets, return_inverse=True)[1].astype(np.int64)
    two = np.unique(names, return_inverse=True)[1].astype(np.int64)
    mean = 0.5 * (_entropy(one) + _entropy(two))
    if mean == 0.0:
        return 100.0
    # Mutual information is the sum of the entropies minus the joint one.
    both = np.unique(one * (two.max() + 1) + two, return_inverse=True)[1].astype(np.int64)
    shared = 2 * mean - _entropy(both)
    return float(100.0 * min(max(shared / mean, 0.0), 1.0))


def _entropy(groups: Ints) -> float:
    share = np.bincount(groups) / len(groups)
    return float(-(share * np.log(share)).sum())


# -- per class -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ClassMetrics:
    """Metrics of the queries of each class.

    Attributes
    ----------
    labels : array[c]
        Classes of the queries, ascending.
    n_queries : int64[c]
    n_items : int64[c]
        Items of the class in the database.
    precision : float64[c]
        Share of right results, in percent.
    candidates : float64[c]
        Mean number of candidates.
    """

    labels: npt.NDArray[Any]
    n_queries: npt.NDArray[np.int64]
    n_items: npt.NDArray[np.int64]
    precision: npt.NDArray[np.float64]
    candidates: npt.NDArray[np.float64]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the metrics as lists, to be written as JSON."""
        return {name: values.tolist() for name, values in asdict(self).items()}


def per_class(
    ids: npt.ArrayLike,
    candidates: npt.ArrayLike,
    query_labels: npt.ArrayLike,
    item_labels: npt.ArrayLike,
) -> ClassMetrics:
    """Precision and candidates for the queries of each class; see :func:`precision_at`.

    Examples
    --------
    >>> metrics = per_class([[0], [0], [1]], [2, 4, 5], ["cat", "cat", "dog"], ["cat", "cat"])
    >>> metrics.labels.tolist(), metrics.precision.tolist(), metrics.candidates.tolist()
    (['cat', 'dog'], [100.0, 0.0], [3.0, 5.0])
    """
    right, queries, items, classes = _compare(ids, query_labels, item_labels, None)
    counts = as_array("candidates", candidates)
    if counts.shape != (len(right),):
        raise ValueError(f"candidates has shape {counts.shape}, must be ({len(right)},)")
    n_queries = np.bincount(queries, minlength=len(classes))
    n_items = np.bincount(items, minlength=len(classes))
    used = n_queries > 0
    share = np.bincount(queries, right.mean(axis=1), len(classes))[used] / n_queries[used]
    mean_candidates = np.bincount(queries, counts, len(classes))[used] / n_queries[used]
    return ClassMetrics(
        classes[used], n_queries[used], n_items[used], 100.0 * share, mean_candidates
    )


# -- checks --------------------------------------------------------------------------------------


def _compare(
    ids: object, query_labels: object, item_labels: object, n_neighbors: int | None
) -> tuple[npt.NDArray[np.bool_], Ints, Ints, npt.NDArray[Any]]:
    """Which results are right, bool[q, n]; class codes of queries and items; class names."""
    item_names = checked_labels("item_labels", item_labels)
    results = _checked_ids("ids", ids, len(item_names))
    query_names = checked_labels("query_labels", query_labels, len(results), "ids")
    results = results[:, : _checked_columns(n_neighbors, results.shape[1])]
    queries, items, classes = joint_codes(query_names, item_names)
    return right_results(results, queries, items), queries, items, classes


def joint_codes(
    query_labels: npt.NDArray[Any], item_labels: npt.NDArray[Any]
) -> tuple[Ints, Ints, npt.NDArray[Any]]:
    """Number the classes of queries and items together: codes of both, and the class names."""
    if len(query_labels) and len(item_labels):
        kinds = query_labels.dtype.kind, item_labels.dtype.kind
        if (kinds[0] == "U") != (kinds[1] == "U"):
            raise ValueError(
                f"query_labels has dtype {query_labels.dtype}, item_labels has "
                f"{item_labels.dtype}: both must be integers or both strings"
            )
    names, codes = np.unique(np.concatenate([query_labels, item_labels]), return_inverse=True)
    codes = codes.astype(np.int64)
    return codes[: len(query_labels)], codes[len(query_labels) :], names


def right_results(ids: Ints, query_codes: Ints, item_codes: Ints) -> npt.NDArray[np.bool_]:
    """Which results have the class of their query, bool[q, n]; a missing one has not."""
    if len(item_codes) == 0:
        return np.zeros(ids.shape, dtype=np.bool_)
    return np.asarray((item_codes[ids] == query_codes[:, None]) & (ids >= 0))


def _checked_ids(name: str, value: object, n_items: int | None) -> Ints:
    """Return results as int64[q, n]: row numbers of items, -1 where there is none."""
    ids = as_array(name, value)
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ValueError(f"{name} has shape {ids.shape}, must be (q, n) with n >= 1")
    if len(ids) == 0:
        raise ValueError(f"{name} has shape {ids.shape}: there must be at least one query")
    if ids.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {ids.dtype}, must be integers")
    ids = ids.astype(np.int64, copy=False)
    bad = (ids < -1).any(axis=1)
    if n_items is not None:
        bad |= (ids >= n_items).any(axis=1)
    if bad.any():
        bound = "" if n_items is None else f" and < {n_items}, the number of items"
        raise ValueError(f"{name} must be >= -1{bound}, is not in {name_rows(np.asarray(bad))}")
    return ids


def _checked_columns(n_neighbors: int | None, n_columns: int) -> int:
    """Return how many results per query to use: all of them for None."""
    count = n_columns if n_neighbors is None else checked_count("n_neighbors", n_neighbors)
    if count > n_columns:
        raise ValueError(f"n_neighbors={count} must be <= {n_columns}, the results per query")
    return count
