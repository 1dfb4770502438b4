"""Distances of queries to entries: fast ones to decide what to drop, exact ones to rank by."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hashcade._kernels import helper

EUCLIDEAN = 0
INNER_PRODUCT = 1
CHUNK = 16

# Sums may be reordered and fused, which is what a vector unit needs. Nothing is assumed about
# NaN and infinity: the comparisons below rely on both.
_SUMS = {"reassoc", "contract", "nsz"}


# -- fast distances: float32, any order; also the nearest of every sixteen entries ---------------


@helper(fastmath=_SUMS)
def fast_distances(vectors, start, stop, queries, q, k, metric, out, nearest):  # type: ignore[no-untyped-def]
    """Write squared distances, or minus inner products, of entries to query ``q`` to row ``k``."""
    dim = vectors.shape[1]
    for low in range(start, stop, CHUNK):
        least = np.float32(np.inf)
        for row in range(low, min(low + CHUNK, stop)):
            total = np.float32(0.0)
            if metric == EUCLIDEAN:
                for j in range(dim):
                    diff = vectors[row, j] - queries[q, j]
                    total += diff * diff
            else:
                for j in range(dim):
                    total += vectors[row, j] * queries[q, j]
                total = -total
            out[k, row - start] = total
            least = min(least, total)
        nearest[k, (low - start) // CHUNK] = least


@helper(fastmath=_SUMS)
def fast_distances_of_four(  # type: ignore[no-untyped-def]
    vectors, start, stop, queries, qa, qb, qc, qd, metric, out, nearest
):
    """Do the same for four queries: an entry is loaded once for all of them."""
    dim = vectors.shape[1]
    for low in range(start, stop, CHUNK):
        chunk = (low - start) // CHUNK
        least_a = least_b = least_c = least_d = np.float32(np.inf)
        for row in range(low, min(low + CHUNK, stop)):
            a = b = c = d = np.float32(0.0)
            if metric == EUCLIDEAN:
                for j in range(dim):
                    value = vectors[row, j]
                    diff = value - queries[qa, j]
                    a += diff * diff
                    diff = value - queries[qb, j]
                    b += diff * diff
                    diff = value - queries[qc, j]
                    c += diff * diff
                    diff = value - queries[qd, j]
                    d += diff * diff
            else:
                for j in range(dim):
                    value = vectors[row, j]
                    a += value * queries[qa, j]
                    b += value * queries[qb, j]
                    c += value * queries[qc, j]
                    d += value * queries[qd, j]
                a, b, c, d = -a, -b, -c, -d
            out[0, row - start] = a
            out[1, row - start] = b
            out[2, row - start] = c
            out[3, row - start] = d
            least_a = min(least_a, a)
            least_b = min(least_b, b)
            least_c = min(least_c, c)
            least_d = min(least_d, d)
        nearest[0, chunk] = least_a
        nearest[1, chunk] = least_b
        nearest[2, chunk] = least_c
        nearest[3, chunk] = least_d


# -- exact distances: float64, eight sums in a fixed order -------------------------------------


def _emit_eight_sums(typing_context, vectors, row, queries, q, metric):  # type: ignore[no-untyped-def]
    """Sum the terms of whole groups of eight: term j goes to sum number j % 8.

    Written out as vector operations, because the order is part of the result and so must not be
    left to the optimiser, which in turn does not find the vectors without the freedom to reorder.
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        left = context.make_array(signature.args[0])(context, builder, args[0])
        right = context.make_array(signature.args[2])(context, builder, args[2])
        n = builder.extract_value(left.shape, 1)
        size = n.type
        vector = builder.gep(left.data, [builder.mul(args[1], n)])
        query = builder.gep(right.data, [builder.mul(args[3], n)])
        singles = ir.VectorType(ir.FloatType(), 8)
        doubles = ir.VectorType(ir.DoubleType(), 8)
        zero = ir.Constant(doubles, [0.0] * 8)
        sums = cgutils.alloca_once_value(builder, zero)  # type: ignore[no-untyped-call]
        euclidean = builder.icmp_signed("==", args[4], ir.Constant(args[4].type, EUCLIDEAN))
        groups = builder.lshr(n, ir.Constant(size, 3))
        with cgutils.for_range(builder, groups) as loop:
            at = builder.shl(loop.index, ir.Constant(size, 3))

            def loaded(data):  # type: ignore[no-untyped-def]
                pointer = builder.bitcast(builder.gep(data, [at]), singles.as_pointer())
                return builder.fpext(builder.load(pointer, align=4), doubles)

            x: Any = loaded(vector)  # type: ignore[no-untyped-call]
            q: Any = loaded(query)  # type: ignore[no-untyped-call]
            difference = builder.fsub(x, q)
            a = builder.select(euclidean, difference, x)
            b = builder.select(euclidean, difference, q)
            builder.store(builder.fadd(builder.load(sums), builder.fmul(a, b)), sums)
        final = builder.load(sums)
        lanes = [builder.extract_element(final, ir.Constant(ir.IntType(32), k)) for k in range(8)]
        return context.make_tuple(builder, signature.return_type, lanes)

    eight: Any = types.UniTuple(types.float64, 8)  # type: ignore[no-untyped-call]
    return eight(vectors, types.int64, queries, types.int64, metric), generate


_eight_sums: Any = intrinsic(_emit_eight_sums)


@helper()
def exact_key(vectors, row, queries, q, metric):  # type: ignore[no-untyped-def]
    """Return what results are ordered by: the distance, or minus the inner product, of two rows.

    Term j goes to sum number j % 8 and the eight sums are added up in order, so that the same
    bits come out on every machine. The result is rounded to float32 as the very last step.
    """
    s0, s1, s2, s3, s4, s5, s6, s7 = _eight_sums(vectors, row, queries, q, metric)
    dim = vectors.shape[1]
    whole = dim - dim % 8
    for j in range(whole, dim):  # fewer than eight are left, so sum 7 gets none of them
        if metric == EUCLIDEAN:
            diff = np.float64(vectors[row, j]) - np.float64(queries[q, j])
            term = diff * diff
        else:
            term = np.float64(vectors[row, j]) * np.float64(queries[q, j])
        lane = j - whole
        if lane == 0:
            s0 += term
        elif lane == 1:
            s1 += term
        elif lane == 2:
            s2 += term
        elif lane == 3:
            s3 += term
        elif lane == 4:
            s4 += term
        elif lane == 5:
            s5 += term
        else:
            s6 += term
    total = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7
    if metric == EUCLIDEAN:
        return np.float32(math.sqrt(total))
    return np.float32(-total)


@helper(fastmath=_SUMS)
def sum_of_squares(queries, q):  # type: ignore[no-untyped-def]
    """Return the squared norm of a query; NaN or infinite if a value is."""
    total = 0.0
    for j in range(queries.shape[1]):
        total += np.float64(queries[q, j]) * np.float64(queries[q, j])
    return total
