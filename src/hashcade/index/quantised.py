"""A first pass over int8 codes: their error bounds rule out what cannot be among the nearest.

The code of an entry x is c = round(x / scale), with its own scale, stored with a bound of
|x - scale c|. A query is rounded to int16, so that its product with a code is an exact int32. Both
errors together bound the error of the distance of the rounded vectors, by the triangle inequality,
or by Cauchy-Schwarz for inner products. The remaining entries are reranked by the vectors
themselves: results are the same as without this pass, and a quarter of the bytes is read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from hashcade._kernels import helper, kernel
from hashcade._validate import checked_choice, checked_count
from hashcade.index.distances import CHUNK, COSINE, EUCLIDEAN, METRICS, prune_bound, sum_of_squares
from hashcade.index.probe import push, replace_root

if TYPE_CHECKING:
    from hashcade.index.segment import Codes, Float32s, Int64s

# Columns of the bounds of a code: its scale, a bound of its error, and its sum of squares.
SCALE, ERROR, SQUARE = range(3)
_INT16, _INT32 = 2**15 - 1, 2**31 - 1
# Up to this dimension a sum of squares is exact in float32; the relative error of what is computed
# from exact sums in float64, and from rounded ones.
_EXACT_DIM = 2**24 // 128**2
_EXACT_ERROR, _ROUNDED_ERROR = 2.0**-48, 2.0**-22


@kernel()
def _encode(vectors, codes, bounds):  # type: ignore[no-untyped-def]
    for row in range(vectors.shape[0]):
        largest = np.float32(0.0)
        for j in range(vectors.shape[1]):
            largest = max(largest, abs(vectors[row, j]))
        scale = np.float64(np.float32(np.float64(largest) / 127.0))
        # A scale too small for float32 is 0, and so is the code: the error is the whole vector.
        inverse = 1.0 / scale if scale > 0.0 else 0.0
        error, square = 0.0, 0.0
        for j in range(vectors.shape[1]):
            value = np.float64(vectors[row, j])
            rounded = min(max(np.rint(value * inverse), -127.0), 127.0)
            codes[row, j] = np.int8(rounded)
            residual = value - scale * rounded
            error += residual * residual
            square += rounded * rounded
        bounds[row, SCALE], bounds[row, SQUARE] = scale, square
        # Rounding must not make it smaller.
        bounds[row, ERROR] = math.sqrt(error) * (1.0 + 1e-6) + 2.0**-149


@kernel()
def bounds_hold(vectors, codes, bounds):  # type: ignore[no-untyped-def]
    """Whether the bounds of codes hold for the vectors; a search relies on them."""
    for row in range(vectors.shape[0]):
        scale, error, square = np.float64(bounds[row, SCALE]), 0.0, 0.0
        for j in range(vectors.shape[1]):
            code = np.float64(codes[row, j])
            residual = np.float64(vectors[row, j]) - scale * code
            error += residual * residual
            square += code * code
        # Written so that NaN does not pass.
        bound = np.float64(bounds[row, ERROR])
        if not (0.0 <= scale < np.inf and math.sqrt(error) <= bound):
            return False
        if bounds[row, SQUARE] != np.float32(square):
            return False
    return True


def encode_int8(vectors: Float32s) -> tuple[Codes, Float32s]:
    """Return codes : int8[n, dim] of vectors, and bounds : float32[n, 3] for :func:`survivors`."""
    codes = np.empty(vectors.shape, np.int8)
    bounds = np.empty((len(vectors), 3), np.float32)
    _encode(vectors, codes, bounds)
    return codes, bounds


@helper()
def encode_query(queries, q, code):  # type: ignore[no-untyped-def]
    """Round a query to int16, so that int32 products cannot overflow.

    Returns its scale, the squared norm of the rounded query, and bounds of its error and norm.
    """
    dim = queries.shape[1]
    max_value = np.float64(max(min(_INT16, _INT32 // (128 * dim)), 1))
    largest = 0.0
    for j in range(dim):
        largest = max(largest, abs(np.float64(queries[q, j])))
    scale = largest / max_value
    inverse = 1.0 / scale if scale > 0.0 else 0.0
    norm, error, square = 0.0, 0.0, 0.0
    for j in range(dim):
        value = np.float64(queries[q, j])
        rounded = np.rint(value * inverse)
        code[j] = np.int16(rounded)
        residual = value - scale * rounded
        norm += value * value
        error += residual * residual
        square += rounded * rounded
    error = math.sqrt(error) * (1.0 + 1e-9) + largest * 1e-15 * dim
    norm = math.sqrt(norm) * (1.0 + 1e-9) + 1e-300  # not 0: it may be multiplied by infinity
    return scale, scale * scale * square, error, norm


@helper()
def bound_distances(  # type: ignore[no-untyped-def]
    codes, bounds, removed, start, stop, queries, q, k, metric,
    lower, upper, nearest_lower, nearest_upper,
):  # fmt: skip
    """Write bounds of distances, or of minus inner products, to rows ``k``, and least per chunk.

    Those of removed entries, if there are any, are infinite.
    """
    dim, n = codes.shape[1], stop - start
    query, products = np.empty(dim, np.int16), np.empty(n, np.int32)
    # The columns of the bounds in separate arrays: otherwise the loops below are not vectorised.
    scales, errors, squares = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n)
    scale, square, query_error, norm = encode_query(queries, q, query)
    for row in range(start, stop):
        total = np.int32(0)
        for j in range(dim):
            total = np.int32(total + np.int32(np.int32(codes[row, j]) * np.int32(query[j])))
        products[row - start] = total
        scales[row - start], errors[row - start] = bounds[row, SCALE], bounds[row, ERROR]
        squares[row - start] = bounds[row, SQUARE]
    if metric == EUCLIDEAN:
        # If a square is off by a share of both squared norms, its root is off by the root of it.
        root = math.sqrt(_EXACT_ERROR if dim <= _EXACT_DIM else _ROUNDED_ERROR)
        for i in range(n):
            entry_scale = np.float64(scales[i])
            squares_sum = square + entry_scale * entry_scale * squares[i]
            distance = squares_sum - 2.0 * scale * entry_scale * products[i]
            distance = math.sqrt(distance if distance > 0.0 else 0.0)
            error = np.float64(errors[i]) + query_error + root * math.sqrt(squares_sum)
            lower[k, i] = distance - error
            upper[k, i] = distance + error
    else:
        for i in range(n):
            entry_scale = np.float64(scales[i])
            product = -scale * entry_scale * products[i]
            length = entry_scale * math.sqrt(squares[i]) * (1.0 + _ROUNDED_ERROR)
            # The term with 1e-9 covers the error of float64 sums.
            error = norm * (np.float64(errors[i]) + 1e-9 * length) + query_error * length
            lower[k, i] = product - error
            upper[k, i] = product + error
    if removed.shape[0] > 0:
        for row in range(start, stop):
            if removed[row] != 0:
                lower[k, row - start] = upper[k, row - start] = np.inf
    for low in range(start, stop, CHUNK):
        least_lower = least_upper = np.float32(np.inf)
        for i in range(low - start, min(low + CHUNK, stop) - start):
            least_lower = min(least_lower, lower[k, i])
            least_upper = min(least_upper, upper[k, i])
        nearest_lower[k, (low - start) // CHUNK] = least_lower
        nearest_upper[k, (low - start) // CHUNK] = least_upper


@helper()
def collect_missing(  # type: ignore[no-untyped-def]
    rows, values, k, n_rows, bound, available, segment, collects, missing, n_missing
):
    """Count, and collect if told to, the entries to be reranked whose vectors are missing."""
    for j in range(n_rows):
        if available[rows[k, j]] == 0 and not values[k, j] > bound:
            if collects:
                missing[n_missing, 0], missing[n_missing, 1] = segment, rows[k, j]
            n_missing += 1
    return n_missing


@kernel()
def _survivors(codes, bounds, queries, n_neighbors, metric, rows):  # type: ignore[no-untyped-def]
    n = codes.shape[0]
    zero = np.int64(0)
    lower, upper = np.empty((1, n), np.float32), np.empty((1, n), np.float32)
    nearest = np.empty((1, n // CHUNK + 1), np.float32)
    bound_distances(
        codes, bounds, np.empty(0, np.uint8), zero, n, queries, zero, zero, metric,
        lower, upper, nearest, nearest,
    )  # fmt: skip
    heap = np.empty((1, n_neighbors), np.float32)
    for row in range(n):
        if row < n_neighbors:
            push(heap, heap, zero, row, upper[0, row], upper[0, row])
        elif upper[0, row] < heap[0, 0]:
            replace_root(heap, heap, zero, n_neighbors, upper[0, row], upper[0, row])
    # Cosine distances are clamped at 0, where vectors not quite of unit length tie.
    absolute = 2e-5 * math.sqrt(sum_of_squares(queries, zero)) if metric == COSINE else 0.0
    bound = np.float32(np.inf)
    if n > n_neighbors:
        bound = prune_bound(np.float64(heap[0, 0]), 0.0, absolute)
    n_rows = 0
    for row in range(n):
        rows[n_rows] = row
        n_rows += not lower[0, row] > bound
    return n_rows


def survivors(
    codes: Codes, bounds: Float32s, query: Float32s, n_neighbors: int, metric: str = "euclidean"
) -> Int64s:
    """Return the entries, ascending, that may be among the nearest ``n_neighbors`` of a query.

    These include all of the nearest, also where distances are equal. Entries are different items;
    a caller that excludes some of them afterwards asks for as many more.

    Examples
    --------
    >>> import numpy as np
    >>> from hashcade.index import encode_int8, survivors
    >>> vectors = np.arange(12, dtype=np.float32).reshape(6, 2)
    >>> codes, bounds = encode_int8(vectors)
    >>> survivors(codes, bounds, vectors[3], n_neighbors=1).tolist()
    [3]
    """
    n_neighbors = checked_count("n_neighbors", n_neighbors)
    metric = checked_choice("metric", metric, METRICS)
    rows = np.empty(len(codes) + 1, np.int64)
    n_rows = _survivors(codes, bounds, query[None], n_neighbors, METRICS[metric], rows)
    return rows[:n_rows].copy()
