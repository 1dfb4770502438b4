"""What a trained hasher is worth on items set aside: precision, speed-up, NMI of buckets.

A plain search for use while training, over arrays that fit in memory. Queries and database are
the same items, and a query never finds itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.codes._shape import CodeShape
from hashcade.learn._codebook import assign_to_book, bucket_sums

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SearchFigures:
    """Figures of one search. ``precision`` is in percent, as in the paper."""

    precision: float
    speedup: float


def search_figures(
    scores: Floats,
    vectors: Floats,
    labels: npt.NDArray[Any],
    shape: CodeShape,
    *,
    n_neighbors: int,
    codebook: Ints | None = None,
    fill: bool = True,
) -> SearchFigures:
    """Search every item in the buckets of all others, and re-rank by euclidean distance.

    Parameters
    ----------
    scores : float[n, depth, width]
        Slot scores; they give the buckets of an item, both as query and as database item.
    vectors : float[n, size]
        Vectors for re-ranking.
    labels : [n]
        What counts as right.
    n_neighbors
        Results per query. A missing one counts as wrong.
    codebook : int64[n_codes, sparsity], optional
        Items go to the best code of this book, instead of those at the ends of their paths.
    fill
        Whether a query with too few candidates goes on to its next buckets: in lexicographic
        order of its sorted slots (last level fastest), or with a code book in the order of the
        sums of their scores. What it looked at counts.

    Returns
    -------
    SearchFigures
        Precision among ``n_neighbors`` results, and database size / mean number of candidates.
    """
    if codebook is None:
        buckets = shape.scores_to_bucket_ids(scores)  # (n, sparsity), best first
    else:
        buckets = assign_to_book(scores, codebook, shape)
    table = _Table(buckets)
    occupied = shape.paths(table.ids)  # (n_occupied, depth)
    place = shape.width ** np.arange(shape.depth - 1, -1, -1, dtype=np.int64)
    n_right = n_candidates = 0
    for query in range(len(buckets)):
        found = table.members(np.isin(table.ids, buckets[query]), query)
        if fill and len(found) < n_neighbors:
            if codebook is not None:
                turn = -bucket_sums(scores[query : query + 1], table.ids, shape)[0]
                turn[np.isin(table.ids, buckets[query])] = -np.inf
            else:
                # Read with ranks for slots, the path of a bucket is its turn in the order.
                rank = np.argsort(np.argsort(-scores[query], axis=1, kind="stable"), axis=1)
                turn = (rank[np.arange(shape.depth), occupied] * place).sum(axis=1)
            order = np.argsort(turn, kind="stable")
            found = table.fill(order, query, n_neighbors, shape.sparsity)
        n_candidates += len(found)
        gaps = np.square(vectors[found] - vectors[query]).sum(axis=1)
        best = found[np.argsort(gaps, kind="stable")[:n_neighbors]]
        n_right += int((labels[best] == labels[query]).sum())
    n = len(buckets)
    return SearchFigures(
        precision=100.0 * n_right / (n * n_neighbors),
        speedup=(n - 1) * n / n_candidates if n_candidates else math.inf,
    )


class _Table:
    """Items by bucket: ``ids[b]`` holds ``items[starts[b]:starts[b + 1]]``."""

    def __init__(self, buckets: Ints) -> None:
        flat = buckets.ravel()
        order = np.argsort(flat, kind="stable")
        self.ids, first = np.unique(flat[order], return_index=True)
        self.starts = np.append(first, len(flat))
        self.items = order // buckets.shape[1]

    def members(self, chosen: npt.NDArray[np.bool_], query: int) -> Ints:
        """Items of the chosen buckets, without the query, each once, ascending."""
        parts = [self.items[self.starts[b] : self.starts[b + 1]] for b in np.flatnonzero(chosen)]
        found: Ints = np.unique(np.concatenate(parts)) if len(parts) > 1 else parts[0]
        return np.asarray(found[found != query])

    def fill(self, order: Ints, query: int, n_neighbors: int, sparsity: int) -> Ints:
        """Items of the first buckets in this order, until there are ``n_neighbors``."""
        chosen = np.zeros(len(self.ids), np.bool_)
        chosen[order[:sparsity]] = True  # the query's own buckets are its first
        found = self.members(chosen, query)
        for b in order[sparsity:]:
            if len(found) >= n_neighbors:
                break
            chosen[b] = True
            found = self.members(chosen, query)
        return found


def exhaustive_precision(
    vectors: Floats, labels: npt.NDArray[Any], *, n_neighbors: int, chunk: int = 512
) -> float:
    """Precision in percent of a search among all other items; memory for ``chunk`` rows."""
    squares = np.square(vectors).sum(axis=1)
    n_others = min(n_neighbors, len(vectors) - 1)
    n_right = 0
    for start in range(0, len(vectors), chunk):
        rows = np.arange(start, min(start + chunk, len(vectors)))
        gaps = squares - 2.0 * (vectors[rows] @ vectors.T)  # ‖query‖² does not change the order
        gaps[np.arange(len(rows)), rows] = np.inf
        best = np.argpartition(gaps, n_others - 1, axis=1)[:, :n_others]  # never the query
        n_right += int((labels[best] == labels[rows][:, None]).sum())
    return 100.0 * n_right / (len(vectors) * n_neighbors)


def bucket_nmi(buckets: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    """Normalised mutual information of two groupings, in percent.

    Normalised by the arithmetic mean of the entropies; 100 if both are one group.
    """
    _, one = np.unique(buckets, return_inverse=True)
    _, two = np.unique(labels, return_inverse=True)
    both = one * (two.max() + 1) + two
    mean = 0.5 * (_entropy(one) + _entropy(two))
    # Mutual information = sum of the entropies minus the joint one.
    return 100.0 * max(0.0, 2 * mean - _entropy(both)) / mean if mean > 0 else 100.0


def _entropy(groups: npt.NDArray[Any]) -> float:
    counts = np.unique(groups, return_counts=True)[1]
    share = counts / counts.sum()
    return float(-(share * np.log(share)).sum())
