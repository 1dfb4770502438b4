"""Nearest neighbours among fixed, grouped vectors, such as prototypes, in the nearest groups.

One compiled call, without the features of an index: no ids, no changes, no filters. The result for
a point is the same alone and in a batch.
"""

from __future__ import annotations

import numpy as np

from hashcade._kernels import helper, kernel
from hashcade.index.cancel import NEVER, Cancel, is_cancelled
from hashcade.index.probe import is_above, pop, push, replace_root
from hashcade.index.segment import Float32s, Int64s

_CHUNK = 4096  # points of one call: a group is read once for many of them, and a call is soon done
_LANES = 16  # float32 numbers of a SIMD register


class GroupedVectors:
    """Vectors, float32[n, dim], in groups, int64[n]: 0, 1, 2, ..., none of them empty."""

    def __init__(self, vectors: Float32s, groups: Int64s) -> None:
        self._rows = np.argsort(groups, kind="stable")
        self._vectors = padded(vectors[self._rows])  # group by group
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(groups))])
        sums = np.add.reduceat(self._vectors, self._starts[:-1], axis=0, dtype=np.float64)
        self._means = (sums / np.diff(self._starts)[:, None]).astype(np.float32)
        self._groups = np.arange(len(self._means))

    @property
    def arrays(self) -> tuple[Float32s, Int64s, Int64s, Float32s, Int64s]:
        """Means and numbers of the groups, their starts, and vectors and rows, group by group.

        Means and vectors are :func:`padded`, and so must be the points that they are compared with.
        """
        return self._means, self._groups, self._starts, self._vectors, self._rows

    def nearest(
        self, points: Float32s, n_neighbors: int, n_groups: int, cancel: Cancel | None = None
    ) -> Int64s:
        """Rows of the nearest vectors, nearest first, int64[q, n_neighbors].

        Only vectors of the ``n_groups`` groups with the nearest means are compared; of equally near
        ones the lower row comes first. If there are too few, the last one is repeated.
        """
        rows = np.empty((len(points), n_neighbors), np.int64)
        groups = np.empty((min(len(points), _CHUNK), min(n_groups, len(self._means))), np.int64)
        flag = NEVER if cancel is None else cancel
        for start in range(0, len(points), _CHUNK):
            part = padded(points[start : start + _CHUNK])
            places = groups[: len(part)], rows[start : start + len(part)]
            _nearest(part, *self.arrays, *places, flag.address)
            flag.check(f"after {start:,} of {len(points):,} items")
        return rows


def padded(vectors: Float32s) -> Float32s:
    """Vectors with zeros at their ends, up to whole registers: single numbers take as long."""
    n, dim = vectors.shape
    if dim % _LANES == 0:
        return vectors
    longer = np.zeros((n, -(-dim // _LANES) * _LANES), np.float32)  # np.pad takes ten times as long
    longer[:, :dim] = vectors
    return longer


@helper(fastmath={"reassoc", "contract", "nsz"})
def _squared_distances(vectors, row, last, points, q):  # type: ignore[no-untyped-def]
    """Return the squared distances of a point to four rows: each number of it is loaded once.

    There are ``last`` rows; in place of those beyond the end the last one is taken. So each row is
    summed in the same order, whatever its position.
    """
    row_b, row_c, row_d = min(row + 1, last - 1), min(row + 2, last - 1), min(row + 3, last - 1)
    a, b, c, d = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for j in range(vectors.shape[1]):
        value = points[q, j]
        difference = vectors[row, j] - value
        a += difference * difference
        difference = vectors[row_b, j] - value
        b += difference * difference
        difference = vectors[row_c, j] - value
        c += difference * difference
        difference = vectors[row_d, j] - value
        d += difference * difference
    return a, b, c, d


@helper()
def _scan(vectors, first, last, row_ids, points, q, distances, nearest, size):  # type: ignore[no-untyped-def]
    """Compare a point with rows first..last - 1, and collect the ids of the nearest in a heap.

    ``distances[q]`` and ``nearest[q]`` are the heap, of ``size`` so far, with the farthest at the
    root; returns its new size.
    """
    capacity = distances.shape[1]
    for start in range(first, last, 4):
        a, b, c, d = _squared_distances(vectors, start, last, points, q)
        if size == capacity and min(min(a, b), min(c, d)) > distances[q, 0]:
            continue  # most rows
        row = start
        for distance in (a, b, c, d):
            if row == last:
                break
            if size < capacity:
                push(distances, nearest, q, size, distance, row_ids[row])
                size += 1
            elif is_above(distances[q, 0], nearest[q, 0], distance, row_ids[row]):
                replace_root(distances, nearest, q, capacity, distance, row_ids[row])
            row += 1
    return size


@helper()
def _sort(distances, rows, q, size):  # type: ignore[no-untyped-def]
    """Sort a heap of ``size``, nearest first, and repeat its last row up to the end."""
    for end in range(size - 1, 0, -1):
        distances[q, end], rows[q, end] = pop(distances, rows, q, end + 1)
    for k in range(size, rows.shape[1]):
        rows[q, k] = rows[q, size - 1]


@helper()
def nearest_to_one(points, means, groups, starts, vectors, row_ids, n_groups, rows):  # type: ignore[no-untyped-def]
    """Write what :meth:`GroupedVectors.nearest` returns for one point to ``rows``, int64[1, n]."""
    one = np.int64(0)
    n_groups = min(n_groups, means.shape[0])
    near_groups = np.empty((1, n_groups), np.int64)
    if n_groups < means.shape[0]:
        distances = np.empty((1, n_groups), np.float32)
        _scan(means, one, means.shape[0], groups, points, one, distances, near_groups, one)
    distances = np.empty(rows.shape, np.float32)
    size = one
    for k in range(n_groups):
        group = np.int64(k)
        if n_groups < means.shape[0]:
            group = near_groups[0, k]
        first, last = starts[group], starts[group + 1]
        size = _scan(vectors, first, last, row_ids, points, one, distances, rows, size)
    _sort(distances, rows, one, size)


@kernel()
def _nearest(  # type: ignore[no-untyped-def]
    points, means, groups, starts, vectors, row_ids, near_groups, rows, cancel
):
    """Write the nearest groups of each point to ``near_groups``, the nearest vectors to ``rows``.

    Both are undefined if the flag at the address ``cancel`` is set meanwhile.
    """
    n_points, n_groups = near_groups.shape
    distances = np.empty((n_points, n_groups), np.float32)
    ends = np.zeros(means.shape[0] + 1, np.int64)
    for q in range(n_points):
        if is_cancelled(cancel):
            return
        if n_groups < means.shape[0]:
            _scan(means, 0, means.shape[0], groups, points, q, distances, near_groups, np.int64(0))
        for k in range(n_groups):
            if n_groups == means.shape[0]:  # all of them, in any order
                near_groups[q, k] = k
            ends[near_groups[q, k] + 1] += 1
    # Group by group: its vectors are read once for all points that visit it.
    for group in range(means.shape[0]):
        ends[group + 1] += ends[group]
    positions = ends.copy()
    queue = np.empty(n_points * n_groups, np.int64)
    for q in range(n_points):
        for k in range(n_groups):
            queue[positions[near_groups[q, k]]] = q
            positions[near_groups[q, k]] += 1
    distances = np.empty((n_points, rows.shape[1]), np.float32)
    sizes = np.zeros(n_points, np.int64)
    for group in range(means.shape[0]):
        first, last = starts[group], starts[group + 1]
        for position in range(ends[group], ends[group + 1]):
            if is_cancelled(cancel):
                return
            q = queue[position]
            sizes[q] = _scan(vectors, first, last, row_ids, points, q, distances, rows, sizes[q])
    for q in range(n_points):
        _sort(distances, rows, q, sizes[q])


def warmup() -> None:
    """Compile it, or load it from the cache."""
    vectors = np.zeros((1, 1), np.float32)
    GroupedVectors(vectors, np.zeros(1, np.int64)).nearest(vectors, 1, 1)
