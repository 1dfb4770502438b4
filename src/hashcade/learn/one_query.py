"""One query alone: from an item to its point and the nearest prototypes, in one compiled call.

The time of a matrix product with one row is that of reading the weights, and of the calls around
it. Here each weight is read once, as float16, and those of inactive hidden units not at all: a
third of the time. Training rounds these weights, so nothing is lost. The order of sums differs from
a batch, as it does in numpy for one row.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._kernels import float_of_half, helper, kernel, machine_code
from hashcade.index import GroupedVectors, nearest_to_one
from hashcade.learn.assignment import Floats, Ints

_FAST = {"reassoc", "contract", "nsz"}
_FLOAT32 = np.dtype(np.float32)
_NO_CODES = np.empty((0, 1), np.int64)


def rounded_to_half(values: Floats) -> Floats:
    """Values rounded to float16; unchanged if one of them would become infinite."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16).astype(np.float32)
    return rounded if np.isfinite(rounded).all() else values


class OneQuery:
    """A network with a hidden layer beside its input, for one item at a time.

    ``hidden``, float16[units, size], has the weights of a hidden unit in a row; ``last``,
    float16[units + size, point_size], has a row for each hidden unit and number of the item.
    """

    def __init__(
        self, mean: Floats, scale: Floats, hidden: npt.NDArray[np.float16], hidden_bias: Floats,
        last: npt.NDArray[np.float16], last_bias: Floats,
    ) -> None:  # fmt: skip
        bits = hidden.view(np.uint16), last.view(np.uint16)
        layers = (mean, scale.reshape(1), bits[0], hidden_bias, bits[1], last_bias)
        self._layers = tuple(map(_writable, layers))
        self._item_shape, self._point_shape = (1, hidden.shape[1]), (1, last.shape[1])
        no_vectors = np.zeros((1, last.shape[1]), np.float32)
        self._set_prototypes(GroupedVectors(no_vectors, np.zeros(1, np.int64)), _NO_CODES)

    @classmethod
    def of(cls, weights: Mapping[str, npt.NDArray[Any]]) -> OneQuery | None:
        """For a model with these weights; None if they are not rounded to float16."""
        hidden, last = weights["head.0.layer.weight"], weights["vector_head.weight"].T
        if not all((rounded_to_half(layer) == layer).all() for layer in (hidden, last)):
            return None
        return cls(
            weights["prepare.mean"], weights["prepare.scale"],
            np.ascontiguousarray(hidden, np.float16), weights["head.0.layer.bias"],
            np.ascontiguousarray(last, np.float16), weights["vector_head.bias"],
        )  # fmt: skip

    def with_prototypes(self, prototypes: GroupedVectors, codebook: Ints) -> OneQuery:
        """The same network, and prototypes with their buckets, int64[n, sparsity]."""
        other = copy.copy(self)
        other._set_prototypes(prototypes, codebook)
        return other

    def _set_prototypes(self, prototypes: GroupedVectors, codebook: Ints) -> None:
        self._arrays = (*self._layers, *map(_writable, (*prototypes.arrays, codebook)))
        self._sparsity = codebook.shape[1]
        self._call: Any = self._first_call

    def __call__(self, item: Any, n_ranked: int, n_groups: int) -> tuple[Floats, Ints] | None:
        """The point, float32[1, size], and the buckets of the nearest prototypes, int64[1, n].

        Only prototypes of the ``n_groups`` nearest groups are compared. None if the item is not a
        plain array float32[1, size] of finite numbers.
        """
        if not (
            type(item) is np.ndarray and item.dtype is _FLOAT32 and item.flags.carray
            and item.shape == self._item_shape
        ):  # fmt: skip
            return None
        point = np.empty(self._point_shape, np.float32)
        buckets = np.empty((1, n_ranked * self._sparsity), np.int64)
        is_finite = self._call(item, *self._arrays, n_groups, point, buckets)
        return (point, buckets) if is_finite else None

    def _first_call(self, *arguments: Any) -> bool:
        is_finite: bool = _encode(*arguments)
        self._call = machine_code(_encode)
        return is_finite


def _writable(array: Any) -> npt.NDArray[Any]:
    """The array as the compiled code takes it: a read-only one would be of another type."""
    return np.require(array, requirements=["C", "A", "W"])


@helper(fastmath=_FAST)
def _add_products(weight, values):  # type: ignore[no-untyped-def]
    """Add the products of an item with the rows of a matrix to values, four rows at a time.

    The item follows the values of the rows.
    """
    n_rows, size = weight.shape
    for row in range(0, n_rows - 3, 4):
        a, b, c, d = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
        for j in range(size):
            value = values[n_rows + j]
            a += float_of_half(weight[row, j]) * value
            b += float_of_half(weight[row + 1, j]) * value
            c += float_of_half(weight[row + 2, j]) * value
            d += float_of_half(weight[row + 3, j]) * value
        values[row] += a
        values[row + 1] += b
        values[row + 2] += c
        values[row + 3] += d
    for row in range(n_rows - n_rows % 4, n_rows):
        for j in range(size):
            values[row] += float_of_half(weight[row, j]) * values[n_rows + j]


@helper()
def _product(value, weight, row, j):  # type: ignore[no-untyped-def]
    return value * float_of_half(weight[row, j])


@helper(fastmath=_FAST)
def _add_rows(values, rows, n_rows, weight, sums):  # type: ignore[no-untyped-def]
    """Add rows of a matrix, each times its value, eight at a time, to read the sums less often."""
    start = 0
    while start + 8 <= n_rows:
        a, b, c, d = rows[start], rows[start + 1], rows[start + 2], rows[start + 3]
        e, f, g, h = rows[start + 4], rows[start + 5], rows[start + 6], rows[start + 7]
        va, vb, vc, vd = values[a], values[b], values[c], values[d]
        ve, vf, vg, vh = values[e], values[f], values[g], values[h]
        for j in range(sums.shape[1]):
            first = _product(va, weight, a, j) + _product(vb, weight, b, j)
            second = _product(vc, weight, c, j) + _product(vd, weight, d, j)
            third = _product(ve, weight, e, j) + _product(vf, weight, f, j)
            last = _product(vg, weight, g, j) + _product(vh, weight, h, j)
            sums[0, j] += first + second + third + last
        start += 8
    for k in range(start, n_rows):
        for j in range(sums.shape[1]):
            sums[0, j] += _product(values[rows[k]], weight, rows[k], j)


@kernel()
def _encode(  # type: ignore[no-untyped-def]
    item, mean, scale, hidden, hidden_bias, last, last_bias,
    group_means, groups, starts, prototypes, row_ids, codebook, n_groups, point, buckets,
):  # fmt: skip
    """Write point and buckets, see :class:`OneQuery`; return whether the item is finite."""
    n_units, n_numbers = hidden.shape
    values = np.empty(n_units + n_numbers, np.float32)
    rows = np.empty(n_units + n_numbers, np.int64)
    total = np.float32(0.0)
    for j in range(n_numbers):
        values[n_units + j] = (item[0, j] - mean[j]) / scale[0]
        total += item[0, j] * item[0, j]
    if not total < np.inf:  # also of a NaN, or if a square is too large
        return False
    for row in range(n_units):  # loops: numba takes seconds to compile an assignment
        values[row] = hidden_bias[row]
    _add_products(hidden, values)
    n_rows = 0
    for row in range(n_units):  # without a branch: nobody could predict it
        rows[n_rows] = row
        n_rows += int(values[row] > 0.0)
    for row in range(n_units, n_units + n_numbers):
        rows[n_rows] = row
        n_rows += 1
    for j in range(point.shape[1]):
        point[0, j] = last_bias[j]
    _add_rows(values, rows, n_rows, last, point)
    square = np.float32(0.0)
    for j in range(point.shape[1]):
        square += point[0, j] * point[0, j]
    length = max(np.float32(np.sqrt(square)), np.float32(1e-12))
    for j in range(point.shape[1]):
        point[0, j] /= length
    if buckets.shape[1] > 0:
        sparsity = codebook.shape[1]
        nearest = np.empty((1, buckets.shape[1] // sparsity), np.int64)
        compared = point
        if point.shape[1] < prototypes.shape[1]:  # padded
            compared = np.zeros((1, prototypes.shape[1]), np.float32)
            for j in range(point.shape[1]):
                compared[0, j] = point[0, j]
        nearest_to_one(
            compared, group_means, groups, starts, prototypes, row_ids, n_groups, nearest
        )
        for k in range(nearest.shape[1]):
            for j in range(sparsity):
                buckets[0, k * sparsity + j] = codebook[nearest[0, k], j]
    return True


def warmup() -> None:
    """Compile the kernel, or load it from the cache."""
    one, half = np.ones((1, 1), np.float32), np.ones((2, 1), np.float16)
    OneQuery(one[0], one[0], half[:1], one[0], half, one[0])(one, 0, 1)
