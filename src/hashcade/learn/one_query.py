"""One query through a network with one hidden layer, in one compiled call.

A product of matrices with one row is bound by reading the weights and by the calls around it. Here
each is read once, those of hidden units that are off not at all, and there is one call: two thirds
of the time. Sums are in another order than in a batch, as those of numpy are for one row.
"""

from __future__ import annotations

import numpy as np

from hashcade._kernels import helper, kernel


@helper(fastmath={"reassoc", "contract", "nsz"})
def _add_rows(values, rows, n_rows, weight, sums):  # type: ignore[no-untyped-def]
    """Add some rows of a matrix, each times its value, four at a time: sums are read less often."""
    at = 0
    while at + 4 <= n_rows:
        a, b, c, d = rows[at], rows[at + 1], rows[at + 2], rows[at + 3]
        va, vb, vc, vd = values[a], values[b], values[c], values[d]
        for j in range(sums.shape[0]):
            sums[j] += va * weight[a, j] + vb * weight[b, j] + vc * weight[c, j] + vd * weight[d, j]
        at += 4
    for k in range(at, n_rows):
        for j in range(sums.shape[0]):
            sums[j] += values[rows[k]] * weight[rows[k], j]


@kernel()
def point_of(item, hidden_weight, hidden_bias, weight, bias, point):  # type: ignore[no-untyped-def]
    """Write the unit vector that the network makes of one item to ``point``, float32[1, size].

    The last layer sees the hidden units and, if its matrix has more rows, the item beside them.
    """
    n_numbers, n_units = hidden_weight.shape
    values = np.empty(n_units + n_numbers, np.float32)
    rows = np.empty(n_units + n_numbers, np.int64)
    for row in range(rows.shape[0]):  # by hand: numba compiles an assignment for seconds
        rows[row] = row
        values[row] = hidden_bias[row] if row < n_units else item[0, row - n_units]
    _add_rows(values[n_units:], rows, n_numbers, hidden_weight, values[:n_units])
    n_rows = 0
    for row in range(weight.shape[0]):
        if row >= n_units or values[row] > 0.0:
            rows[n_rows] = row
            n_rows += 1
    for j in range(point.shape[1]):
        point[0, j] = bias[j]
    _add_rows(values, rows, n_rows, weight, point[0])
    square = np.float32(0.0)
    for j in range(point.shape[1]):
        square += point[0, j] * point[0, j]
    length = max(np.float32(np.sqrt(square)), np.float32(1e-12))
    for j in range(point.shape[1]):
        point[0, j] /= length


def warmup() -> None:
    """Compile it, or load it from the cache."""
    one = np.zeros((1, 1), np.float32)
    point_of(one, one, one[0], one, one[0], one.copy())
