"""Distances of queries to entries: fast ones for pruning, exact ones for ranking."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hashcade._kernels import float_of_half, helper
from hashcade.index.layout import array_at

EUCLIDEAN = 0
INNER_PRODUCT = 1
COSINE = 2  # of stored vectors of unit length
METRICS = {"euclidean": EUCLIDEAN, "inner_product": INNER_PRODUCT, "cosine": COSINE}
CHUNK = 16

# Sums may be reordered and fused, which SIMD needs. Nothing is assumed about NaN and infinity: the
# comparisons below rely on both.
_FASTMATH = {"reassoc", "contract", "nsz"}


@helper()
def widen(halves, start, stop, out):  # type: ignore[no-untyped-def]
    """Write float16 rows, given by their bits, as float32 to the first rows of ``out``."""
    for row in range(start, stop):
        for j in range(halves.shape[1]):
            out[row - start, j] = float_of_half(halves[row, j])


@helper(fastmath=_FASTMATH)
def fast_distances(  # type: ignore[no-untyped-def]
    vectors, removed, start, stop, query, k, metric, out, nearest
):
    """Write squared distances, or minus inner products, to row ``k``, and the least per chunk.

    ``query`` is the address of the query. Distances of removed entries are infinite.
    """
    dim = vectors.shape[1]
    point = array_at(query, dim, np.float32)
    for low in range(start, stop, CHUNK):
        least = np.float32(np.inf)
        for row in range(low, min(low + CHUNK, stop)):
            if removed.shape[0] > 0 and removed[row] != 0:
                out[k, row - start] = np.inf
                continue
            total = np.float32(0.0)
            if metric == EUCLIDEAN:
                for j in range(dim):
                    diff = vectors[row, j] - point[j]
                    total += diff * diff
            else:
                for j in range(dim):
                    total += vectors[row, j] * point[j]
                total = -total
            out[k, row - start] = total
            least = min(least, total)
        nearest[k, (low - start) // CHUNK] = least


@helper(fastmath=_FASTMATH)
def fast_distances_of_four(  # type: ignore[no-untyped-def]
    vectors, removed, start, stop, query_a, query_b, query_c, query_d, metric, out, nearest
):
    """Do the same for four queries: an entry is loaded once for all of them."""
    dim = vectors.shape[1]
    qa, qb = array_at(query_a, dim, np.float32), array_at(query_b, dim, np.float32)
    qc, qd = array_at(query_c, dim, np.float32), array_at(query_d, dim, np.float32)
    for low in range(start, stop, CHUNK):
        chunk = (low - start) // CHUNK
        least_a = least_b = least_c = least_d = np.float32(np.inf)
        for row in range(low, min(low + CHUNK, stop)):
            column = row - start
            if removed.shape[0] > 0 and removed[row] != 0:
                out[0, column] = out[1, column] = out[2, column] = out[3, column] = np.inf
                continue
            a = b = c = d = np.float32(0.0)
            if metric == EUCLIDEAN:
                for j in range(dim):
                    value = vectors[row, j]
                    diff = value - qa[j]
                    a += diff * diff
                    diff = value - qb[j]
                    b += diff * diff
                    diff = value - qc[j]
                    c += diff * diff
                    diff = value - qd[j]
                    d += diff * diff
            else:
                for j in range(dim):
                    value = vectors[row, j]
                    a += value * qa[j]
                    b += value * qb[j]
                    c += value * qc[j]
                    d += value * qd[j]
                a, b, c, d = -a, -b, -c, -d
            out[0, column], out[1, column], out[2, column], out[3, column] = a, b, c, d
            least_a, least_b = min(least_a, a), min(least_b, b)
            least_c, least_d = min(least_c, c), min(least_d, d)
        nearest[0, chunk], nearest[1, chunk] = least_a, least_b
        nearest[2, chunk], nearest[3, chunk] = least_c, least_d


def _emit_exact_sum(typing_context, vectors, row, queries, q, metric):  # type: ignore[no-untyped-def]
    """Sum in float64: term j goes to sum number j % 8, and the eight sums are added in order.

    Written as vector operations: the order determines the result, so the optimiser must not
    reorder, and without that freedom it does not vectorise.
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        left = context.make_array(signature.args[0])(context, builder, args[0])
        right = context.make_array(signature.args[2])(context, builder, args[2])
        n = builder.extract_value(left.shape, 1)
        three = ir.Constant(n.type, 3)
        groups = builder.lshr(n, three)
        n_grouped = builder.shl(groups, three)
        vector = builder.gep(left.data, [builder.mul(args[1], n)])
        query = builder.gep(right.data, [builder.mul(args[3], n)])
        euclidean = builder.icmp_signed("==", args[4], ir.Constant(args[4].type, EUCLIDEAN))
        single, double = ir.FloatType(), ir.DoubleType()
        singles, doubles = ir.VectorType(single, 8), ir.VectorType(double, 8)

        def term(j, narrow, wide):  # type: ignore[no-untyped-def]
            pointers = [builder.bitcast(builder.gep(row, [j]), narrow) for row in (vector, query)]
            x, q = (builder.fpext(builder.load(p, align=4), wide) for p in pointers)
            difference = builder.fsub(x, q)
            left, right = (builder.select(euclidean, difference, value) for value in (x, q))
            return builder.fmul(left, right)

        zero = ir.Constant(doubles, [0.0] * 8)
        sums = cgutils.alloca_once_value(builder, zero)  # type: ignore[no-untyped-call]
        with cgutils.for_range(builder, groups) as loop:
            terms: Any = term(builder.shl(loop.index, three), singles.as_pointer(), doubles)  # type: ignore[no-untyped-call]
            builder.store(builder.fadd(builder.load(sums), terms), sums)
        # The remaining terms, on a copy: otherwise the vector of sums could not stay in registers.
        final_sums = cgutils.alloca_once_value(builder, builder.load(sums))  # type: ignore[no-untyped-call]
        lanes = builder.bitcast(final_sums, double.as_pointer())
        with cgutils.for_range(builder, builder.sub(n, n_grouped)) as loop:
            lane = builder.gep(lanes, [loop.index])
            last: Any = term(builder.add(n_grouped, loop.index), single.as_pointer(), double)  # type: ignore[no-untyped-call]
            builder.store(builder.fadd(builder.load(lane), last), lane)
        total = builder.load(lanes)
        for k in range(1, 8):
            lane = builder.gep(lanes, [ir.Constant(n.type, k)])
            total = builder.fadd(total, builder.load(lane))
        return total

    return types.float64(vectors, types.int64, queries, types.int64, metric), generate


_exact_sum: Any = intrinsic(_emit_exact_sum)


@helper()
def exact_key(vectors, row, queries, q, metric, norm):  # type: ignore[no-untyped-def]
    """Return the sort key of a result: the distance, or minus the inner product, of two rows.

    ``norm`` is the norm of the query. Cosine distances are clamped at 0 against rounding.
    """
    total = _exact_sum(vectors, row, queries, q, metric)
    if metric == EUCLIDEAN:
        return np.float32(math.sqrt(total))
    if metric == COSINE:
        return np.float32(max(0.0, 1.0 - total / norm))
    return np.float32(-total)


@helper()
def exact_norm(queries, q):  # type: ignore[no-untyped-def]
    """Return the norm of a query, summed in the same order, for cosine distances."""
    return math.sqrt(_exact_sum(queries, q, queries, q, INNER_PRODUCT))


@helper(fastmath=_FASTMATH)
def sum_of_squares(queries, q):  # type: ignore[no-untyped-def]
    """Return the squared norm of a query; NaN or infinite if a value is."""
    total = 0.0
    for j in range(queries.shape[1]):
        total += np.float64(queries[q, j]) * np.float64(queries[q, j])
    return total


@helper()
def prune_bound(worst, relative, absolute):  # type: ignore[no-untyped-def]
    """Return the fast distance beyond which nothing can be nearer than ``worst``."""
    # Both may have an error, in opposite directions: hence twice.
    bound = worst + abs(worst) * (2.0 * relative + 1e-6) + 2.0 * absolute
    bound += abs(bound) * 1e-6  # rounding to float32, and of the returned result
    if bound != bound:  # NaN: an overflow in the fast pass
        return np.float32(np.inf)
    return np.float32(bound)
