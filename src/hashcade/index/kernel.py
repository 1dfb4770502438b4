"""The search kernel: from queries to the best entries of their buckets, in one compiled call.

Two passes, fused. The fast one computes float32 distances of a tile of entries to up to four
queries at once, in whatever order suits the vector unit, or bounds them by int8 codes if there are
any (``quantised.py``), and drops what cannot be among the best, all errors allowed for. What
remains is ranked in float64, in a fixed order, and only this number counts. So the result is the
same for one query or many, one thread or more, one segment or several, with codes or without: the
best by (distance as returned, id). Visits are sorted by where they start, so that a tile is read
from memory once for all queries that look at it.

Functions that are called for each visit take an array and the number of a row: a slice would count
references, with an atomic operation each time, which cost a tenth of a scan.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hashcade._kernels import helper, kernel
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
from hashcade.index.quantised import bound_distances, note_missing
from hashcade.index.visits import counts_one_by_one, plan_visits

# What a search returns: done, a NaN or a bucket id out of range, a block has to be checked first,
# stopped.
DONE, BAD_INPUT, UNCHECKED, CANCELLED = range(4)
# What is done about vectors that are not here: nothing, a note, or a note and a bound for others.
NO_NOTES, NOTE, CARRY = range(3)

_LOOK = 1023  # entries ranked exactly between two looks at the flag: some 100 µs, or 1 ms if long
_TILE = 4096  # entries whose fast distances are held at a time: they stay in the first cache
_TILE_NUMBERS = 1 << 22  # of their vectors
_HALVED_TILE = 256
_LINE = 64  # bytes of a cache line
_CODED_DIM = 128  # from so many numbers on codes are faster in memory


@helper()
def prune(  # type: ignore[no-untyped-def]
    fast, nearest, upper, nearest_upper, k, start, stop, own, ids, removed,
    relative, absolute, bound, heaps, size, rows, values, n_rows,
):  # fmt: skip
    """Keep the entries start..stop that may be among the best, by their fast distances.

    ``upper`` are the same, or with codes upper bounds where ``fast`` are lower ones. ``heaps[k]``
    has the best of this visit, as values and names, the worst at its root. The entries of a bucket
    are different items, so once it is full nothing beyond its root, errors allowed for, is needed.
    Returns the new sizes of heap and rows, and the new bound.
    """
    room = heaps.shape[1] - 1
    # A bound from the nearest of each chunk: as many different items as are asked for, one more
    # if one may be left out. It takes the place of the heap, if enough chunks have an entry left.
    n_needed = room + (own >= 0)
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
        if nearest[k, (low - start) // CHUNK] > bound:  # most chunks are too far as a whole
            continue
        for row in range(low, min(low + CHUNK, stop)):
            value = fast[k, row - start]
            if value > bound or (removed.shape[0] > 0 and removed[row] != 0):
                continue
            # Ids lie elsewhere in memory, and one is read only if it may decide something.
            if own >= 0 and ids[row] == own:
                continue
            rows[k, n_rows] = row
            values[k, n_rows] = value
            n_rows += 1
            if by_chunks:  # a heap would not bring the bound down by much
                continue
            value = upper[k, row - start]
            if size < room:
                push(heaps, heaps, k, size, value, value)
                size += 1
            elif value < heaps[k, 0]:
                replace_root(heaps, heaps, k, room, value, value)
            if size == room:
                bound = min(bound, prune_bound(np.float64(heaps[k, 0]), relative, absolute))
    return size, n_rows, bound


@helper()
def rerank(  # type: ignore[no-untyped-def]
    rows, values, k, n_rows, bound, queries, q, metric, norm, vectors, halves, wide, ids, several,
    keys, names, size, cancel,
):  # fmt: skip
    """Rank what is left exactly; the best go into a heap, worst at its root; return its size."""
    room, half = keys.shape[1], rows.shape[1] >> 1
    n_near = 0
    for j in range(n_rows):  # the bound came down since
        if not values[k, j] > bound:
            rows[k, n_near] = rows[k, j]
            n_near += 1
    for j in range(n_near):  # all ids first: reads that do not wait for each other
        rows[k, half + j] = ids[rows[k, j]]
    for j in range(n_near):
        if j & _LOOK == _LOOK and is_cancelled(cancel):
            break
        item_id = rows[k, half + j]
        if halves.shape[0] > 0:
            widen(halves, rows[k, j], rows[k, j] + 1, wide)
            key = exact_key(wide, np.int64(0), queries, q, metric, norm)
        else:
            key = exact_key(vectors, rows[k, j], queries, q, metric, norm)
        if size == room and not is_above(keys[q, 0], names[q, 0], key, item_id):
            continue
        if several:  # an item lies in several buckets, and must not be taken twice
            other = 0
            while other < size and names[q, other] != item_id:
                other += 1
            if other < size:
                continue
        if size == room:
            replace_root(keys, names, q, size, key, item_id)
        else:
            push(keys, names, q, size, key, item_id)
            size += 1
    return size


@helper()
def finish(keys, names, q, size, metric):  # type: ignore[no-untyped-def]
    """Turn a heap into a row: best first, inner products with their own sign, padded."""
    for end in range(size - 1, 0, -1):
        keys[q, end], names[q, end] = pop(keys, names, q, end + 1)
    for k in range(size, keys.shape[1]):
        keys[q, k] = np.inf
        names[q, k] = -1
    if metric == INNER_PRODUCT:
        for k in range(keys.shape[1]):
            keys[q, k] = 0.0 - keys[q, k]  # no negative zero; padding becomes -inf


@helper()
def _is_checked(table, segment, row):  # type: ignore[no-untyped-def]
    """Whether a block of a segment was checked; the one after the last stands for all ids."""
    address = table[segment_row(segment) + layout.CHECKED]
    return address == 0 or array_at(address, row + 1, np.uint8)[row] != 0


@helper()
def search_segments(  # type: ignore[no-untyped-def]
    table, visits, queries, metric, norms, errors, exclude, keys, names, sizes, cancel,
    notes, reach, missing,
):  # fmt: skip
    """Make the visits, and leave the best of each query in its heap; ``errors`` are absolute.

    Returns how many vectors that it needs are not here. The first ends it, unless ``notes`` says
    that ``missing`` takes them, see ``missing.py``; ``reach`` has the least bounds so far.
    """
    n_visits, dim, room = visits.shape[0], queries.shape[1], keys.shape[1]
    n_missing = 0
    # Twice the worst relative error of the fast pass; that of inner products is absolute.
    fast_error = (dim + 8) * 2.0**-23 if metric == EUCLIDEAN else 0.0
    longest: Any = np.int64(0)
    for visit in range(n_visits):
        longest = max(longest, visits[visit, 3] - visits[visit, 2])
    places = np.empty((1, n_visits))  # by segment, then by entry
    order = np.empty((1, n_visits), dtype=np.int64)
    for visit in range(n_visits):
        base = segment_row(visits[visit, 1])
        places[0, visit] = table[base + layout.FIRST_ENTRY] + visits[visit, 2]
        order[0, visit] = visit
    sort_pairs(places, order, n_visits, cancel)
    lanes: Any = n_visits if n_visits < 3 else np.int64(4)  # three are scanned as four
    # Whole chunks; of long vectors fewer, so that the flag is looked at often enough.
    most = max(min(_TILE, _TILE_NUMBERS // dim // CHUNK * CHUNK), CHUNK)
    halved = table[segment_row(0) + layout.HALVED] != 0
    if halved:  # of these a tile is copied
        most = min(most, _HALVED_TILE)
    tile: Any = min(-(-longest // CHUNK) * CHUNK, most)
    fast = np.empty((lanes, tile), dtype=np.float32)
    nearest = np.empty((lanes, tile // CHUNK), dtype=np.float32)
    wide = fast
    if halved:
        wide = np.empty((tile, dim), dtype=np.float32)
    above, nearest_above = fast, nearest  # with codes there are two bounds
    if table[segment_row(0) + layout.CODES] != 0:
        above, nearest_above = np.empty_like(fast), np.empty_like(nearest)
    rows = np.empty((lanes, 2 * longest), dtype=np.int64)  # and the ids of those to be ranked
    values = np.empty((lanes, longest), dtype=np.float32)
    heaps = np.empty((lanes, room + 1), dtype=np.float32)
    lane = np.empty((4, 4), dtype=np.int64)  # of each visit: query, stop, size of heap, rows
    # The bounds of the visits, and behind them copies of the queries, each from a cache line on:
    # loads across two cost up to a quarter of a scan. In one array, so that both live as long.
    size: Any = -(-4 * dim // _LINE) * _LINE  # of a copy, in bytes
    bounds = np.empty(4 + (_LINE + lanes * size) // 4, dtype=np.float32)
    copies: Any = (bounds.ctypes.data + 16 + _LINE - 1) // _LINE * _LINE
    done = 0
    while done < n_visits and not is_cancelled(cancel):
        # Up to four visits with one start: a tile is read once for all of them.
        segment, start = visits[order[0, done], 1], visits[order[0, done], 2]
        base = segment_row(segment)
        ids = entries_at(table, segment, layout.IDS, np.int64)
        vectors = array_at(table[base + layout.VECTORS], (ids.shape[0], dim), np.float32)
        n_halves = ids.shape[0] if halved else 0
        halves = array_at(table[base + layout.VECTORS], (n_halves, dim), np.uint16)
        removed = entries_at(table, segment, layout.REMOVED, np.uint8)
        several = table[base + layout.ITEMS] != 0
        codes = array_at(table[base + layout.CODES], (ids.shape[0], dim), np.int8)
        code_bounds = array_at(table[base + layout.CODE_BOUNDS], (ids.shape[0], 3), np.float32)
        farthest = start
        together = 0
        while together < 4 and done + together < n_visits:
            row = order[0, done + together]
            if visits[row, 1] != segment or visits[row, 2] != start:
                break
            q = visits[row, 0]
            farthest = max(farthest, visits[row, 3])
            lane[together, 0], lane[together, 1] = q, visits[row, 3]
            lane[together, 2], lane[together, 3] = 0, 0
            copy = array_at(copies + together * size, dim, np.float32)
            for j in range(dim):
                copy[j] = queries[q, j]
            together += 1
        # In memory short vectors are as fast as their codes, and faster for several queries at
        # once, by which they are read once; but not from a disk.
        mapped = table[base + layout.MAPPED] != 0
        here = entries_at(table, segment, layout.VECTORS_HERE, np.uint8)
        partial = here.shape[0] > 0
        is_faster = mapped or partial or (dim >= _CODED_DIM and together < 3)
        coded = is_faster and table[base + layout.CODES] != 0
        if coded and mapped:
            will_read(table[base + layout.CODES] + start * dim, (farthest - start) * dim)
            will_read(table[base + layout.CODE_BOUNDS] + start * 12, (farthest - start) * 12)
        relative = 0.0 if coded else fast_error
        upper, nearest_upper = (above, nearest_above) if coded else (fast, nearest)
        for k in range(together):
            q = lane[k, 0]
            bounds[k] = np.inf
            if sizes[q] == room:
                worst = np.float64(keys[q, 0])
                if metric == EUCLIDEAN and not coded:  # squared
                    worst *= worst
                elif metric == COSINE:
                    worst = (worst - 1.0) * norms[q]
                bounds[k] = prune_bound(worst, relative, errors[q])
            if partial and notes == CARRY:
                bounds[k] = min(bounds[k], reach[q])
        for low in range(start, farthest, tile):
            if is_cancelled(cancel):
                break
            high = min(low + tile, farthest)
            if coded:
                for k in range(together):
                    bound_distances(
                        codes, code_bounds, removed, low, high, queries, lane[k, 0], k, metric,
                        fast, upper, nearest, nearest_upper,
                    )  # fmt: skip
            else:
                source, gone, first, last = vectors, removed, np.int64(low), high
                if halved:
                    widen(halves, low, high, wide)
                    source, gone, first, last = wide, removed[low:high], np.int64(0), high - low
                if together >= 3:
                    distances.fast_distances_of_four(
                        source, gone, first, last, copies, copies + size, copies + 2 * size,
                        copies + (together - 1) * size, metric, fast, nearest,
                    )  # fmt: skip
                else:
                    for k in range(together):
                        distances.fast_distances(
                            source, gone, first, last, copies + k * size, k, metric, fast, nearest
                        )
            for k in range(together):
                q = lane[k, 0]
                own = exclude[q] if exclude.shape[0] > 0 else np.int64(-1)
                lane[k, 2], lane[k, 3], bounds[k] = prune(
                    fast, nearest, upper, nearest_upper, k, low, min(high, lane[k, 1]), own, ids,
                    removed, relative, errors[q], bounds[k], heaps, lane[k, 2], rows, values,
                    lane[k, 3],
                )  # fmt: skip
        for k in range(together):
            q = lane[k, 0]
            if coded and mapped:
                will_read_rows(
                    table[base + layout.VECTORS], dim * (2 if halved else 4), start, farthest,
                    rows, k, lane[k, 3],
                )  # fmt: skip
            if partial:
                n_before = n_missing
                n_missing = note_missing(
                    rows, values, k, lane[k, 3], bounds[k], here, segment, notes != NO_NOTES,
                    missing, n_missing,
                )  # fmt: skip
                if n_missing > 0 and notes == NO_NOTES:
                    return n_missing
                if n_missing > n_before:
                    # With more than rounding can make of it: it must not be below the bound
                    # that the vectors will give.
                    slack = errors[q] + (1e-4 * norms[q] if metric == COSINE else 0.0)
                    bound = prune_bound(np.float64(bounds[k]), 1e-5, slack)
                    reach[q] = min(reach[q], bound)
                    continue
            sizes[q] = rerank(
                rows, values, k, lane[k, 3], bounds[k], queries, q, metric, norms[q],
                vectors, halves, wide, ids, several, keys, names, sizes[q], cancel,
            )  # fmt: skip
        done += together
    return n_missing


@helper()
def set_error(queries, q, metric, square, max_norm, norms, errors):  # type: ignore[no-untyped-def]
    """Write the norm of a query, and by how much fast distances to it may be off."""
    norms[q], errors[q] = math.sqrt(square), 1e-36
    if metric == COSINE:
        norms[q] = exact_norm(queries, q)
    if metric != EUCLIDEAN:
        size = norms[q] * max_norm
        # Beyond 1e37 float32 may overflow: everything is ranked exactly. Twice the 8 that sums
        # need: a cosine distance is rounded too, relative to 1.
        dim = queries.shape[1]
        errors[q] = np.inf if size > 1e37 else (dim + 16) * 2.0**-23 * size + 1e-36


@kernel()
def _search(  # type: ignore[no-untyped-def]
    table, unfiltered, max_norm, queries, metric, cancel, order, first, last,
    bucket_ids, scores, n_probe, fill, max_candidates, exclude, budget,
    distances, ids, candidates, truncated,
):  # fmt: skip
    """Answer some queries: check, plan, scan and finish.

    ``max_norm`` is the largest norm of an entry, ``cancel`` the address of a flag that ends it;
    for the others see :func:`plan_visits`. Returns ``DONE``, or why not; then contents of the
    result are undefined.
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
        n_blocks = table[segment_row(segment) + layout.N_OWN_BUCKETS]
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
            NO_NOTES, errors, visits,
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
    """Search, and put the compiled code itself in the place of this.

    numba's own way in looks at the type of each argument, to choose among versions of a function,
    for as long as the rest of a call takes. Here there is one: ``search.py`` sees to the types.
    Should there be another one after all, numba keeps choosing.
    """
    global search
    status = _search(*arguments)
    versions = list(_search.overloads.values())
    search = versions[0].entry_point if len(versions) == 1 else _search
    return int(status)


search: Any = _first_search
