"""The nearest of vectors that stay, such as prototypes: those of the groups with the nearest means.

One compiled call without the freedom of an index: no ids, no changes, no filters. The result for a
point is the same alone and in a batch.
"""

from __future__ import annotations

import numpy as np

from hashcade._kernels import helper, kernel
from hashcade.index.cancel import NEVER, Cancel, is_cancelled
from hashcade.index.probe import is_above, pop, push, replace_root
from hashcade.index.segment import Float32s, Int64s

_CHUNK = 4096  # points of one call: enough for each group to be read once for many, and soon done


class GroupedVectors:
    """Vectors, float32[n, dim], in groups, int64[n]: 0, 1, 2, ..., of which each occurs."""

    def __init__(self, vectors: Float32s, groups: Int64s) -> None:
        self._rows = np.argsort(groups, kind="stable")
        self._vectors = vectors[self._rows]  # those of a group side by side
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(groups))])
        sums = np.add.reduceat(self._vectors, self._starts[:-1], axis=0, dtype=np.float64)
        self._means = (sums / np.diff(self._starts)[:, None]).astype(np.float32)
        self._groups = np.arange(len(self._means))

    def nearest(
        self, points: Float32s, n_neighbors: int, n_groups: int, cancel: Cancel | None = None
    ) -> Int64s:
        """Rows of the nearest vectors, nearest first, int64[q, n_neighbors].

        Those of the ``n_groups`` groups whose means are nearest are compared; of equally near ones
        the lower row comes first. If there are too few, the last one is repeated.
        """
        rows = np.empty((len(points), n_neighbors), np.int64)
        groups = np.empty((min(len(points), _CHUNK), min(n_groups, len(self._means))), np.int64)
        flag = NEVER if cancel is None else cancel
        for at in range(0, len(points), _CHUNK):
            part = points[at : at + _CHUNK]
            _nearest(
                part, self._means, self._groups, self._starts, self._vectors, self._rows,
                groups[: len(part)], rows[at : at + len(part)], flag.address,
            )  # fmt: skip
            flag.check(f"after {at:,} of {len(points):,} items")
        return rows


@helper(fastmath={"reassoc", "contract", "nsz"})
def _gap(vectors, row, points, q):  # type: ignore[no-untyped-def]
    """Return the squared distance of two rows."""
    total = np.float32(0.0)
    for j in range(vectors.shape[1]):
        difference = vectors[row, j] - points[q, j]
        total += difference * difference
    return total


@helper()
def _scan(vectors, first, last, names, points, q, gaps, nearest, size):  # type: ignore[no-untyped-def]
    """Compare a point with rows first..last - 1, and keep the names of the nearest in a heap.

    ``gaps[q]`` and ``nearest[q]`` have ``size`` so far, the farthest at the root; returns their
    number.
    """
    room = gaps.shape[1]
    for row in range(first, last):
        gap = _gap(vectors, row, points, q)
        if size < room:
            push(gaps, nearest, q, size, gap, names[row])
            size += 1
        elif is_above(gaps[q, 0], nearest[q, 0], gap, names[row]):
            replace_root(gaps, nearest, q, room, gap, names[row])
    return size


@kernel()
def _nearest(  # type: ignore[no-untyped-def]
    points, means, groups, starts, vectors, names, near, rows, cancel
):
    """Write the nearest groups of each point to ``near``, the names of vectors to ``rows``.

    Both are undefined if the flag at the address ``cancel`` is set meanwhile.
    """
    n_points, n_groups = near.shape
    gaps = np.empty((n_points, n_groups), np.float32)
    ends = np.zeros(means.shape[0] + 1, np.int64)
    for q in range(n_points):
        if is_cancelled(cancel):
            return
        if n_groups < means.shape[0]:
            _scan(means, 0, means.shape[0], groups, points, q, gaps, near, np.int64(0))
        for k in range(n_groups):
            if n_groups == means.shape[0]:  # all of them, in any order
                near[q, k] = k
            ends[near[q, k] + 1] += 1
    # Group by group: its vectors are read once for all points that look at them.
    for group in range(means.shape[0]):
        ends[group + 1] += ends[group]
    places = ends.copy()
    queue = np.empty(n_points * n_groups, np.int64)
    for q in range(n_points):
        for k in range(n_groups):
            queue[places[near[q, k]]] = q
            places[near[q, k]] += 1
    gaps = np.empty((n_points, rows.shape[1]), np.float32)
    sizes = np.zeros(n_points, np.int64)
    for group in range(means.shape[0]):
        first, last = starts[group], starts[group + 1]
        for place in range(ends[group], ends[group + 1]):
            if is_cancelled(cancel):
                return
            q = queue[place]
            sizes[q] = _scan(vectors, first, last, names, points, q, gaps, rows, sizes[q])
    for q in range(n_points):
        for end in range(sizes[q] - 1, 0, -1):  # the heap in order, the nearest first
            gaps[q, end], rows[q, end] = pop(gaps, rows, q, end + 1)
        for k in range(sizes[q], rows.shape[1]):
            rows[q, k] = rows[q, sizes[q] - 1]


def warmup() -> None:
    """Compile it, or load it from the cache."""
    vectors = np.zeros((1, 1), np.float32)
    GroupedVectors(vectors, np.zeros(1, np.int64)).nearest(vectors, 1, 1)
