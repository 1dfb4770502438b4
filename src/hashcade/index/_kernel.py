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
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

EUCLIDEAN = 0
INNER_PRODUCT = 1

NO_FILTER = 0
FILTER_MASK = 1
FILTER_SORTED = 2

# Sums may be reordered and fused, which is what a vector unit needs. Nothing is assumed about
# NaN and infinity: the comparisons below rely on both.
_SUMS = {"reassoc", "contract", "nsz"}
_TILE_BYTES = 1 << 16


# -- fast distances: float32, any order ------------------------------------------------------


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _squared_1(vectors, start, stop, query, out):  # type: ignore[no-untyped-def]
    dim = vectors.shape[1]
    for row in range(start, stop):
        total = np.float32(0.0)
        for j in range(dim):
            diff = vectors[row, j] - query[j]
            total += diff * diff
        out[row - start] = total


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _squared_4(vectors, start, stop, qa, qb, qc, qd, out):  # type: ignore[no-untyped-def]
    dim = vectors.shape[1]
    for row in range(start, stop):
        a = np.float32(0.0)
        b = np.float32(0.0)
        c = np.float32(0.0)
        d = np.float32(0.0)
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
        out[0, row - start] = a
        out[1, row - start] = b
        out[2, row - start] = c
        out[3, row - start] = d


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _negative_dot_1(vectors, start, stop, query, out):  # type: ignore[no-untyped-def]
    dim = vectors.shape[1]
    for row in range(start, stop):
        total = np.float32(0.0)
        for j in range(dim):
            total += vectors[row, j] * query[j]
        out[row - start] = -total


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _negative_dot_4(vectors, start, stop, qa, qb, qc, qd, out):  # type: ignore[no-untyped-def]
    dim = vectors.shape[1]
    for row in range(start, stop):
        a = np.float32(0.0)
        b = np.float32(0.0)
        c = np.float32(0.0)
        d = np.float32(0.0)
        for j in range(dim):
            value = vectors[row, j]
            a += value * qa[j]
            b += value * qb[j]
            c += value * qc[j]
            d += value * qd[j]
        out[0, row - start] = -a
        out[1, row - start] = -b
        out[2, row - start] = -c
        out[3, row - start] = -d


# -- exact distances: float64, eight sums in a fixed order -------------------------------------


@njit(cache=True, nogil=True)
def exact_key(vector, query, metric):  # type: ignore[no-untyped-def]
    """Return what results are ordered by: the distance, or minus the inner product.

    Term j goes to sum number j % 8 and the eight sums are added up in order, so that the same
    bits come out on every machine. The result is rounded to float32 as the very last step.
    """
    dim = vector.shape[0]
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    whole = dim - dim % 8
    if metric == EUCLIDEAN:
        for j in range(0, whole, 8):
            d0 = np.float64(vector[j]) - np.float64(query[j])
            d1 = np.float64(vector[j + 1]) - np.float64(query[j + 1])
            d2 = np.float64(vector[j + 2]) - np.float64(query[j + 2])
            d3 = np.float64(vector[j + 3]) - np.float64(query[j + 3])
            d4 = np.float64(vector[j + 4]) - np.float64(query[j + 4])
            d5 = np.float64(vector[j + 5]) - np.float64(query[j + 5])
            d6 = np.float64(vector[j + 6]) - np.float64(query[j + 6])
            d7 = np.float64(vector[j + 7]) - np.float64(query[j + 7])
            s0 += d0 * d0
            s1 += d1 * d1
            s2 += d2 * d2
            s3 += d3 * d3
            s4 += d4 * d4
            s5 += d5 * d5
            s6 += d6 * d6
            s7 += d7 * d7
    else:
        for j in range(0, whole, 8):
            s0 += np.float64(vector[j]) * np.float64(query[j])
            s1 += np.float64(vector[j + 1]) * np.float64(query[j + 1])
            s2 += np.float64(vector[j + 2]) * np.float64(query[j + 2])
            s3 += np.float64(vector[j + 3]) * np.float64(query[j + 3])
            s4 += np.float64(vector[j + 4]) * np.float64(query[j + 4])
            s5 += np.float64(vector[j + 5]) * np.float64(query[j + 5])
            s6 += np.float64(vector[j + 6]) * np.float64(query[j + 6])
            s7 += np.float64(vector[j + 7]) * np.float64(query[j + 7])
    for j in range(whole, dim):  # fewer than eight are left, so sum 7 gets none of them
        if metric == EUCLIDEAN:
            diff = np.float64(vector[j]) - np.float64(query[j])
            term = diff * diff
        else:
            term = np.float64(vector[j]) * np.float64(query[j])
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


# -- the best n so far: a heap with the worst at its root ----------------------------------------


@njit(cache=True, nogil=True)
def _worse(key_a, id_a, key_b, id_b):  # type: ignore[no-untyped-def]
    return key_a > key_b or (key_a == key_b and id_a > id_b)


@njit(cache=True, nogil=True)
def _sift_down(keys, ids, hole, size, key, new_id):  # type: ignore[no-untyped-def]
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and _worse(keys[child + 1], ids[child + 1], keys[child], ids[child]):
            child += 1
        if not _worse(keys[child], ids[child], key, new_id):
            break
        keys[hole] = keys[child]
        ids[hole] = ids[child]
        hole = child
    keys[hole] = key
    ids[hole] = new_id


@njit(cache=True, nogil=True)
def _sift_up(keys, ids, hole, key, new_id):  # type: ignore[no-untyped-def]
    while hole > 0:
        parent = (hole - 1) // 2
        if not _worse(key, new_id, keys[parent], ids[parent]):
            break
        keys[hole] = keys[parent]
        ids[hole] = ids[parent]
        hole = parent
    keys[hole] = key
    ids[hole] = new_id


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
def _select(  # type: ignore[no-untyped-def]
    fast, start, stop, query, own, metric, relative, absolute,
    vectors, ids, dead, several, filter_mode, mask, chosen, keys, kept, size,
):  # fmt: skip
    """Measure exactly what the fast pass leaves of entries start..stop; return the heap's size."""
    room = keys.shape[0]
    limit = np.float32(np.inf)
    if size == room:
        limit = _limit(keys[0], metric, relative, absolute)
    for row in range(start, stop):
        # Written so that a NaN (an overflow in the fast pass) is measured, not dropped.
        if fast[row - start] > limit:
            continue
        item_id = ids[row]
        if item_id == own or (dead.shape[0] > 0 and dead[row] != 0):
            continue
        if not is_chosen(item_id, filter_mode, mask, chosen):
            continue
        key = exact_key(vectors[row], query, metric)
        if size == room and not _worse(keys[0], kept[0], key, item_id):
            continue
        if several:  # an item lies in several buckets, and must not be kept twice
            seen = False
            for k in range(size):
                if kept[k] == item_id:
                    seen = True
                    break
            if seen:
                continue
        if size < room:
            _sift_up(keys, kept, size, key, item_id)
            size += 1
        else:
            _sift_down(keys, kept, 0, size, key, item_id)
        if size == room:
            limit = _limit(keys[0], metric, relative, absolute)
    return size


@njit(cache=True, nogil=True)
def scan(  # type: ignore[no-untyped-def]
    queries, own, metric, slack, visit_query, visit_start, visit_stop,
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
    visit_query, visit_start, visit_stop : int64[v]
        Which query looks at which entries, sorted by start. No query comes twice with one start.
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
    tile = max(16, _TILE_BYTES // (4 * dim))
    fast = np.empty((4, tile), dtype=np.float32)
    n_visits = visit_query.shape[0]
    first = 0
    while first < n_visits:
        # A group of visits with one start: everybody who looks at this bucket.
        last = first + 1
        farthest = visit_stop[first]
        while last < n_visits and visit_start[last] == visit_start[first]:
            farthest = max(farthest, visit_stop[last])
            last += 1
        for low in range(visit_start[first], farthest, tile):
            high = min(low + tile, farthest)
            visit = first
            while visit < last:
                together = 4 if visit + 4 <= last else 1
                if together == 4:
                    qa = queries[visit_query[visit]]
                    qb = queries[visit_query[visit + 1]]
                    qc = queries[visit_query[visit + 2]]
                    qd = queries[visit_query[visit + 3]]
                    if metric == EUCLIDEAN:
                        _squared_4(vectors, low, high, qa, qb, qc, qd, fast)
                    else:
                        _negative_dot_4(vectors, low, high, qa, qb, qc, qd, fast)
                else:
                    if metric == EUCLIDEAN:
                        _squared_1(vectors, low, high, queries[visit_query[visit]], fast[0])
                    else:
                        _negative_dot_1(vectors, low, high, queries[visit_query[visit]], fast[0])
                for k in range(together):
                    q = visit_query[visit + k]
                    absolute = 1e-36 if metric == EUCLIDEAN else slack[q]
                    sizes[q] = _select(
                        fast[k], low, min(high, visit_stop[visit + k]), queries[q], own[q], metric,
                        relative, absolute, vectors, ids, dead, several,
                        filter_mode, mask, chosen, keys[q], kept[q], sizes[q],
                    )  # fmt: skip
                visit += together
        first = last


@njit(cache=True, nogil=True)
def finish(keys, kept, sizes, metric):  # type: ignore[no-untyped-def]
    """Turn heaps into rows: best first, inner products with their own sign, padded."""
    for q in range(keys.shape[0]):
        size = sizes[q]
        for end in range(size - 1, 0, -1):
            key, item_id = keys[q, end], kept[q, end]
            worst_key, worst_id = keys[q, 0], kept[q, 0]
            _sift_down(keys[q], kept[q], 0, end, key, item_id)
            keys[q, end] = worst_key
            kept[q, end] = worst_id
        for k in range(size, keys.shape[1]):
            keys[q, k] = np.inf
            kept[q, k] = -1
        if metric == INNER_PRODUCT:
            for k in range(keys.shape[1]):
                keys[q, k] = 0.0 - keys[q, k]  # no negative zero; padding becomes -inf
