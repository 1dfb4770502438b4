"""The search kernel: from queries to the best entries of their buckets, in one compiled call.

Two passes, fused. The fast one computes float32 distances of a tile of entries to up to four
queries at once, summing in whatever order suits the vector unit. It decides nothing but this:
an entry that cannot be among the best, the rounding error allowed for, is dropped. Whatever
remains is ranked again in float64, in a fixed order, and only this number counts. So the
result is the same for one query or many, one thread or more, one segment or several: the best by
(distance as returned, id).

Entries lie row after row in memory, so one query on a cold bucket runs at the speed of the memory
bus. Visits are sorted by where they start: queries that look at the same bucket are next to each
other, and a tile is read from memory once for all of them.

Functions that are called for each visit take an array and the number of a row, not the row: a slice
would count references, with an atomic operation each time, which cost a tenth of a scan.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hashcade._kernels import helper, kernel
from hashcade.index import layout
from hashcade.index.layout import float32_rows, int32s, int64s, uint8s
from hashcade.index.probe import (
    NO_FILTER,
    counts_one_by_one,
    passes_filter,
    plan_visits,
    stable_argsort,
)

EUCLIDEAN = 0
INNER_PRODUCT = 1

# What a search returns: the result is there; a query has NaN or a bucket id out of range; a block
# of a stored segment has to be checked first.
DONE = 0
BAD_INPUT = 1
UNCHECKED = 2

# Sums may be reordered and fused, which is what a vector unit needs. Nothing is assumed about
# NaN and infinity: the comparisons below rely on both.
_SUMS = {"reassoc", "contract", "nsz"}
CHUNK = 16
_TILE = 4096  # entries whose fast distances are held at a time: they stay in the first cache


# -- fast distances: float32, any order; also the nearest of every sixteen entries ---------------


@helper(fastmath=_SUMS)
def fast_distances(vectors, start, stop, queries, q, k, metric, out, nearest):  # type: ignore[no-untyped-def]
    """Write squared distances, or minus inner products, of entries to query ``q`` into row ``k``."""
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


# -- what may be dropped -----------------------------------------------------------------------


@helper(fastmath=_SUMS)
def _sum_of_squares(queries, q):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(queries.shape[1]):
        total += np.float64(queries[q, j]) * np.float64(queries[q, j])
    return total


@helper()
def inner_product_error(square, max_norm, dim):  # type: ignore[no-untyped-def]
    """Return how far a fast inner product may be off, for a query with this sum of squares."""
    size = math.sqrt(square) * max_norm
    if size > 1e37:  # float32 may overflow: everything is ranked exactly
        return np.inf
    return (dim + 8) * 2.0**-23 * size + 1e-36


@helper()
def prune_bound(worst, relative, absolute):  # type: ignore[no-untyped-def]
    """Return the fast distance beyond which nothing can be better than a fast distance ``worst``.

    Both may be off, in opposite directions, hence twice the error. Rounded up into float32.
    """
    bound = worst + abs(worst) * (2.0 * relative + 1e-6) + 2.0 * absolute
    bound += abs(bound) * 1e-6  # rounding to float32, and of the result that is returned
    if bound != bound:  # NaN: an overflow in the fast pass
        return np.float32(np.inf)
    return np.float32(bound)


@helper()
def _push_largest(heaps, k, value, size):  # type: ignore[no-untyped-def]
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if not value > heaps[k, parent]:
            break
        heaps[k, hole] = heaps[k, parent]
        hole = parent
    heaps[k, hole] = value


@helper()
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


@helper()
def prune(  # type: ignore[no-untyped-def]
    fast, nearest, k, start, stop, own, ids, removed, filter_mode, mask, allowed,
    relative, absolute, bound, heaps, size, rows, values, n_rows,
):  # fmt: skip
    """Keep the entries start..stop that may be among the best, by their fast distances.

    ``heaps[k]`` has the best fast distances of this visit, the worst at its root. The entries of a
    bucket are different items, so as soon as it is full there are that many items no farther than
    its root, and nothing beyond the root, errors allowed for, is needed.
    Returns the new sizes of heap and rows, and the new bound.
    """
    room = heaps.shape[1] - 1
    # A bound from the nearest of each chunk: as many different items as are asked for, one more
    # if one may be left out. It takes the place of the heap. (Not if others may be left out.)
    n_needed = room + (own >= 0)
    n_chunks = (stop - start) // CHUNK
    by_chunks = (
        size == 0 and removed.shape[0] == 0 and filter_mode == NO_FILTER and n_chunks >= n_needed
    )
    if by_chunks:
        for chunk in range(n_needed):
            _push_largest(heaps, k, nearest[k, chunk], chunk)
        for chunk in range(n_needed, n_chunks):
            if nearest[k, chunk] < heaps[k, 0]:
                _replace_largest(heaps, k, nearest[k, chunk], n_needed)
        bound = min(bound, prune_bound(np.float64(heaps[k, 0]), relative, absolute))
    for low in range(start, stop, CHUNK):
        if nearest[k, (low - start) // CHUNK] > bound:  # most chunks are too far as a whole
            continue
        for row in range(low, min(low + CHUNK, stop)):
            value = fast[k, row - start]
            if value > bound or (removed.shape[0] > 0 and removed[row] != 0):
                continue
            # Ids lie elsewhere in memory, and one is read only if it may decide something.
            if own >= 0 and ids[row] == own:
                continue
            if filter_mode != NO_FILTER and not passes_filter(ids[row], filter_mode, mask, allowed):
                continue
            rows[k, n_rows] = row
            values[k, n_rows] = value
            n_rows += 1
            if by_chunks:  # a heap would not bring the bound down by much
                continue
            if size < room:
                _push_largest(heaps, k, value, size)
                size += 1
            elif value < heaps[k, 0]:
                _replace_largest(heaps, k, value, room)
            if size == room:
                bound = min(bound, prune_bound(np.float64(heaps[k, 0]), relative, absolute))
    return size, n_rows, bound


# -- the best so far: per query a heap of keys and ids with the worst at its root ----------------


@helper()
def _worse(key_a, id_a, key_b, id_b):  # type: ignore[no-untyped-def]
    return key_a > key_b or (key_a == key_b and id_a > id_b)


@helper()
def _sift_down(keys, names, q, size, key, item_id):  # type: ignore[no-untyped-def]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and _worse(
            keys[q, child + 1], names[q, child + 1], keys[q, child], names[q, child]
        ):
            child += 1
        if not _worse(keys[q, child], names[q, child], key, item_id):
            break
        keys[q, hole] = keys[q, child]
        names[q, hole] = names[q, child]
        hole = child
    keys[q, hole] = key
    names[q, hole] = item_id


@helper()
def rerank(  # type: ignore[no-untyped-def]
    rows, values, k, n_rows, bound, queries, q, metric, vectors, ids, several, keys, names, size
):
    """Rank what is left exactly and put the best into the heap; return its size."""
    room = keys.shape[1]
    for j in range(n_rows):
        if values[k, j] > bound:  # which came down since
            continue
        item_id = ids[rows[k, j]]
        key = exact_key(vectors, rows[k, j], queries, q, metric)
        if size == room and not _worse(keys[q, 0], names[q, 0], key, item_id):
            continue
        if several:  # an item lies in several buckets, and must not be taken twice
            again = False
            for other in range(size):
                if names[q, other] == item_id:
                    again = True
                    break
            if again:
                continue
        if size == room:
            _sift_down(keys, names, q, size, key, item_id)
            continue
        hole = size
        while hole > 0:
            parent = (hole - 1) >> 1
            if not _worse(key, item_id, keys[q, parent], names[q, parent]):
                break
            keys[q, hole] = keys[q, parent]
            names[q, hole] = names[q, parent]
            hole = parent
        keys[q, hole] = key
        names[q, hole] = item_id
        size += 1
    return size


@helper()
def finish(keys, names, q, size, metric):  # type: ignore[no-untyped-def]
    """Turn a heap into a row: best first, inner products with their own sign, padded."""
    for end in range(size - 1, 0, -1):
        worst_key, worst_id = keys[q, 0], names[q, 0]
        _sift_down(keys, names, q, end, keys[q, end], names[q, end])
        keys[q, end] = worst_key
        names[q, end] = worst_id
    for k in range(size, keys.shape[1]):
        keys[q, k] = np.inf
        names[q, k] = -1
    if metric == INNER_PRODUCT:
        for k in range(keys.shape[1]):
            keys[q, k] = 0.0 - keys[q, k]  # no negative zero; padding becomes -inf


# -- the search ----------------------------------------------------------------------------------


@helper()
def _has_checked_ids(table):  # type: ignore[no-untyped-def]
    """Whether ids and item numbers were checked as a whole, in all segments."""
    for segment in range(table[layout.N_SEGMENTS]):
        base = layout.FIRST_SEGMENT + segment * layout.SEGMENT_LENGTH
        n = table[base + layout.N_OWN_BUCKETS]
        if (
            table[base + layout.CHECKED] != 0
            and uint8s(table[base + layout.CHECKED], n + 1)[n] == 0
        ):
            return False
    return True


@helper()
def _has_checked_blocks(table, visits):  # type: ignore[no-untyped-def]
    """Whether all blocks that are about to be read were checked."""
    n_segments, n_buckets = table[layout.N_SEGMENTS], table[layout.N_BUCKETS]
    rows = int32s(table[layout.ROWS], n_segments * n_buckets)
    for visit in range(visits.shape[0]):
        segment, bucket = visits[visit, 1], visits[visit, 4]
        base = layout.FIRST_SEGMENT + segment * layout.SEGMENT_LENGTH
        if table[base + layout.CHECKED] != 0:
            row = (
                bucket if table[layout.ROWS] == 0 else np.int64(rows[segment * n_buckets + bucket])
            )
            if uint8s(table[base + layout.CHECKED], table[base + layout.N_OWN_BUCKETS])[row] == 0:
                return False
    return True


@helper()
def _order_of_visits(table, visits):  # type: ignore[no-untyped-def]
    """Sort visits by segment, then by entry; ``places`` are exact up to 2**53."""
    n_visits = visits.shape[0]
    if n_visits == 1:
        return np.zeros(1, dtype=np.int64)
    places = np.empty(n_visits)
    for visit in range(n_visits):
        before = np.int64(0)
        for segment in range(visits[visit, 1]):
            before += table[
                layout.FIRST_SEGMENT + segment * layout.SEGMENT_LENGTH + layout.N_ENTRIES
            ]
        places[visit] = before + visits[visit, 2]
    return stable_argsort(places)


@helper()
def search_segments(  # type: ignore[no-untyped-def]
    table, visits, queries, metric, errors, exclude, filter_mode, mask, allowed, keys, names, sizes
):
    """Make the visits, and leave the best of each query in its heap.

    ``errors`` : float64[q] is the absolute error of the fast distances of each query.
    """
    n_visits, dim, room = visits.shape[0], queries.shape[1], keys.shape[1]
    # Twice the worst relative error of the fast pass; that of inner products is absolute.
    relative = (dim + 8) * 2.0**-23 if metric == EUCLIDEAN else 0.0
    longest: Any = np.int64(0)
    for visit in range(n_visits):
        longest = max(longest, visits[visit, 3] - visits[visit, 2])
    order = _order_of_visits(table, visits)
    lanes: Any = n_visits if n_visits < 3 else np.int64(4)  # three are scanned as four
    tile: Any = min(-(-longest // CHUNK) * CHUNK, _TILE)  # whole chunks
    fast = np.empty((lanes, tile), dtype=np.float32)
    nearest = np.empty((lanes, tile // CHUNK), dtype=np.float32)
    rows = np.empty((lanes, longest), dtype=np.int64)
    values = np.empty((lanes, longest), dtype=np.float32)
    heaps = np.empty((lanes, room + 1), dtype=np.float32)
    bounds = np.empty(4, dtype=np.float32)
    lane = np.empty((4, 4), dtype=np.int64)  # of each visit: query, stop, size of heap, rows
    done = 0
    while done < n_visits:
        # Up to four visits with one start: a tile is read once for all of them.
        segment, start = visits[order[done], 1], visits[order[done], 2]
        base = layout.FIRST_SEGMENT + segment * layout.SEGMENT_LENGTH
        n_entries = table[base + layout.N_ENTRIES]
        vectors = float32_rows(table[base + layout.VECTORS], n_entries, dim)
        ids = int64s(table[base + layout.IDS], n_entries)
        removed = uint8s(
            table[base + layout.REMOVED], n_entries if table[base + layout.REMOVED] != 0 else 0
        )
        several = table[base + layout.ITEMS] != 0
        farthest = start
        together = 0
        while together < 4 and done + together < n_visits:
            row = order[done + together]
            if visits[row, 1] != segment or visits[row, 2] != start:
                break
            q = visits[row, 0]
            farthest = max(farthest, visits[row, 3])
            lane[together, 0], lane[together, 1] = q, visits[row, 3]
            lane[together, 2], lane[together, 3] = 0, 0
            bounds[together] = np.inf
            if sizes[q] == room:
                worst = np.float64(keys[q, 0])
                if metric == EUCLIDEAN:
                    worst *= worst
                bounds[together] = prune_bound(worst, relative, errors[q])
            together += 1
        for low in range(start, farthest, tile):
            high = min(low + tile, farthest)
            if together >= 3:
                fast_distances_of_four(
                    vectors, low, high, queries, lane[0, 0], lane[1, 0], lane[2, 0],
                    lane[together - 1, 0], metric, fast, nearest,
                )  # fmt: skip
            else:
                for k in range(together):
                    fast_distances(
                        vectors, low, high, queries, lane[k, 0], k, metric, fast, nearest
                    )
            for k in range(together):
                q = lane[k, 0]
                own = exclude[q] if exclude.shape[0] > 0 else np.int64(-1)
                lane[k, 2], lane[k, 3], bounds[k] = prune(
                    fast, nearest, k, low, min(high, lane[k, 1]), own, ids, removed,
                    filter_mode, mask, allowed, relative, errors[q],
                    bounds[k], heaps, lane[k, 2], rows, values, lane[k, 3],
                )  # fmt: skip
        for k in range(together):
            q = lane[k, 0]
            sizes[q] = rerank(
                rows, values, k, lane[k, 3], bounds[k], queries, q, metric,
                vectors, ids, several, keys, names, sizes[q],
            )  # fmt: skip
        done += together


@kernel()
def search(  # type: ignore[no-untyped-def]
    table, max_norm, queries, metric, order, first, last,
    bucket_ids, scores, n_probe, fill, max_candidates, exclude, filter_mode, mask, allowed,
    distances, ids, candidates, truncated,
):  # fmt: skip
    """Answer some queries: check, plan, scan and finish.

    Parameters
    ----------
    table
        See ``layout.py``.
    max_norm
        The largest norm of an entry.
    queries : float32[q, dim]
    metric
        ``EUCLIDEAN`` or ``INNER_PRODUCT``.
    order, first, last, bucket_ids, ..., allowed
        See :func:`plan_visits`.
    distances, ids, candidates, truncated : float32[q, n], int64[q, n], int64[q], bool[q]
        The result, of these queries alone.

    Returns
    -------
    status : int
        ``DONE``, ``BAD_INPUT`` or ``UNCHECKED``; unless done, contents of the result are undefined.
    """
    n_queries, dim = queries.shape
    errors = np.empty(n_queries)
    for local in range(first, last):
        q = order[local] if order.shape[0] > 0 else local
        square = _sum_of_squares(queries, q)
        if not square < np.inf:
            return BAD_INPUT
        for k in range(bucket_ids.shape[1]):
            if bucket_ids[q, k] < 0 or bucket_ids[q, k] > table[layout.MAX_BUCKET_ID]:
                return BAD_INPUT
        errors[q] = 1e-36
        if metric == INNER_PRODUCT:
            errors[q] = inner_product_error(square, max_norm, dim)
    one_by_one = counts_one_by_one(table, exclude, filter_mode, max_candidates)
    if one_by_one and not _has_checked_ids(table):
        return UNCHECKED
    visits = plan_visits(
        table, order, first, last, ids.shape[1], bucket_ids, scores, n_probe, fill,
        max_candidates, exclude, filter_mode, mask, allowed, candidates, truncated,
    )  # fmt: skip
    if not _has_checked_blocks(table, visits):
        return UNCHECKED
    sizes = np.zeros(n_queries, dtype=np.int64)
    if visits.shape[0] > 0:
        search_segments(
            table, visits, queries, metric, errors, exclude, filter_mode, mask, allowed,
            distances, ids, sizes,
        )  # fmt: skip
    for local in range(first, last):
        q = order[local] if order.shape[0] > 0 else local
        finish(distances, ids, q, sizes[q], metric)
    return DONE
