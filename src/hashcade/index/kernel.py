"""The search kernel: from queries to the nearest entries of their buckets, in one compiled call.

Two fused passes. The fast one computes float32 distances of a tile of entries to up to four queries
at once, in whatever order is best for SIMD, or bounds them by int8 codes if there are any
(``quantised.py``), and prunes what cannot be among the nearest, with all rounding errors allowed
for. The remaining entries are reranked by float64 distances, summed in a fixed order. So the result
is bit-identical for one query or many, one thread or more, one segment or several, with codes or
without: the nearest by (distance as returned, id). Visits are sorted by position, so that a tile is
read from memory once for all queries that visit it.

Functions that are called for each visit take an array and a row number: a slice would need atomic
reference counting, which cost a tenth of a scan.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hashcade._kernels import helper, kernel, machine_code
from hashcade.index import distances, layout
from hashcade.index.cancel import is_cancelled
from hashcade.index.distances import (
    CHUNK,
    COSINE,
    EUCLIDEAN,
    INNER_PRODUCT,
    exact_key,
    exact_norm,
    prune_bound,
    sum_of_squares,
    widen,
)
from hashcade.index.layout import array_at, entries_at, segment_row
from hashcade.index.prefetch import will_read, will_read_rows
from hashcade.index.probe import is_above, pop, push, replace_root, sort_pairs
from hashcade.index.quantised import bound_distances, collect_missing
from hashcade.index.visits import counts_one_by_one, plan_visits

# Status of a search: done; a NaN or a bucket id out of range; blocks must be checked, or vectors
# fetched, first; cancelled.
DONE, BAD_INPUT, UNCHECKED, CANCELLED = range(4)
# What to do about vectors that are not available: stop, collect them, or collect them and use
# their code bounds for later visits.
STOP, COLLECT, COLLECT_AND_BOUND = range(3)

_CANCEL_MASK = 1023  # reranked entries between two reads of the flag: 100 µs, or 1 ms if long
_TILE = 4096  # entries with fast distances at a time: they stay in the L1 cache
_TILE_NUMBERS = 1 << 22  # numbers in the vectors of a tile
_FLOAT16_TILE = 256
_CACHE_LINE = 64  # bytes of a cache line
_MIN_CODED_DIM = 128  # from this dimension on codes are faster in memory


@helper()
def prune(  # type: ignore[no-untyped-def]
    fast, nearest, upper, nearest_upper, k, start, stop, excluded_id, ids, removed,
    relative, absolute, bound, heaps, size, rows, values, n_rows,
):  # fmt: skip
    """Select the entries start..stop - 1 that may be among the nearest, by their fast distances.

    ``upper`` is the same as ``fast``; with codes they are upper and lower bounds. ``heaps[k]`` has
    the best values of this visit, the worst at its root. The entries of a bucket are different
    items, so once the heap is full, nothing beyond its root plus the error can be among the
    nearest. Returns the new sizes of heap and rows, and the new bound.
    """
    capacity = heaps.shape[1] - 1
    # A bound from the nearest entry of each chunk: as many different items as are needed, one more
    # if one may be excluded. It replaces the heap if enough chunks have an entry left.
    n_needed = capacity + (excluded_id >= 0)
    n_chunks = (stop - start) // CHUNK
    by_chunks = size == 0 and n_chunks >= n_needed
    if by_chunks:
        for chunk in range(n_needed):
            value = nearest_upper[k, chunk]
            push(heaps, heaps, k, chunk, value, value)
        for chunk in range(n_needed, n_chunks):
            value = nearest_upper[k, chunk]
            if value < heaps[k, 0]:
                replace_root(heaps, heaps, k, n_needed, value, value)
        bound = min(bound, prune_bound(np.float64(heaps[k, 0]), relative, absolute))
        by_chunks = heaps[k, 0] < np.inf
    for low in range(start, stop, CHUNK):
        if nearest[k, (low - start) // CHUNK] > bound:  # most chunks are too far away as a whole
            continue
        for row in range(low, min(low + CHUNK, stop)):
            value = fast[k, row - start]
            if value > bound or (removed.shape[0] > 0 and removed[row] != 0):
                continue
            # Ids are elsewhere in memory: one is read only if needed.
            if excluded_id >= 0 and ids[row] == excluded_id:
                continue
            rows[k, n_rows] = row
            values[k, n_rows] = value
            n_rows += 1
            if by_chunks:  # a heap would hardly lower the bound
                continue
            value = upper[k, row - start]
            if size < capacity:
                push(heaps, heaps, k, size, value, value)
                size += 1
            elif value < heaps[k, 0]:
                replace_root(heaps, heaps, k, capacity, value, value)
            if size == capacity:
                bound = min(bound, prune_bound(np.float64(heaps[k, 0]), relative, absolute))
    return size, n_rows, bound


@helper()
def rerank(  # type: ignore[no-untyped-def]
    rows, values, k, n_rows, bound, queries, q, metric, norm, vectors, halves, wide, ids,
    has_duplicates, keys, result_ids, size, cancel,
):  # fmt: skip
    """Rank the selected entries exactly, in a heap with the worst at its root; return its size."""
    capacity, ids_start = keys.shape[1], rows.shape[1] >> 1
    n_left = 0
    for j in range(n_rows):  # the bound is lower now
        if not values[k, j] > bound:
            rows[k, n_left] = rows[k, j]
            n_left += 1
    for j in range(n_left):  # all ids first: independent reads
        rows[k, ids_start + j] = ids[rows[k, j]]
    for j in range(n_left):
        if j & _CANCEL_MASK == _CANCEL_MASK and is_cancelled(cancel):
            break
        item_id = rows[k, ids_start + j]
        if halves.shape[0] > 0:
            widen(halves, rows[k, j], rows[k, j] + 1, wide)
            key = exact_key(wide, np.int64(0), queries, q, metric, norm)
        else:
            key = exact_key(vectors, rows[k, j], queries, q, metric, norm)
        if size == capacity and not is_above(keys[q, 0], result_ids[q, 0], key, item_id):
            continue
        if has_duplicates:  # an item may be in several buckets, but only once in the result
            position = 0
            while position < size and result_ids[q, position] != item_id:
                position += 1
            if position < size:
                continue
        if size == capacity:
            replace_root(keys, result_ids, q, size, key, item_id)
        else:
            push(keys, result_ids, q, size, key, item_id)
            size += 1
    return size


@helper()
def finish(keys, result_ids, q, size, metric):  # type: ignore[no-untyped-def]
    """Turn a heap into a row: best first, inner products with their sign, padded."""
    for end in range(size - 1, 0, -1):
        keys[q, end], result_ids[q, end] = pop(keys, result_ids, q, end + 1)
    for k in range(size, keys.shape[1]):
        keys[q, k] = np.inf
        result_ids[q, k] = -1
    if metric == INNER_PRODUCT:
        for k in range(keys.shape[1]):
            keys[q, k] = 0.0 - keys[q, k]  # no negative zero; padding becomes -inf


@helper()
def _is_checked(table, segment, row):  # type: ignore[no-untyped-def]
    """Whether a block of a segment was checked; the one after the last is for all ids."""
    address = table[segment_row(segment) + layout.CHECKED]
    return address == 0 or array_at(address, row + 1, np.uint8)[row] != 0


@helper()
def search_segments(  # type: ignore[no-untyped-def]
    table, visits, queries, metric, norms, errors, exclude, keys, result_ids, sizes, cancel,
    on_missing, missing_bounds, missing,
):  # fmt: skip
    """Make the visits, and leave the nearest of each query in its heap; ``errors`` are absolute.

    Returns how many of the vectors that it needs are not available. With ``on_missing=STOP`` the
    first one ends the search; otherwise they are collected in ``missing``, see ``missing.py``, and
    ``missing_bounds`` has the least bound of each query.
    """
    n_visits, dim, capacity = visits.shape[0], queries.shape[1], keys.shape[1]
    n_missing = 0
    # Twice the worst relative error of the fast pass; that of inner products is absolute.
    fast_error = (dim + 8) * 2.0**-23 if metric == EUCLIDEAN else 0.0
    longest_visit: Any = np.int64(0)
    for visit in range(n_visits):
        longest_visit = max(longest_visit, visits[visit, 3] - visits[visit, 2])
    positions = np.empty((1, n_visits))  # of visits: by segment, then by entry
    order = np.empty((1, n_visits), dtype=np.int64)
    for visit in range(n_visits):
        base = segment_row(visits[visit, 1])
        positions[0, visit] = table[base + layout.FIRST_ENTRY] + visits[visit, 2]
        order[0, visit] = visit
    sort_pairs(positions, order, n_visits, cancel)
    n_lanes: Any = n_visits if n_visits < 3 else np.int64(4)  # three queries are scanned as four
    # Whole chunks; of long vectors fewer, so that the flag is read often enough.
    max_tile = max(min(_TILE, _TILE_NUMBERS // dim // CHUNK * CHUNK), CHUNK)
    is_float16 = table[segment_row(0) + layout.IS_FLOAT16] != 0
    if is_float16:  # a tile is converted to float32
        max_tile = min(max_tile, _FLOAT16_TILE)
    tile: Any = min(-(-longest_visit // CHUNK) * CHUNK, max_tile)
    fast = np.empty((n_lanes, tile), dtype=np.float32)
    nearest = np.empty((n_lanes, tile // CHUNK), dtype=np.float32)
    wide = fast
    if is_float16:
        wide = np.empty((tile, dim), dtype=np.float32)
    upper_out, nearest_out = fast, nearest  # with codes lower and upper bounds differ
    if table[segment_row(0) + layout.CODES] != 0:
        upper_out, nearest_out = np.empty_like(fast), np.empty_like(nearest)
    rows = np.empty((n_lanes, 2 * longest_visit), dtype=np.int64)  # and the ids to rerank
    values = np.empty((n_lanes, longest_visit), dtype=np.float32)
    heaps = np.empty((n_lanes, capacity + 1), dtype=np.float32)
    lane = np.empty((4, 4), dtype=np.int64)  # of each visit: query, stop, size of heap, rows
    # The bounds of the visits, followed by copies of the queries, each aligned to a cache line:
    # loads across two lines cost up to a quarter of a scan. One array, so that both live as long.
    copy_size: Any = -(-4 * dim // _CACHE_LINE) * _CACHE_LINE  # of a copy, in bytes
    bounds = np.empty(4 + (_CACHE_LINE + n_lanes * copy_size) // 4, dtype=np.float32)
    copies: Any = (bounds.ctypes.data + 16 + _CACHE_LINE - 1) // _CACHE_LINE * _CACHE_LINE
    n_done = 0
    while n_done < n_visits and not is_cancelled(cancel):
        # Up to four visits with the same start: a tile is read once for all of them.
        segment, start = visits[order[0, n_done], 1], visits[order[0, n_done], 2]
        base = segment_row(segment)
        ids = entries_at(table, segment, layout.IDS, np.int64)
        vectors = array_at(table[base + layout.VECTORS], (ids.shape[0], dim), np.float32)
        n_float16 = ids.shape[0] if is_float16 else 0
        halves = array_at(table[base + layout.VECTORS], (n_float16, dim), np.uint16)
        removed = entries_at(table, segment, layout.REMOVED, np.uint8)
        has_duplicates = table[base + layout.ITEMS] != 0
        codes = array_at(table[base + layout.CODES], (ids.shape[0], dim), np.int8)
        code_bounds = array_at(table[base + layout.CODE_BOUNDS], (ids.shape[0], 3), np.float32)
        last_stop = start
        group_size = 0
        while group_size < 4 and n_done + group_size < n_visits:
            row = order[0, n_done + group_size]
            if visits[row, 1] != segment or visits[row, 2] != start:
                break
            q = visits[row, 0]
            last_stop = max(last_stop, visits[row, 3])
            lane[group_size, 0], lane[group_size, 1] = q, visits[row, 3]
            lane[group_size, 2], lane[group_size, 3] = 0, 0
            copy = array_at(copies + group_size * copy_size, dim, np.float32)
            for j in range(dim):
                copy[j] = queries[q, j]
            group_size += 1
        # In memory short vectors are as fast as their codes, and faster for several queries at
        # once, for which they are read once; from a disk codes are faster.
        mapped = table[base + layout.MAPPED] != 0
        available = entries_at(table, segment, layout.VECTORS_AVAILABLE, np.uint8)
        is_partial = available.shape[0] > 0
        codes_are_faster = mapped or is_partial or (dim >= _MIN_CODED_DIM and group_size < 3)
        uses_codes = codes_are_faster and table[base + layout.CODES] != 0
        if uses_codes and mapped:
            will_read(table[base + layout.CODES] + start * dim, (last_stop - start) * dim)
            will_read(table[base + layout.CODE_BOUNDS] + start * 12, (last_stop - start) * 12)
        relative = 0.0 if uses_codes else fast_error
        upper, nearest_upper = (upper_out, nearest_out) if uses_codes else (fast, nearest)
        for k in range(group_size):
            q = lane[k, 0]
            bounds[k] = np.inf
            if sizes[q] == capacity:
                worst = np.float64(keys[q, 0])
                if metric == EUCLIDEAN and not uses_codes:  # squared
                    worst *= worst
                elif metric == COSINE:
                    worst = (worst - 1.0) * norms[q]
                bounds[k] = prune_bound(worst, relative, errors[q])
            if is_partial and on_missing == COLLECT_AND_BOUND:
                bounds[k] = min(bounds[k], missing_bounds[q])
        for low in range(start, last_stop, tile):
            if is_cancelled(cancel):
                break
            high = min(low + tile, last_stop)
            if uses_codes:
                for k in range(group_size):
                    bound_distances(
                        codes, code_bounds, removed, low, high, queries, lane[k, 0], k, metric,
                        fast, upper, nearest, nearest_upper,
                    )  # fmt: skip
            else:
                source, mask, first, last = vectors, removed, np.int64(low), high
                if is_float16:
                    widen(halves, low, high, wide)
                    source, mask, first, last = wide, removed[low:high], np.int64(0), high - low
                if group_size >= 3:
                    distances.fast_distances_of_four(
                        source, mask, first, last, copies, copies + copy_size,
                        copies + 2 * copy_size, copies + (group_size - 1) * copy_size, metric, fast,
                        nearest,
                    )  # fmt: skip
                else:
                    for k in range(group_size):
                        distances.fast_distances(
                            source, mask, first, last, copies + k * copy_size, k, metric, fast,
                            nearest,
                        )  # fmt: skip
            for k in range(group_size):
                q = lane[k, 0]
                excluded_id = exclude[q] if exclude.shape[0] > 0 else np.int64(-1)
                lane[k, 2], lane[k, 3], bounds[k] = prune(
                    fast, nearest, upper, nearest_upper, k, low, min(high, lane[k, 1]), excluded_id,
                    ids, removed, relative, errors[q], bounds[k], heaps, lane[k, 2], rows, values,
                    lane[k, 3],
                )  # fmt: skip
        for k in range(group_size):
            q = lane[k, 0]
            if uses_codes and mapped:
                will_read_rows(
                    table[base + layout.VECTORS], dim * (2 if is_float16 else 4), start, last_stop,
                    rows, k, lane[k, 3],
                )  # fmt: skip
            if is_partial:
                n_before = n_missing
                n_missing = collect_missing(
                    rows, values, k, lane[k, 3], bounds[k], available, segment, on_missing != STOP,
                    missing, n_missing,
                )  # fmt: skip
                if n_missing > 0 and on_missing == STOP:
                    return n_missing
                if n_missing > n_before:
                    # With a margin for rounding: it must not be below the bound that the
                    # vectors will give.
                    slack = errors[q] + (1e-4 * norms[q] if metric == COSINE else 0.0)
                    bound = prune_bound(np.float64(bounds[k]), 1e-5, slack)
                    missing_bounds[q] = min(missing_bounds[q], bound)
                    continue
            sizes[q] = rerank(
                rows, values, k, lane[k, 3], bounds[k], queries, q, metric, norms[q],
                vectors, halves, wide, ids, has_duplicates, keys, result_ids, sizes[q], cancel,
            )  # fmt: skip
        n_done += group_size
    return n_missing


@helper()
def set_error(queries, q, metric, square, max_norm, norms, errors):  # type: ignore[no-untyped-def]
    """Write the norm of a query, and the error bound of fast distances to it."""
    norms[q], errors[q] = math.sqrt(square), 1e-36
    if metric == COSINE:
        norms[q] = exact_norm(queries, q)
    if metric != EUCLIDEAN:
        size = norms[q] * max_norm
        # Beyond 1e37 float32 may overflow: everything is reranked. 16 is twice the 8 that sums
        # need: a cosine distance is rounded too, relative to 1.
        dim = queries.shape[1]
        errors[q] = np.inf if size > 1e37 else (dim + 16) * 2.0**-23 * size + 1e-36


@kernel()
def _search(  # type: ignore[no-untyped-def]
    table, unfiltered, max_norm, queries, metric, cancel, order, first, last,
    bucket_ids, scores, n_probe, fill, max_candidates, exclude, budget,
    distances, ids, candidates, truncated,
):  # fmt: skip
    """Search for some queries: check, plan, scan and finish.

    ``max_norm`` is the largest norm of an entry, ``cancel`` the address of a flag that cancels it;
    for the others see :func:`plan_visits`. Returns ``DONE`` or another status; then the contents
    of the result are undefined.
    """
    n_queries = queries.shape[0]
    norms, errors = np.empty(n_queries), np.empty(n_queries)
    for local in range(first, last):
        q = order[local] if order.shape[0] > 0 else local
        square = sum_of_squares(queries, q)
        if not square < np.inf or (metric == COSINE and square == 0.0):
            return BAD_INPUT
        for k in range(bucket_ids.shape[1]):
            if bucket_ids[q, k] < 0 or bucket_ids[q, k] > table[layout.MAX_BUCKET_ID]:
                return BAD_INPUT
        set_error(queries, q, metric, square, max_norm, norms, errors)
    one_by_one = counts_one_by_one(table, exclude, max_candidates)
    for segment in range(table[layout.N_SEGMENTS]):
        n_blocks = table[segment_row(segment) + layout.N_SEGMENT_BUCKETS]
        if one_by_one and not _is_checked(table, segment, n_blocks):
            return UNCHECKED
    visits = plan_visits(
        table, unfiltered, cancel, order, first, last, ids.shape[1], bucket_ids, scores, n_probe,
        fill, max_candidates, exclude, budget, candidates, truncated,
    )  # fmt: skip
    if is_cancelled(cancel):
        return CANCELLED
    for visit in range(visits.shape[0]):
        if not _is_checked(table, visits[visit, 1], visits[visit, 5]):
            return UNCHECKED
    sizes = np.zeros(n_queries, dtype=np.int64)
    if visits.shape[0] > 0:
        n_missing = search_segments(
            table, visits, queries, metric, norms, errors, exclude, distances, ids, sizes, cancel,
            STOP, errors, visits,
        )  # fmt: skip
        if n_missing > 0:
            return UNCHECKED
    if is_cancelled(cancel):
        return CANCELLED
    for local in range(first, last):
        q = order[local] if order.shape[0] > 0 else local
        finish(distances, ids, q, sizes[q], metric)
    return DONE


def _first_search(*arguments: Any) -> int:
    """Search, and replace this function by the compiled code; ``search.py`` ensures the types."""
    global search
    status = _search(*arguments)
    search = machine_code(_search)
    return int(status)


search: Any = _first_search
