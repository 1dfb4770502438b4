"""The scan: distances from queries to the entries of their buckets, and the best of them.

One self-contained file, arrays in and arrays out; ``_reference.py`` is its plain twin.

Two passes, fused. The fast one computes float32 distances of a tile of entries to up to four
queries at once, summing in whatever order suits the vector unit. It decides nothing but this:
an entry that cannot be among the best, the rounding error allowed for, is dropped. Whatever
remains is measured again in float64, in a fixed order, and only this number counts. So the
result is the same for one query or many, one thread or more, and in whatever order the entries
come by: the best by (distance as returned, id).

Layout. Entries lie row after row in memory, so one query on a cold bucket runs at the speed of the
memory bus. Visits come sorted by where they start: queries that look at the same bucket are
next to each other, and a tile is fetched from memory once for all of them.

Functions that are called for each visit take an array and the number of a row, not the row: a slice
would count references, with an atomic operation each time, which cost a tenth of a scan.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

EUCLIDEAN = 0
INNER_PRODUCT = 1

NO_FILTER = 0
FILTER_MASK = 1
FILTER_SORTED = 2

# Sums may be reordered and fused, which is what a vector unit needs. Nothing is assumed about
# NaN and infinity: the comparisons below rely on both.
_SUMS = {"reassoc", "contract", "nsz"}
CHUNK = 16
_TILE = 4096  # entries whose fast distances are kept at a time: they stay in the first cache


# -- fast distances: float32, any order; also the nearest of every sixteen entries ---------------


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _squared_1(vectors, start, stop, queries, q, k, out, nearest):  # type: ignore[no-untyped-def]
    dim = vectors.shape[1]
    for low in range(start, stop, CHUNK):
        least = np.float32(np.inf)
        for row in range(low, min(low + CHUNK, stop)):
            total = np.float32(0.0)
            for j in range(dim):
                diff = vectors[row, j] - queries[q, j]
                total += diff * diff
            out[k, row - start] = total
            least = min(least, total)
        nearest[k, (low - start) // CHUNK] = least


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _squared_4(  # type: ignore[no-untyped-def]
    vectors, start, stop, queries, qa, qb, qc, qd, out, nearest
):
    dim = vectors.shape[1]
    for low in range(start, stop, CHUNK):
        chunk = (low - start) // CHUNK
        least_a = least_b = least_c = least_d = np.float32(np.inf)
        for row in range(low, min(low + CHUNK, stop)):
            a = np.float32(0.0)
            b = np.float32(0.0)
            c = np.float32(0.0)
            d = np.float32(0.0)
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


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _negative_dot_1(vectors, start, stop, queries, q, k, out, nearest):  # type: ignore[no-untyped-def]
    dim = vectors.shape[1]
    for low in range(start, stop, CHUNK):
        least = np.float32(np.inf)
        for row in range(low, min(low + CHUNK, stop)):
            total = np.float32(0.0)
            for j in range(dim):
                total += vectors[row, j] * queries[q, j]
            total = -total
            out[k, row - start] = total
            least = min(least, total)
        nearest[k, (low - start) // CHUNK] = least


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _negative_dot_4(  # type: ignore[no-untyped-def]
    vectors, start, stop, queries, qa, qb, qc, qd, out, nearest
):
    dim = vectors.shape[1]
    for low in range(start, stop, CHUNK):
        chunk = (low - start) // CHUNK
        least_a = least_b = least_c = least_d = np.float32(np.inf)
        for row in range(low, min(low + CHUNK, stop)):
            a = np.float32(0.0)
            b = np.float32(0.0)
            c = np.float32(0.0)
            d = np.float32(0.0)
            for j in range(dim):
                value = vectors[row, j]
                a += value * queries[qa, j]
                b += value * queries[qb, j]
                c += value * queries[qc, j]
                d += value * queries[qd, j]
            a = -a
            b = -b
            c = -c
            d = -d
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


@njit(cache=True, nogil=True)
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


# -- how far a fast inner product may be off ------------------------------------------------------


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _sum_of_squares(queries, q):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(queries.shape[1]):
        total += np.float64(queries[q, j]) * np.float64(queries[q, j])
    return total


@njit(cache=True, nogil=True)
def _slack(square, max_norm, dim):  # type: ignore[no-untyped-def]
    size = math.sqrt(square) * max_norm
    if size > 1e37:  # float32 may overflow: everything is measured exactly
        return np.inf
    return (dim + 8) * 2.0**-23 * size + 1e-36


@njit(cache=True, nogil=True)
def slacks(queries, max_norm):  # type: ignore[no-untyped-def]
    """Return for each query how far its fast inner products with entries can be off."""
    n, dim = queries.shape
    slack = np.empty(n)
    for q in range(n):
        slack[q] = _slack(_sum_of_squares(queries, q), max_norm, dim)
    return slack


# -- the best n so far: a heap with the worst at its root ----------------------------------------


@njit(cache=True, nogil=True)
def _worse(key_a, id_a, key_b, id_b):  # type: ignore[no-untyped-def]
    return key_a > key_b or (key_a == key_b and id_a > id_b)


@njit(cache=True, nogil=True)
def _sift_down(keys, kept, q, hole, size, key, item_id):  # type: ignore[no-untyped-def]
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and _worse(
            keys[q, child + 1], kept[q, child + 1], keys[q, child], kept[q, child]
        ):
            child += 1
        if not _worse(keys[q, child], kept[q, child], key, item_id):
            break
        keys[q, hole] = keys[q, child]
        kept[q, hole] = kept[q, child]
        hole = child
    keys[q, hole] = key
    kept[q, hole] = item_id


@njit(cache=True, nogil=True)
def _sift_up(keys, kept, q, hole, key, item_id):  # type: ignore[no-untyped-def]
    while hole > 0:
        parent = (hole - 1) // 2
        if not _worse(key, item_id, keys[q, parent], kept[q, parent]):
            break
        keys[q, hole] = keys[q, parent]
        kept[q, hole] = kept[q, parent]
        hole = parent
    keys[q, hole] = key
    kept[q, hole] = item_id


@njit(cache=True, nogil=True)
def _limit(worst, metric, relative, absolute):  # type: ignore[no-untyped-def]
    """Fast distance above which an entry cannot beat ``worst``, an exact key, for certain.

    Rounded up into float32; infinite if there is no such limit, which drops nothing.
    """
    if metric == EUCLIDEAN:
        bound = np.float64(worst) * np.float64(worst) * (1.0 + relative) + absolute
    else:
        bound = np.float64(worst) + abs(np.float64(worst)) * 1e-6 + absolute
    return np.float32(bound * (1.0 + 1e-6) if bound > 0.0 else bound * (1.0 - 1e-6))


@njit(cache=True, nogil=True)
def is_chosen(item_id, filter_mode, mask, chosen):  # type: ignore[no-untyped-def]
    """Whether an id passes the filter: a mask over ids, or a sorted array of ids."""
    if filter_mode == NO_FILTER:
        return True
    if filter_mode == FILTER_MASK:
        return item_id < mask.shape[0] and mask[item_id]
    low = 0
    high = chosen.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if chosen[middle] < item_id:
            low = middle + 1
        else:
            high = middle
    return low < chosen.shape[0] and chosen[low] == item_id


# -- the scan ------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _replace_largest(heaps, k, value, size):  # type: ignore[no-untyped-def]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and heaps[k, child + 1] > heaps[k, child]:
            child += 1
        if not heaps[k, child] > value:
            break
        heaps[k, hole] = heaps[k, child]
        hole = child
    heaps[k, hole] = value


@njit(cache=True, nogil=True)
def _push_largest(heaps, k, value, size):  # type: ignore[no-untyped-def]
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if not value > heaps[k, parent]:
            break
        heaps[k, hole] = heaps[k, parent]
        hole = parent
    heaps[k, hole] = value


@njit(cache=True, nogil=True)
def _nth_smallest(values, k, n_values, n, heaps):  # type: ignore[no-untyped-def]
    for j in range(n):
        _push_largest(heaps, k, values[k, j], j)
    for j in range(n, n_values):
        if values[k, j] < heaps[k, 0]:
            _replace_largest(heaps, k, values[k, j], n)
    return heaps[k, 0]


def _emit_not_beyond(typing_context, values, k, at, limit):  # type: ignore[no-untyped-def]
    """Return a bit for each of a chunk of values: whether it is at most the limit, or NaN."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        array = context.make_array(signature.args[0])(context, builder, args[0])
        chunk = ir.VectorType(ir.FloatType(), CHUNK)
        lanes = ir.VectorType(ir.IntType(32), CHUNK)
        place = builder.add(builder.mul(args[1], builder.extract_value(array.shape, 1)), args[2])
        pointer = builder.bitcast(builder.gep(array.data, [place]), chunk.as_pointer())
        loaded = builder.load(pointer, align=4)
        first = ir.Constant(ir.IntType(32), 0)
        one = builder.insert_element(ir.Constant(chunk, ir.Undefined), args[3], first)
        limits = builder.shuffle_vector(one, one, ir.Constant(lanes, [0] * CHUNK))
        bits = builder.bitcast(builder.fcmp_unordered("<=", loaded, limits), ir.IntType(CHUNK))
        return builder.zext(bits, ir.IntType(64))

    return types.int64(values, types.int64, types.int64, types.float32), generate


def _emit_lowest_bit(typing_context, bits):  # type: ignore[no-untyped-def]
    """Return the place of the lowest bit that is set; there must be one."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


_not_beyond: Any = intrinsic(_emit_not_beyond)
_lowest_bit: Any = intrinsic(_emit_lowest_bit)


@njit(cache=True, nogil=True)
def _survivors(  # type: ignore[no-untyped-def]
    fast, nearest, k, start, stop, own, ids, dead, filter_mode, mask, chosen,
    metric, relative, absolute, limit, local, spare, n_local, rows, values, n_rows,
):  # fmt: skip
    """Keep the entries start..stop that may be among the best, by their fast distances.

    ``local`` is a heap of the best fast distances seen in this visit, the worst at its root. The
    entries of a bucket are different items, so as soon as it is full there are that many items no
    farther than its root, and nothing beyond the root, errors allowed for, is needed.
    Returns the new sizes and the new limit.
    """
    room = local.shape[1]
    # A limit from the nearest of each chunk: as many different items as are wanted, one more if
    # one may be left out. It takes the place of the heap. (Not if others may be left out.)
    wanted = room + (own >= 0)
    n_chunks = (stop - start) // CHUNK
    has_limit = (
        n_local == 0 and dead.shape[0] == 0 and filter_mode == NO_FILTER and n_chunks >= wanted
    )
    if has_limit:
        nth = _nth_smallest(nearest, k, n_chunks, wanted, spare)
        limit = min(limit, _loosened(nth, metric, relative, absolute))
    for low in range(start, stop, CHUNK):
        # Most entries are too far, and are passed over a chunk at a time.
        near = _not_beyond(fast, k, low - start, limit)
        if stop - low < CHUNK:
            near &= (1 << (stop - low)) - 1
        while near != 0:
            row = low + _lowest_bit(near)
            near &= near - 1
            value = fast[k, row - start]
            if value > limit:  # which came down since
                continue
            if dead.shape[0] > 0 and dead[row] != 0:
                continue
            # Ids lie elsewhere in memory, and one is read only if it may decide something.
            if own >= 0 and ids[row] == own:
                continue
            if filter_mode != NO_FILTER and not is_chosen(ids[row], filter_mode, mask, chosen):
                continue
            rows[k, n_rows] = row
            values[k, n_rows] = value
            n_rows += 1
            if has_limit:  # and a heap would not bring it down by much
                continue
            if n_local < room:
                _push_largest(local, k, value, n_local)
                n_local += 1
            elif value < local[k, 0]:
                _replace_largest(local, k, value, room)
            if n_local == room:
                limit = min(limit, _loosened(local[k, 0], metric, relative, absolute))
    return n_local, n_rows, limit


@njit(cache=True, nogil=True)
def _loosened(worst, metric, relative, absolute):  # type: ignore[no-untyped-def]
    """Return the fast distance beyond which nothing can be better than a fast distance ``worst``.

    Both may be off, in opposite directions, hence twice the error.
    """
    if metric == EUCLIDEAN:
        bound = np.float64(worst) * (1.0 + 2.0 * relative) + 2.0 * absolute
    else:
        bound = np.float64(worst) + abs(np.float64(worst)) * 1e-6 + 2.0 * absolute
    bound += abs(bound) * 1e-6  # rounding to float32, and of the result that is returned
    if bound != bound:  # NaN: an overflow in the fast pass
        return np.float32(np.inf)
    return np.float32(bound)


@njit(cache=True, nogil=True)
def _measure(  # type: ignore[no-untyped-def]
    rows, values, names, k, n_rows, limit, queries, q, metric,
    vectors, ids, several, keys, kept, size,
):  # fmt: skip
    """Measure the survivors exactly and put the best into the heap; return its size."""
    room = keys.shape[1]
    n_near = 0
    for j in range(n_rows):
        if not values[k, j] > limit:
            rows[k, n_near] = rows[k, j]
            n_near += 1
    # All ids first: reads that do not wait for each other.
    for j in range(n_near):
        names[j] = ids[rows[k, j]]
    for j in range(n_near):
        item_id = names[j]
        key = exact_key(vectors, rows[k, j], queries, q, metric)
        if size == room and not _worse(keys[q, 0], kept[q, 0], key, item_id):
            continue
        if several:  # an item lies in several buckets, and must not be kept twice
            seen = False
            for other in range(size):
                if kept[q, other] == item_id:
                    seen = True
                    break
            if seen:
                continue
        if size < room:
            _sift_up(keys, kept, q, size, key, item_id)
            size += 1
        else:
            _sift_down(keys, kept, q, 0, size, key, item_id)
    return size


@njit(cache=True, nogil=True)
def scan(  # type: ignore[no-untyped-def]
    queries, own, metric, slack, visits, order,
    vectors, ids, dead, several, filter_mode, mask, chosen, keys, kept, sizes,
):  # fmt: skip
    """Scan the entries of one segment for a batch of queries, and update what was found so far.

    Parameters
    ----------
    queries : float32[q, dim]
    own : int64[q]
        Id of the item that each query must not find; -1 for none.
    metric
        ``EUCLIDEAN`` or ``INNER_PRODUCT``.
    slack : float64[q]
        Absolute error that the fast inner product of a query may have; not used otherwise.
    visits : int64[v, 5]
        Columns 0, 2 and 3: which query looks at which entries, from the first to before the last.
    order : int64[m]
        The visits to make, of this segment, sorted by their first entry. No query comes twice
        with the same first entry.
    vectors, ids, dead : float32[m, dim], int64[m], uint8[m] or uint8[0]
        The entries of the segment; non-zero in ``dead`` means removed.
    several
        Whether an item may be in more than one bucket of the segment.
    filter_mode, mask, chosen : int, bool[...], int64[...]
        See :func:`is_chosen`.
    keys, kept, sizes : float32[q, n], int64[q, n], int64[q]
        In and out: per query a heap of the best keys and ids, and how many there are.
    """
    dim = queries.shape[1]
    relative = (dim + 8) * 2.0**-23  # twice the worst rounding error of the fast pass
    longest = 0
    for row in order:
        longest = max(longest, visits[row, 3] - visits[row, 2])
    tile = min(-(-longest // CHUNK) * CHUNK, _TILE)  # whole chunks
    fast = np.empty((4, tile), dtype=np.float32)
    nearest = np.empty((4, tile // CHUNK), dtype=np.float32)
    rows = np.empty((4, longest), dtype=np.int64)
    values = np.empty((4, longest), dtype=np.float32)
    names = np.empty(longest, dtype=np.int64)
    local = np.empty((4, keys.shape[1]), dtype=np.float32)
    spare = np.empty((4, keys.shape[1] + 1), dtype=np.float32)
    n_local = np.zeros(4, dtype=np.int64)
    n_rows = np.zeros(4, dtype=np.int64)
    limits = np.empty(4, dtype=np.float32)
    who = np.zeros(4, dtype=np.int64)
    stops = np.zeros(4, dtype=np.int64)
    visit = 0
    while visit < order.shape[0]:
        # Up to four visits with one start: a tile is read once for all of them.
        start = visits[order[visit], 2]
        farthest = start
        together = 0
        while together < 4 and visit + together < order.shape[0]:
            row = order[visit + together]
            if visits[row, 2] != start:
                break
            who[together] = visits[row, 0]
            stops[together] = visits[row, 3]
            farthest = max(farthest, visits[row, 3])
            together += 1
        for k in range(together):
            q = who[k]
            absolute = 1e-36 if metric == EUCLIDEAN else slack[q]
            n_local[k] = 0
            n_rows[k] = 0
            limits[k] = np.inf
            if sizes[q] == keys.shape[1]:
                limits[k] = _limit(keys[q, 0], metric, relative, absolute)
        for low in range(start, farthest, tile):
            high = min(low + tile, farthest)
            if together >= 3:
                qa, qb, qc, qd = who[0], who[1], who[2], who[together - 1]
                if metric == EUCLIDEAN:
                    _squared_4(vectors, low, high, queries, qa, qb, qc, qd, fast, nearest)
                else:
                    _negative_dot_4(vectors, low, high, queries, qa, qb, qc, qd, fast, nearest)
            else:
                for k in range(together):
                    if metric == EUCLIDEAN:
                        _squared_1(vectors, low, high, queries, who[k], k, fast, nearest)
                    else:
                        _negative_dot_1(vectors, low, high, queries, who[k], k, fast, nearest)
            for k in range(together):
                q = who[k]
                absolute = 1e-36 if metric == EUCLIDEAN else slack[q]
                n_local[k], n_rows[k], limits[k] = _survivors(
                    fast, nearest, k, low, min(high, stops[k]), own[q], ids, dead,
                    filter_mode, mask, chosen, metric, relative, absolute,
                    limits[k], local, spare, n_local[k], rows, values, n_rows[k],
                )  # fmt: skip
        for k in range(together):
            q = who[k]
            sizes[q] = _measure(
                rows, values, names, k, n_rows[k], limits[k], queries, q, metric,
                vectors, ids, several, keys, kept, sizes[q],
            )  # fmt: skip
        visit += together


@njit(cache=True, nogil=True)
def finish(keys, kept, sizes, metric):  # type: ignore[no-untyped-def]
    """Turn heaps into rows: best first, inner products with their own sign, padded."""
    for q in range(keys.shape[0]):
        size = sizes[q]
        for end in range(size - 1, 0, -1):
            key, item_id = keys[q, end], kept[q, end]
            worst_key, worst_id = keys[q, 0], kept[q, 0]
            _sift_down(keys, kept, q, 0, end, key, item_id)
            keys[q, end] = worst_key
            kept[q, end] = worst_id
        for k in range(size, keys.shape[1]):
            keys[q, k] = np.inf
            kept[q, k] = -1
        if metric == INNER_PRODUCT:
            for k in range(keys.shape[1]):
                keys[q, k] = 0.0 - keys[q, k]  # no negative zero; padding becomes -inf


# -- several threads ------------------------------------------------------------------------------
#
# A batch of some dozen queries takes less time than a sleeping thread needs to wake up. So threads
# that have just helped stay awake for a moment and look at a board, and whoever searches never
# waits for one that has not begun: shares of the work are taken one by one, by whoever is free.
#
# Invariant: a helper counts itself in before it looks whether the board is open, and the owner
# closes the board before it waits until nobody is in. Both in one total order, so no helper reads
# the board after its owner has gone on. `_team.py` is the Python half.

BOARD_LENGTH = 64
_OPEN, _NEXT, _INSIDE = 0, 8, 16  # each on a cache line of its own
ATTENDING = 24  # helpers who look at the board
HELPED = 25  # shares that helpers took, ever
_JOB = 32


def _emit_load(typing_context, board, slot):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.load_atomic(builder.gep(array.data, [args[1]]), "seq_cst", 8)

    return types.int64(board, types.int64), generate


def _emit_store(typing_context, board, slot, value):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        array = context.make_array(signature.args[0])(context, builder, args[0])
        builder.store_atomic(args[2], builder.gep(array.data, [args[1]]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(board, types.int64, types.int64), generate


def _emit_add(typing_context, board, slot, value):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.atomic_rmw("add", builder.gep(array.data, [args[1]]), args[2], "seq_cst")

    return types.int64(board, types.int64, types.int64), generate


def _emit_pointer(typing_context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


_load: Any = intrinsic(_emit_load)
_store: Any = intrinsic(_emit_store)
_add: Any = intrinsic(_emit_add)  # returns what was there before
_at: Any = intrinsic(_emit_pointer)


@njit(cache=True, nogil=True)
def arrange(visits, n_queries, n_segments, n_shares):  # type: ignore[no-untyped-def]
    """Divide visits into shares of about equal work.

    All visits of a query go into one share, because they use the query's heap. Queries are dealt
    out by where they start, so that those who look at the same bucket stay together.

    Returns
    -------
    order : int64[v]
        Rows of ``visits`` by segment, share and first entry.
    cuts : int64[n_segments, n_shares + 1]
        Where the shares of each segment begin and end in ``order``.
    """
    n_visits = visits.shape[0]
    longest = visits[:, 2].max() + 1
    place = visits[:, 1] * longest + visits[:, 2]
    first = np.full(n_queries, n_segments * longest)
    work = np.zeros(n_queries)
    total = 0.0
    for row in range(n_visits - 1, -1, -1):
        query = visits[row, 0]
        first[query] = place[row]
        work[query] += visits[row, 3] - visits[row, 2]
        total += visits[row, 3] - visits[row, 2]
    share = np.empty(n_queries, dtype=np.int64)
    before = 0.0
    for query in np.argsort(first, kind="mergesort"):
        middle = before + work[query] / 2
        share[query] = min(np.int64(middle * n_shares / total), n_shares - 1)
        before += work[query]
    ends = np.zeros(n_segments * n_shares + 1, dtype=np.int64)
    for row in range(n_visits):
        ends[visits[row, 1] * n_shares + share[visits[row, 0]] + 1] += 1
    ends = np.cumsum(ends)
    cuts = np.empty((n_segments, n_shares + 1), dtype=np.int64)
    for segment in range(n_segments):
        cuts[segment] = ends[segment * n_shares : (segment + 1) * n_shares + 1]
    order = np.empty(n_visits, dtype=np.int64)
    for row in np.argsort(place, kind="mergesort"):
        group = visits[row, 1] * n_shares + share[visits[row, 0]]
        order[ends[group]] = row
        ends[group] += 1
    return order, cuts


@njit(cache=True, nogil=True)
def scan_together(  # type: ignore[no-untyped-def]
    board, cuts, queries, own, metric, slack, visits, order,
    vectors, ids, dead, several, filter_mode, mask, chosen, keys, kept, sizes,
):  # fmt: skip
    """Do what :func:`scan` does, share after share, with the help of whoever attends the board.

    ``cuts`` says where the shares begin and end in ``order``; the board must be ours alone.
    """
    n_shares = cuts.shape[0] - 1
    job = board[_JOB:]
    job[0], job[1], job[2], job[3] = queries.ctypes.data, own.ctypes.data, metric, slack.ctypes.data
    job[4], job[5], job[6] = visits.ctypes.data, visits.shape[0], order.ctypes.data
    job[7], job[8], job[9] = order.shape[0], cuts.ctypes.data, n_shares
    job[10], job[11], job[12] = vectors.ctypes.data, vectors.shape[0], vectors.shape[1]
    job[13], job[14], job[15] = ids.ctypes.data, dead.ctypes.data, dead.shape[0]
    job[16], job[17] = several, filter_mode
    job[18], job[19] = mask.ctypes.data, mask.shape[0]
    job[20], job[21] = chosen.ctypes.data, chosen.shape[0]
    job[22], job[23], job[24] = keys.ctypes.data, keys.shape[0], keys.shape[1]
    job[25], job[26] = kept.ctypes.data, sizes.ctypes.data
    _store(board, _NEXT, 0)
    _store(board, _OPEN, 1)
    while True:
        share = _add(board, _NEXT, 1)
        if share >= n_shares:
            break
        scan(
            queries, own, metric, slack, visits, order[cuts[share] : cuts[share + 1]],
            vectors, ids, dead, several, filter_mode, mask, chosen, keys, kept, sizes,
        )  # fmt: skip
    _store(board, _OPEN, 0)
    while _load(board, _INSIDE) != 0:
        pass


@njit(cache=True, nogil=True)
def attend(board, patience):  # type: ignore[no-untyped-def]
    """Help with whatever is on the board, until nothing was there for ``patience`` looks."""
    _add(board, ATTENDING, 1)
    looks = 0
    while looks < patience:
        looks += 1
        if _load(board, _OPEN) == 0:
            continue
        _add(board, _INSIDE, 1)
        if _load(board, _OPEN) == 1:
            _take_shares(board, board[_JOB:])
            looks = 0
        _add(board, _INSIDE, -1)
        while looks < patience and _load(board, _OPEN) == 1:  # its last shares are being finished
            looks += 1
    _add(board, ATTENDING, -1)


@njit(cache=True, nogil=True)
def _take_shares(board, job):  # type: ignore[no-untyped-def]
    n_shares = job[9]
    share = _add(board, _NEXT, 1)
    if share >= n_shares:
        return
    dim, n_queries = job[12], job[23]
    queries = carray(_at(job[0]), (n_queries, dim), np.float32)
    own = carray(_at(job[1]), (n_queries,), np.int64)
    slack = carray(_at(job[3]), (n_queries,), np.float64)
    visits = carray(_at(job[4]), (job[5], 5), np.int64)
    order = carray(_at(job[6]), (job[7],), np.int64)
    cuts = carray(_at(job[8]), (n_shares + 1,), np.int64)
    vectors = carray(_at(job[10]), (job[11], dim), np.float32)
    ids = carray(_at(job[13]), (job[11],), np.int64)
    dead = carray(_at(job[14]), (job[15],), np.uint8)
    mask = carray(_at(job[18]), (job[19],), np.bool_)
    chosen = carray(_at(job[20]), (job[21],), np.int64)
    keys = carray(_at(job[22]), (n_queries, job[24]), np.float32)
    kept = carray(_at(job[25]), (n_queries, job[24]), np.int64)
    sizes = carray(_at(job[26]), (n_queries,), np.int64)
    while share < n_shares:
        scan(
            queries, own, job[2], slack, visits, order[cuts[share] : cuts[share + 1]],
            vectors, ids, dead, job[16] != 0, job[17], mask, chosen, keys, kept, sizes,
        )  # fmt: skip
        _add(board, HELPED, 1)
        share = _add(board, _NEXT, 1)


# -- segments by address ---------------------------------------------------------------------------
#
# Arrays of a segment may be read-only, which is another type to the compiler, and each array costs
# time in a call. So kernels are told where they lie: numbers and addresses, in this order.

N_ENTRIES, VECTORS, IDS, N_DEAD, DEAD = 0, 1, 2, 3, 4
# Of an index that has this segment alone; MAX_BUCKET_ID is that of the last bucket there could be.
MAX_BUCKET_ID, N_BUCKETS, BUCKETS, OFFSETS, LIVE, N_CHECKED, CHECKED = 5, 6, 7, 8, 9, 10, 11
TABLE_LENGTH = 12


@njit(cache=True, nogil=True)
def scan_segment(  # type: ignore[no-untyped-def]
    table, board, cuts, queries, own, metric, slack, visits, order,
    several, filter_mode, mask, chosen, keys, kept, sizes,
):  # fmt: skip
    """Scan a segment: alone, or if there are several shares together with helpers.

    Parameters
    ----------
    table : int64[TABLE_LENGTH]
        Where the entries are; ``N_DEAD`` is 0 if nothing was removed.
    board, cuts, ...
        As in :func:`scan_together`; the board is not used for one share.
    """
    n_entries = table[N_ENTRIES]
    vectors = carray(_at(table[VECTORS]), (n_entries, queries.shape[1]), np.float32)
    ids = carray(_at(table[IDS]), (n_entries,), np.int64)
    dead = carray(_at(table[DEAD]), (table[N_DEAD],), np.uint8)
    if cuts.shape[0] == 2:
        scan(
            queries, own, metric, slack, visits, order[cuts[0] : cuts[1]],
            vectors, ids, dead, several, filter_mode, mask, chosen, keys, kept, sizes,
        )  # fmt: skip
    else:
        scan_together(
            board, cuts, queries, own, metric, slack, visits, order,
            vectors, ids, dead, several, filter_mode, mask, chosen, keys, kept, sizes,
        )  # fmt: skip


# -- a plain search in one call -------------------------------------------------------------------
#
# A call into compiled code costs a tenth of a microsecond per argument, and a check in Python as
# much as some hundred distances. So the search that is asked most often has a way of its own.


_MOST_BUCKETS = 32  # per query: to see which are named twice, each is compared with all


@njit(cache=True, nogil=True)
def answer(  # type: ignore[no-untyped-def]
    table, max_norm, queries, bucket_ids, metric, fill, most, board, n_shares,
    keys, kept, candidates,
):  # fmt: skip
    """Check, plan, scan and finish a search by bucket ids, or say that it takes more than this.

    Parameters
    ----------
    table : int64[TABLE_LENGTH]
        Where things are; ``N_CHECKED`` is 0 if nothing needs to be checked.
    max_norm
        The largest norm of an entry.
    queries, bucket_ids : float32[q, dim], int64[q, p]
    metric, fill
        As in a request; with ``fill`` a query that finds too little takes more than this.
    most
        A search that reads this many numbers, for more than one visit, takes more than this.
    board, n_shares
        Helpers, and how many shares to make for them; the board is not used if there is one.
    keys, kept, candidates : float32[q, n], int64[q, n], int64[q]
        The result.

    Returns
    -------
    done : bool
        If not, nothing is known: the search has to be made in the other way, which also knows how
        to say what is wrong with the input.
    """
    n_queries, dim = queries.shape
    n_named = bucket_ids.shape[1]
    n_buckets, n_checked = table[N_BUCKETS], table[N_CHECKED]
    if n_named > _MOST_BUCKETS:
        return False
    buckets = carray(_at(table[BUCKETS]), (n_buckets,), np.int64)
    offsets = carray(_at(table[OFFSETS]), (n_buckets + 1,), np.int64)
    live = carray(_at(table[LIVE]), (n_buckets,), np.int64)
    checked = carray(_at(table[CHECKED]), (n_checked,), np.bool_)
    slack = np.empty(n_queries)
    visits = np.empty((n_queries * n_named, 5), dtype=np.int64)
    n_visits = 0
    read = 0
    for q in range(n_queries):
        square = _sum_of_squares(queries, q)
        if not square < np.inf:
            return False
        slack[q] = _slack(square, max_norm, dim)
        found = 0
        for named in range(n_named):
            wanted = bucket_ids[q, named]
            if wanted < 0 or wanted > table[MAX_BUCKET_ID]:
                return False
            again = False
            for other in range(named):
                again = again or bucket_ids[q, other] == wanted
            if again:
                continue
            number = np.searchsorted(buckets, wanted)
            if number == n_buckets or buckets[number] != wanted or live[number] == 0:
                continue
            if n_checked > 0 and not checked[number]:
                return False
            visits[n_visits, 0] = q
            visits[n_visits, 1] = 0
            visits[n_visits, 2] = offsets[number]
            visits[n_visits, 3] = offsets[number + 1]
            visits[n_visits, 4] = number
            n_visits += 1
            found += live[number]
            read += (offsets[number + 1] - offsets[number]) * dim
        if (fill and found < keys.shape[1]) or (read >= most and n_visits > 1):
            return False
        candidates[q] = found
    visits = visits[:n_visits]
    if n_shares > 1 and n_visits > 1:
        order, shares = arrange(visits, n_queries, 1, n_shares)
        cuts = shares[0]
    else:
        order = np.argsort(visits[:, 2], kind="mergesort")
        cuts = np.array([0, n_visits])
    own = np.full(n_queries, -1)
    sizes = np.zeros(n_queries, dtype=np.int64)
    # Typed: plain constants would have all of the scan compiled once more, for these values alone.
    several, no_filter = np.bool_(False), np.int64(NO_FILTER)
    scan_segment(
        table, board, cuts, queries, own, metric, slack, visits, order,
        several, no_filter, np.empty(0, dtype=np.bool_), np.empty(0, dtype=np.int64),
        keys, kept, sizes,
    )  # fmt: skip
    finish(keys, kept, sizes, metric)
    return True
