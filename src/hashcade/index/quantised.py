"""A first pass over int8 codes: their error bounds tell what cannot be among the best.

The code of an entry x is c = round(x / scale), with a scale of its own, and beside it lies a bound
of |x - scale c|. A query is rounded to int16, so that its product with a code is an exact int32.
Both errors together bound how far the distance of the rounded vectors can be off, by the triangle
inequality, or that of Cauchy and Schwarz for inner products. What remains after this pass is ranked
by the vectors themselves: results are the same as without it, and a quarter of the bytes is read.
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

# What is known of a code: its scale, a bound of its error, and the sum of its squares.
SCALE, ERROR, SQUARE = range(3)
_INT16, _INT32 = 2**15 - 1, 2**31 - 1
# A sum of squares is exact in float32 up to so many numbers, else off by less than a share of this;
# all else that is computed from it in float64 by less than the other.
_EXACT_DIM = 2**24 // 128**2
_EXACT, _ROUNDED = 2.0**-48, 2.0**-22


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
            rest = value - scale * rounded
            error += rest * rest
            square += rounded * rounded
        bounds[row, SCALE], bounds[row, SQUARE] = scale, square
        # Rounding must not make it less.
        bounds[row, ERROR] = math.sqrt(error) * (1.0 + 1e-6) + 2.0**-149


@kernel()
def bounds_hold(vectors, codes, bounds):  # type: ignore[no-untyped-def]
    """Whether bounds are right for codes of vectors; a search relies on them."""
    for row in range(vectors.shape[0]):
        scale, error, square = np.float64(bounds[row, SCALE]), 0.0, 0.0
        for j in range(vectors.shape[1]):
            code = np.float64(codes[row, j])
            rest = np.float64(vectors[row, j]) - scale * code
            error += rest * rest
            square += code * code
        # Not the other way round: NaN must not pass.
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

    Returns its scale, the squared norm of what it was rounded to, a bound of the error, and one of
    its norm.
    """
    dim = queries.shape[1]
    most = np.float64(max(min(_INT16, _INT32 // (128 * dim)), 1))
    largest = 0.0
    for j in range(dim):
        largest = max(largest, abs(np.float64(queries[q, j])))
    scale = largest / most
    inverse = 1.0 / scale if scale > 0.0 else 0.0
    norm, error, square = 0.0, 0.0, 0.0
    for j in range(dim):
        value = np.float64(queries[q, j])
        rounded = np.rint(value * inverse)
        code[j] = np.int16(rounded)
        rest = value - scale * rounded
        norm += value * value
        error += rest * rest
        square += rounded * rounded
    error = math.sqrt(error) * (1.0 + 1e-9) + largest * 1e-15 * dim
    norm = math.sqrt(norm) * (1.0 + 1e-9) + 1e-300  # not 0: it may meet infinity
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
    # The columns of the bounds one after the other: only so can the loops below be vectorised.
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
        # If a square is off by a share of both squared norms, its root is by the root of that.
        root = math.sqrt(_EXACT if dim <= _EXACT_DIM else _ROUNDED)
        for at in range(n):
            own = np.float64(scales[at])
            both = square + own * own * squares[at]
            distance = both - 2.0 * scale * own * products[at]
            distance = math.sqrt(distance if distance > 0.0 else 0.0)
            error = np.float64(errors[at]) + query_error + root * math.sqrt(both)
            lower[k, at] = distance - error
            upper[k, at] = distance + error
    else:
        for at in range(n):
            own = np.float64(scales[at])
            product = -scale * own * products[at]
            length = own * math.sqrt(squares[at]) * (1.0 + _ROUNDED)
            # What float64 sums are off by is in the term with 1e-9.
            error = norm * (np.float64(errors[at]) + 1e-9 * length) + query_error * length
            lower[k, at] = product - error
            upper[k, at] = product + error
    if removed.shape[0] > 0:
        for row in range(start, stop):
            if removed[row] != 0:
                lower[k, row - start] = upper[k, row - start] = np.inf
    for low in range(start, stop, CHUNK):
        least_lower = least_upper = np.float32(np.inf)
        for at in range(low - start, min(low + CHUNK, stop) - start):
            least_lower = min(least_lower, lower[k, at])
            least_upper = min(least_upper, upper[k, at])
        nearest_lower[k, (low - start) // CHUNK] = least_lower
        nearest_upper[k, (low - start) // CHUNK] = least_upper


@helper()
def note_missing(  # type: ignore[no-untyped-def]
    rows, values, k, n_rows, bound, here, segment, notes, missing, n_missing
):
    """Count on the entries to be ranked whose vectors are not here, and note them if told to."""
    for j in range(n_rows):
        if here[rows[k, j]] == 0 and not values[k, j] > bound:
            if notes:
                missing[n_missing, 0], missing[n_missing, 1] = segment, rows[k, j]
            n_missing += 1
    return n_missing


@kernel()
def _survivors(codes, bounds, queries, n_neighbors, metric, rows):  # type: ignore[no-untyped-def]
    n = codes.shape[0]
    one = np.int64(0)
    lower, upper = np.empty((1, n), np.float32), np.empty((1, n), np.float32)
    nearest = np.empty((1, n // CHUNK + 1), np.float32)
    bound_distances(
        codes, bounds, np.empty(0, np.uint8), one, n, queries, one, one, metric,
        lower, upper, nearest, nearest,
    )  # fmt: skip
    heap = np.empty((1, n_neighbors), np.float32)
    for row in range(n):
        if row < n_neighbors:
            push(heap, heap, one, row, upper[0, row], upper[0, row])
        elif upper[0, row] < heap[0, 0]:
            replace_root(heap, heap, one, n_neighbors, upper[0, row], upper[0, row])
    # Cosine distances of vectors that are not quite of unit length are equal where they reach 0.
    absolute = 2e-5 * math.sqrt(sum_of_squares(queries, one)) if metric == COSINE else 0.0
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

    All of these are certainly there, also if others are equally near. Entries are different items;
    a caller that leaves some out afterwards asks for as many more.

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
