"""The networks on embeddings in numpy: one or two products of matrices, in microseconds. No torch.

Weights are numpy arrays by the names of ``HashModel``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hashcade._kernels import helper, kernel
from hashcade.learn.config import ResolvedConfig

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Weights = Mapping[str, npt.NDArray[Any]]


class Outputs(NamedTuple):
    """What a network makes of items."""

    vectors: Floats  # (n, size): for re-ranking
    scores: Floats | None  # (n, depth, width): of slots, if they were asked for or are needed
    points: Floats  # (n, size): compared with prototypes; the vectors, if there are none


class DenseNetwork:
    """The networks on embeddings, ``backbone`` None or ``"mlp"``, as products of matrices."""

    def __init__(self, config: ResolvedConfig, weights: Weights) -> None:
        self._config = config
        units, size = config.hidden_size, config.item_shape[0]
        in_backbone, n_slots = config.backbone == "mlp", config.shape.depth * config.shape.width
        self._hidden = self._base = self._points = self._embedding = None
        last, n_items = "head.0", 0 if units else size
        if units:
            name, last = ("hash_base.layers.0", last) if in_backbone else ("head.0", "head.2")
            if config.with_inputs:
                name, last, n_items = "head.0.layer", "head.1", size
            self._hidden = _Linear(weights, name, 0, size, units)
        self._slots = _Linear(weights, last, units, n_items, n_slots)
        if config.point_size:
            self._points = _Linear(weights, "vector_head", units, n_items, config.point_size)
        if config.embedding_size is not None and config.rerank == "given":
            if in_backbone:
                self._base = _Linear(weights, "base.layers.0", 0, size, units)
            below = (units, 0) if in_backbone else (0, size)
            self._embedding = _Linear(weights, "embedding", *below, config.embedding_size)
        self._one_query: Any = None
        if self._hidden is not None and self._points is not None and self._embedding is None:
            self._one_query = (*self._hidden.parameters, *self._points.parameters)

    def __call__(self, items: npt.NDArray[Any], with_scores: bool = True) -> Outputs:
        """What the network makes of items, float32[n, size]."""
        config, shape, scores = self._config, self._config.shape, None
        if self._one_query is not None and len(items) == 1 and not with_scores:
            points = np.empty((1, config.point_size), np.float32)
            point_of(items, *self._one_query, points)
            return Outputs(items.copy() if config.rerank == "given" else points, None, points)
        hidden = items if self._hidden is None else _relu(self._hidden(items))
        if config.with_inputs:
            hidden = np.concatenate([hidden, items], axis=1)
        points = items if self._points is None else _unit(self._points(hidden))
        if with_scores or not config.uses_prototypes:
            scores = self._slots(hidden).reshape(len(items), shape.depth, shape.width)
            if config.unit_length and not config.uses_prototypes:
                scores = _unit(scores)
        vectors = points
        if self._embedding is not None:
            vectors = self._embedding(items if self._base is None else _relu(self._base(items)))
            vectors = _unit(vectors) if config.unit_length else vectors
        elif config.rerank == "given":
            vectors = items.copy()  # what is returned is not the caller's
        return Outputs(vectors, scores, points)


class _Linear:
    """A linear layer on hidden values, on items as they are given, or on both side by side."""

    def __init__(
        self, weights: Weights, name: str, n_hidden: int, n_items: int, outputs: int
    ) -> None:
        weight = checked_weights(weights, f"{name}.weight", (outputs, n_hidden + n_items)).copy()
        bias = checked_weights(weights, f"{name}.bias", (outputs,))
        if n_items:  # centring and scaling them becomes a part of it
            exact = weight[:, n_hidden:].astype(np.float64)
            exact /= checked_weights(weights, "prepare.scale", ())
            bias = bias - exact @ checked_weights(weights, "prepare.mean", (n_items,))
            weight[:, n_hidden:] = exact
        self._weight, self._bias = np.ascontiguousarray(weight.T), bias.astype(np.float32)

    @property
    def parameters(self) -> tuple[Floats, Floats]:
        """The matrix, (inputs, outputs), and the bias."""
        return self._weight, self._bias

    def __call__(self, values: npt.NDArray[Any]) -> Floats:
        products: Floats = values @ self._weight
        products += self._bias
        return products


def _relu(values: Floats) -> Floats:
    return np.maximum(values, 0.0, out=values)


def checked_weights(
    weights: Weights, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[Any]:
    """The weights of a name, of the shape that the config says; files are not trusted."""
    array = weights[name]
    if array.shape != shape or array.dtype != dtype:
        found, must = f"{array.dtype}{[*array.shape]}", f"{np.dtype(dtype)}{[*shape]}"
        raise ValueError(f"{name} is {found}, must be {must}")
    return array


def _unit(values: Floats) -> Floats:
    """Brought to length 1 along the last axis."""
    if len(values) == 1 and values.ndim == 2:  # one query: every call counts
        length = math.sqrt(np.vdot(values, values))
        return values * np.float32(1.0 / max(length, 1e-12))
    lengths = np.sqrt(np.einsum("...i,...i->...", values, values))[..., None]
    result: Floats = values / np.maximum(lengths, np.float32(1e-12))
    return result


# -- one query ---------------------------------------------------------------------------------
#
# A product of matrices with one row is bound by reading the weights and by the calls around it. In
# one compiled call each is read once, those of hidden units that are off not at all: two thirds of
# the time. Sums are in another order than in a batch, as those of numpy are for one row.


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
