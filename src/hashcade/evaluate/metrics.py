"""Metrics of search results. Results are row numbers of items, best first, padded with -1."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade._validate import as_array, checked_count, checked_labels, name_rows

Ints = NDArray[np.int64]

_CHUNK = 4096  # rows at a time where a row needs n_neighbors² bytes


def precision_at(
    ids: ArrayLike,
    query_labels: ArrayLike,
    item_labels: ArrayLike,
    *,
    n_neighbors: int | None = None,
) -> float:
    """Share of results with the label of their query, in percent (Pr@k).

    ``ids`` are row numbers of items, int[q, n], best first; -1 is a missing result, and counts as
    wrong. Labels are integers or strings. With ``n_neighbors`` only the first ones count.

    >>> precision_at([[0, 2], [1, -1]], ["cat", "dog"], ["cat", "dog", "cat"])
    75.0
    """
    is_correct = _compare(ids, query_labels, item_labels, n_neighbors)[0]
    return 100.0 * float(is_correct.mean())


def mean_average_precision(
    ids: ArrayLike,
    query_labels: ArrayLike,
    item_labels: ArrayLike,
    *,
    n_neighbors: int | None = None,
    same_set: bool = False,
) -> float:
    """Mean over the queries of the average precision of their results, in percent.

    That is the sum of the precisions at the ranks of a query's correct results, divided by the
    largest possible number of these: the size of its class in the database, at most
    ``n_neighbors``; 0 without any. With ``same_set`` query i is item i, and is not among its
    results. See :func:`precision_at`.

    >>> round(mean_average_precision([[1, 0, 2]], ["cat"], ["cat", "dog", "cat"]), 3)
    58.333
    """
    is_correct, queries, items, _ = _compare(ids, query_labels, item_labels, n_neighbors)
    if same_set and len(queries) != len(items):
        raise ValueError(f"same_set: {len(queries)} queries, {len(items)} items: must be equal")
    n_relevant = np.bincount(items, minlength=1 + int(queries.max()))[queries] - int(same_set)
    return average_precision(is_correct, n_relevant)


def average_precision(is_correct: NDArray[np.bool_], n_relevant: Ints) -> float:
    """Mean average precision of results (q, n), from the number of relevant items per query."""
    ranks = np.arange(1, is_correct.shape[1] + 1)
    total = (is_correct * (np.cumsum(is_correct, axis=1) / ranks)).sum(axis=1)
    n_possible = np.minimum(n_relevant, is_correct.shape[1])
    return 100.0 * float((total / np.maximum(n_possible, 1)).mean())


def recall_at(ids: ArrayLike, exact_ids: ArrayLike, *, n_neighbors: int | None = None) -> float:
    """Share of the truly nearest items among the results, in percent.

    ``ids`` (q, n) are results, unique for each query; ``exact_ids`` (q, m) those of
    :func:`exact_search`. Ids are compared, not distances: both searches must break ties in the
    same way, as :func:`exact_search` and ``HashIndex`` do (the lower id first).

    >>> recall_at([[4, 7], [1, 2]], [[7, 5], [2, 1]])
    75.0
    """
    results = _checked_ids("ids", ids, n_neighbors)
    exact = _checked_ids("exact_ids", exact_ids, n_neighbors)
    if len(results) != len(exact):
        raise ValueError(f"ids has {len(results)} rows, exact_ids has {len(exact)}")
    exists = exact >= 0
    total = 0.0
    for start in range(0, len(exact), _CHUNK):
        rows = slice(start, start + _CHUNK)
        is_found = (exact[rows, :, None] == results[rows, None, :]).any(axis=2) & exists[rows]
        total += float((is_found.sum(axis=1) / np.maximum(exists[rows].sum(axis=1), 1)).sum())
    return 100.0 * total / len(exact)


def speedup_factor(candidates: ArrayLike, n_items: int) -> float:
    """Size of the database divided by the mean number of candidates of a query (SUF).

    ``n_items`` is the number of candidates of an exhaustive search: for queries that are items
    themselves, one less than the number of items. Infinite if no query had a candidate.

    >>> speedup_factor([10, 20, 30], 1000)
    50.0
    """
    counts = as_array("candidates", candidates)
    if counts.ndim != 1 or len(counts) == 0:
        raise ValueError(f"candidates has shape {counts.shape}, must be (q,) with q >= 1")
    if counts.dtype.kind not in "iu" or bool((counts < 0).any()):
        raise ValueError("candidates must be integers >= 0")
    total = int(counts.sum(dtype=np.int64))
    return checked_count("n_items", n_items) * len(counts) / total if total else math.inf


def bucket_nmi(bucket_ids: ArrayLike, labels: ArrayLike) -> float:
    """Normalised mutual information of buckets and classes, in percent.

    Normalised by the arithmetic mean of the two entropies; 100 if there is one bucket and one
    class. With several buckets per item (n, sparsity), the first, which is the best, counts.

    >>> bucket_nmi([7, 7, 3, 3], ["cat", "cat", "dog", "dog"])
    100.0
    """
    buckets = as_array("bucket_ids", bucket_ids)
    if buckets.ndim == 2 and buckets.shape[1] > 0:
        buckets = buckets[:, 0]
    if buckets.ndim != 1 or len(buckets) == 0:
        raise ValueError(f"bucket_ids has shape {buckets.shape}, must be (n,) or (n, sparsity)")
    if buckets.dtype.kind not in "iu":
        raise ValueError(f"bucket_ids has dtype {buckets.dtype}, must be integers")
    label_values = checked_labels("labels", labels, len(buckets), "bucket_ids")
    bucket_codes = np.unique(buckets, return_inverse=True)[1].astype(np.int64)
    class_codes = np.unique(label_values, return_inverse=True)[1].astype(np.int64)
    mean_entropy = 0.5 * (_entropy(bucket_codes) + _entropy(class_codes))
    if mean_entropy == 0.0:
        return 100.0
    # Mutual information is the sum of the entropies minus the joint one.
    pairs = bucket_codes * (class_codes.max() + 1) + class_codes
    pair_codes = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    mutual_information = 2 * mean_entropy - _entropy(pair_codes)
    return float(100.0 * min(max(mutual_information / mean_entropy, 0.0), 1.0))


def _entropy(groups: Ints) -> float:
    share = np.bincount(groups) / len(groups)
    return float(-(share * np.log(share)).sum())


@dataclass(frozen=True, eq=False)
class ClassMetrics:
    """Metrics of the queries of each class."""

    labels: NDArray[Any]  # classes of the queries, ascending
    n_queries: Ints
    n_items: Ints  # of the class in the database
    precision: NDArray[np.float64]  # share of correct results, in percent
    candidates: NDArray[np.float64]  # mean number

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the metrics as lists, to be written as JSON."""
        return {name: values.tolist() for name, values in asdict(self).items()}


def per_class(
    ids: ArrayLike, candidates: ArrayLike, query_labels: ArrayLike, item_labels: ArrayLike
) -> ClassMetrics:
    """Precision and candidates for the queries of each class; see :func:`precision_at`.

    >>> metrics = per_class([[0], [0], [1]], [2, 4, 5], ["cat", "cat", "dog"], ["cat", "cat"])
    >>> metrics.labels.tolist(), metrics.precision.tolist(), metrics.candidates.tolist()
    (['cat', 'dog'], [100.0, 0.0], [3.0, 5.0])
    """
    is_correct, queries, items, classes = _compare(ids, query_labels, item_labels, None)
    counts = as_array("candidates", candidates)
    if counts.shape != (len(is_correct),):
        raise ValueError(f"candidates has shape {counts.shape}, must be ({len(is_correct)},)")
    query_classes, n_queries = np.unique(queries, return_counts=True)
    n_items = np.bincount(items, minlength=len(classes))[query_classes]
    share = np.bincount(queries, is_correct.mean(axis=1))[query_classes] / n_queries
    mean_candidates = np.bincount(queries, counts)[query_classes] / n_queries
    return ClassMetrics(classes[query_classes], n_queries, n_items, 100.0 * share, mean_candidates)


def _compare(
    ids: object, query_labels: object, item_labels: object, n_neighbors: int | None
) -> tuple[NDArray[np.bool_], Ints, Ints, NDArray[Any]]:
    """Which results are correct, bool[q, n]; class codes of queries and items; class names."""
    item_names = checked_labels("item_labels", item_labels)
    results = _checked_ids("ids", ids, n_neighbors, len(item_names))
    query_names = checked_labels("query_labels", query_labels, len(results), "ids")
    queries, items, classes = joint_codes(query_names, item_names)
    return correct_results(results, queries, items), queries, items, classes


def joint_codes(
    query_labels: NDArray[Any], item_labels: NDArray[Any]
) -> tuple[Ints, Ints, NDArray[Any]]:
    """Encode the labels of queries and items together: codes of both, and the class names."""
    kinds = [labels.dtype.kind == "U" for labels in (query_labels, item_labels) if len(labels)]
    if len(set(kinds)) == 2:
        dtypes = f"query_labels has dtype {query_labels.dtype}, item_labels has {item_labels.dtype}"
        raise ValueError(f"{dtypes}: both must be integers or both strings")
    names, codes = np.unique(np.concatenate([query_labels, item_labels]), return_inverse=True)
    codes = codes.astype(np.int64)
    return codes[: len(query_labels)], codes[len(query_labels) :], names


def correct_results(ids: Ints, query_codes: Ints, item_codes: Ints) -> NDArray[np.bool_]:
    """Which results have the class of their query, bool[q, n]; missing ones have not."""
    if len(item_codes) == 0:
        return np.zeros(ids.shape, dtype=np.bool_)
    return np.asarray((item_codes[ids] == query_codes[:, None]) & (ids >= 0))


def _checked_ids(
    name: str, value: object, n_neighbors: int | None, n_items: int | None = None
) -> Ints:
    """Return the first ``n_neighbors`` results as int64: row numbers of items, -1 for none."""
    ids = as_array(name, value)
    if ids.ndim != 2 or ids.size == 0:
        raise ValueError(f"{name} has shape {ids.shape}, must be (q, n): at least one query, n > 0")
    if ids.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {ids.dtype}, must be integers")
    bad = ids < -1 if n_items is None else (ids < -1) | (ids >= n_items)
    if bad.any():
        bound = "" if n_items is None else f" and < {n_items}, the number of items"
        raise ValueError(f"{name} must be >= -1{bound}, is not in {name_rows(bad.any(axis=1))}")
    n = ids.shape[1] if n_neighbors is None else checked_count("n_neighbors", n_neighbors)
    if n > ids.shape[1]:
        raise ValueError(f"n_neighbors={n} must be <= {ids.shape[1]}, the results per query")
    return ids[:, :n].astype(np.int64, copy=False)
