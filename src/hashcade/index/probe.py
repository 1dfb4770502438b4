"""Where to look: from bucket ids or slot scores to the entries that a query visits.

For each query a list of visits (segment, first entry, last entry), in order, and the number of
items in them, each counted once.

- Bucket ids: these buckets, in the order given.
- Scores: the buckets of the hash function, or the ``n_probe`` occupied buckets with the largest
  sum of slot scores, found best first through the tree: a node is opened only if the sum so far
  plus the best that the levels below could give reaches the worst bucket kept so far.
- Too few items, and ``fill``: with scores, all other buckets in the order of a walk through the
  tree, best slot first, the last level fastest; without, the other buckets of the same parent by
  ascending id, then of the parent's parent, for each of the query's buckets in turn.

Notes
-----
Sums of scores are float64 and run from level 1 down. Floating-point addition is monotone, so a
bound that is added up in the same order is never below a sum that it bounds, and the search
through the tree gives exactly what scoring all buckets would give. Equal sums: the lower id first.
"""

from __future__ import annotations

import numpy as np

from hashcade._kernels import helper, kernel
from hashcade.index import layout
from hashcade.index.layout import int32s, int64s, uint8s

NO_FILTER = 0
FILTER_MASK = 1
FILTER_SORTED = 2


# -- small tools ---------------------------------------------------------------------------------


@helper()
def first_not_below(values, value):  # type: ignore[no-untyped-def]
    """Return the first position in a sorted int64 array whose value is at least ``value``."""
    low = 0
    high = values.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@helper()
def stable_argsort(keys):  # type: ignore[no-untyped-def]
    """Return the order of float64 keys by merging; equal keys stay in the order they came in."""
    n = keys.shape[0]
    order = np.empty(n, dtype=np.int64)
    for at in range(n):
        order[at] = at
    if n < 2:
        return order
    other = np.empty(n, dtype=np.int64)
    run = 1
    while run < n:
        for low in range(0, n, 2 * run):
            left, middle = low, min(low + run, n)
            right, high = middle, min(low + 2 * run, n)
            for at in range(low, high):
                if left < middle and (right == high or keys[order[left]] <= keys[order[right]]):
                    other[at] = order[left]
                    left += 1
                else:
                    other[at] = order[right]
                    right += 1
        order, other = other, order
        run *= 2
    return order


@helper()
def passes_filter(item_id, filter_mode, mask, allowed):  # type: ignore[no-untyped-def]
    """Whether an id passes the filter: a mask over ids, or a sorted array of ids."""
    if filter_mode == NO_FILTER:
        return True
    if filter_mode == FILTER_MASK:
        return 0 <= item_id < mask.shape[0] and mask[item_id]
    at = first_not_below(allowed, item_id)
    return at < allowed.shape[0] and allowed[at] == item_id


# -- the n_probe best buckets -----------------------------------------------------------------


@helper()
def _push(values, nodes, size, value, node):  # type: ignore[no-untyped-def]
    """Push onto a heap with the largest value at its root; of equal values the lower node."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if values[parent] > value or (values[parent] == value and nodes[parent] < node):
            break
        values[hole] = values[parent]
        nodes[hole] = nodes[parent]
        hole = parent
    values[hole] = value
    nodes[hole] = node


@helper()
def _pop(values, nodes, size):  # type: ignore[no-untyped-def]
    """Remove the root of a heap of ``size``; the heap is then one shorter."""
    last = size - 1
    value, node = values[last], nodes[last]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= last:
            break
        if child + 1 < last and (
            values[child + 1] > values[child]
            or (values[child + 1] == values[child] and nodes[child + 1] < nodes[child])
        ):
            child += 1
        if value > values[child] or (value == values[child] and node < nodes[child]):
            break
        values[hole] = values[child]
        nodes[hole] = nodes[child]
        hole = child
    values[hole] = value
    nodes[hole] = node


@helper()
def best_buckets(scores, query, n_probe, table):  # type: ignore[no-untyped-def]
    """Find the occupied buckets with the largest sums of slot scores.

    Parameters
    ----------
    scores : float64[q, depth, width]
    query : int
        The row of ``scores``.
    n_probe : int
    table
        See ``layout.py``. Buckets without live entries are not occupied.

    Returns
    -------
    best : int64[m], m <= n_probe
        Numbers of buckets, best first.
    n_scored : int
        How many buckets' sums were computed on the way.
    """
    depth, n_nodes, n_buckets = table[layout.DEPTH], table[layout.N_NODES], table[layout.N_BUCKETS]
    live = int64s(table[layout.LIVE], n_buckets)
    level_starts = int64s(table[layout.LEVEL_STARTS], depth + 1)
    slots = int32s(table[layout.SLOTS], n_nodes)
    last_start = level_starts[depth - 1]
    children = int64s(table[layout.CHILDREN], last_start + 1)
    n_probe = min(n_probe, n_buckets)
    best_of = np.empty(depth)
    for level in range(depth):
        best_of[level] = scores[query, level, 0]
        for slot in range(1, scores.shape[2]):
            best_of[level] = max(best_of[level], scores[query, level, slot])
    # The best so far: negated sums and negated numbers, so that the root is the worst of them
    # and, of equal sums, the one with the highest id.
    sums = np.empty(n_probe + 1)
    numbers = np.empty(n_probe + 1, dtype=np.int64)
    # Typed: a plain constant would have functions compiled once more, for this value alone.
    size = np.int64(0)
    n_scored = 0
    # Open nodes by their bound. Node -1 is the root; partial[] is the sum so far.
    open_bound = np.empty(last_start + 1)
    open_node = np.empty(last_start + 1, dtype=np.int64)
    partial = np.empty(last_start + 1)
    open_bound[0] = np.inf
    open_node[0] = -1
    n_open = np.int64(1)
    while n_open > 0 and n_probe > 0:
        bound, node = open_bound[0], open_node[0]
        # At a bound equal to the worst sum there may be an equal sum with a lower id.
        if size == n_probe and bound < -sums[0]:
            break
        _pop(open_bound, open_node, n_open)
        n_open -= 1
        if node < 0:
            level = 0
            low, high = np.int64(0), level_starts[1]
            so_far = 0.0
        else:
            level = 1  # of the children
            while level_starts[level] <= node:  # ends: the node is not of the last level
                level += 1
            low, high = children[node], children[node + 1]
            so_far = partial[node]
        for child in range(low, high):
            total = so_far + scores[query, level, slots[child]]
            if level == depth - 1:
                bucket = child - last_start
                if live[bucket] == 0:
                    continue
                n_scored += 1
                if size == n_probe:
                    if total < -sums[0] or (total == -sums[0] and bucket > -numbers[0]):
                        continue
                    _pop(sums, numbers, size)
                    size -= 1
                _push(sums, numbers, size, -total, -bucket)
                size += 1
                continue
            bound = total
            for below in range(level + 1, depth):
                bound += best_of[below]
            if size == n_probe and bound < -sums[0]:
                continue
            partial[child] = total
            _push(open_bound, open_node, n_open, bound, child)
            n_open += 1
    best = np.empty(size, dtype=np.int64)
    for rest in range(size, 0, -1):
        best[rest - 1] = -numbers[0]
        _pop(sums, numbers, rest)
    return best, n_scored


# -- visits -------------------------------------------------------------------------------------


@helper()
def counts_one_by_one(table, exclude, filter_mode, max_candidates):  # type: ignore[no-untyped-def]
    """Whether entries must be looked at to count the items in a bucket."""
    return (
        filter_mode != NO_FILTER
        or exclude.shape[0] > 0
        or table[layout.N_ITEMS] > 0
        or (max_candidates >= 0 and table[layout.ANY_REMOVED] != 0)
    )


@helper()
def count_items(  # type: ignore[no-untyped-def]
    table, segment, start, stop, room, own, filter_mode, mask, allowed, seen
):
    """Count items not seen before among entries start..stop; stop early when ``room`` is used up.

    ``seen`` has a bit for each item, and is not used if all items have one entry. Returns the
    count, the entry to stop before, and whether there was more.
    """
    base = layout.FIRST_SEGMENT + segment * layout.SEGMENT_LENGTH
    n_entries = table[base + layout.N_ENTRIES]
    ids = int64s(table[base + layout.IDS], n_entries)
    removed = uint8s(table[base + layout.REMOVED], n_entries)
    items = int32s(table[base + layout.ITEMS], n_entries)
    any_removed, several = table[base + layout.REMOVED] != 0, table[base + layout.ITEMS] != 0
    first_item = table[base + layout.FIRST_ITEM]
    n_items = 0
    for entry in range(start, stop):
        if any_removed and removed[entry] != 0:
            continue
        if ids[entry] == own or not passes_filter(ids[entry], filter_mode, mask, allowed):
            continue
        item = first_item + (items[entry] if several else 0)
        if several and seen[item >> 6] >> (item & 63) & 1:
            continue
        if n_items == room:
            return n_items, entry, True
        if several:
            seen[item >> 6] |= np.int64(1) << (item & 63)
        n_items += 1
    return n_items, stop, False


@helper()
def _enlarge(array):  # type: ignore[no-untyped-def]
    larger = np.empty((2 * array.shape[0], array.shape[1]), dtype=np.int64)
    for row in range(array.shape[0]):  # by hand: numba compiles an assignment for seconds
        for column in range(array.shape[1]):
            larger[row, column] = array[row, column]
    return larger


@helper()
def _visit(  # type: ignore[no-untyped-def]
    table, bucket, query, room, own, filter_mode, mask, allowed, one_by_one,
    visited, seen, visits, n_visits,
):  # fmt: skip
    """Append a query's visits to a bucket, segment after segment, unless it was visited before.

    ``room`` is how many items may be added, -1 for any number. Returns the visits, which may have
    moved, their number, the number of new items, and whether there was no room for more.
    """
    n_buckets, n_segments = table[layout.N_BUCKETS], table[layout.N_SEGMENTS]
    n_live = int64s(table[layout.LIVE], n_buckets)[bucket]
    if n_live == 0 or visited[bucket >> 6] >> (bucket & 63) & 1:
        return visits, n_visits, np.int64(0), False
    rows = int32s(table[layout.ROWS], n_segments * n_buckets)
    n_items = np.int64(0)
    truncated = False
    for segment in range(n_segments):
        row = bucket
        if table[layout.ROWS] != 0:
            row = np.int64(rows[segment * n_buckets + bucket])
            if row < 0:
                continue
        base = layout.FIRST_SEGMENT + segment * layout.SEGMENT_LENGTH
        offsets = int64s(table[base + layout.OFFSETS], row + 2)
        start, stop = offsets[row], offsets[row + 1]
        if one_by_one:
            counted, stop, truncated = count_items(
                table, segment, start, stop, room - n_items if room >= 0 else np.int64(-1),
                own, filter_mode, mask, allowed, seen,
            )  # fmt: skip
            n_items += counted
            if counted == 0:
                stop = start
        elif room >= 0:  # nothing was removed: entries are items
            truncated = stop - start > room - n_items
            stop = min(stop, start + room - n_items)
            n_items += stop - start
        if stop > start:
            if n_visits == visits.shape[0]:
                visits = _enlarge(visits)
            visits[n_visits, 0] = query
            visits[n_visits, 1] = segment
            visits[n_visits, 2] = start
            visits[n_visits, 3] = stop
            visits[n_visits, 4] = bucket
            n_visits += 1
            visited[bucket >> 6] |= np.int64(1) << (bucket & 63)
        if truncated:
            break
    if not one_by_one and room < 0:
        n_items = n_live
    return visits, n_visits, n_items, truncated


@kernel()
def plan_visits(  # type: ignore[no-untyped-def]
    table, order, first, last, n_neighbors, bucket_ids, scores, n_probe, fill, max_candidates,
    exclude, filter_mode, mask, allowed, candidates, truncated,
):  # fmt: skip
    """Decide for some queries which entries they visit.

    Parameters
    ----------
    table
        See ``layout.py``.
    order, first, last : int64[m], int, int
        The queries are ``order[first:last]``, or these numbers themselves if ``order`` is empty.
    n_neighbors
        With ``fill``, continue while there are fewer items than this.
    bucket_ids : int64[q, p]
        Within the range of the shape. Used unless ``n_probe`` is positive.
    scores : float64[q, depth, width], or empty
        Used for ``n_probe``, and for filling if there are any.
    n_probe
        0 for the buckets given.
    fill
        0 or 1.
    max_candidates
        Most items to look at; -1 for no limit.
    exclude : int64[q], or empty
        An id per query that it must not find.
    filter_mode, mask, allowed : int, bool[...], int64[...]
        See :func:`passes_filter`.
    candidates, truncated : int64[q], bool[q]
        Out: items to look at, each counted once; whether ``max_candidates`` left something out.

    Returns
    -------
    visits : int64[v, 5]
        Query, segment, first entry, entry after the last, number of the bucket.
    """
    n_buckets, depth, width = table[layout.N_BUCKETS], table[layout.DEPTH], table[layout.WIDTH]
    buckets = int64s(table[layout.BUCKETS], n_buckets)
    level_starts = int64s(table[layout.LEVEL_STARTS], depth + 1)
    slots = int32s(table[layout.SLOTS], table[layout.N_NODES])
    children = int64s(table[layout.CHILDREN], level_starts[depth - 1] + 1)
    visits = np.empty((max(4, 2 * (last - first)), 5), dtype=np.int64)
    n_visits = np.int64(0)
    one_by_one = counts_one_by_one(table, exclude, filter_mode, max_candidates)
    # A bit for each bucket and item that the present query has seen. What is not needed is not
    # allocated, but is the name of something else: half of a small search is allocations.
    visited = np.zeros((n_buckets >> 6) + 1, dtype=np.int64)
    seen = visited
    if table[layout.N_ITEMS] > 0:
        seen = np.zeros((table[layout.N_ITEMS] >> 6) + 1, dtype=np.int64)
    best = visited
    # Per level of the walk the children in order, then how many, then how many were visited.
    walk = visits
    if scores.shape[0] > 0:
        walk = np.empty((depth, width + 2), dtype=np.int64)

    for local in range(first, last):
        query = order[local] if order.shape[0] > 0 else local
        own = exclude[query] if exclude.shape[0] > 0 else np.int64(-1)
        first_visit = n_visits
        n_items = np.int64(0)
        full = False
        if n_probe > 0:
            best, _ = best_buckets(scores, query, n_probe, table)
        n_own = best.shape[0] if n_probe > 0 else bucket_ids.shape[1]
        # Three stages: the query's own buckets; then to fill, with scores a walk through the
        # tree from `level` on, without scores the buckets low..high - 1 below the ancestor `up`
        # levels above the query's bucket number `block`.
        at = 0
        level = np.int64(-1)
        up, block, span, low, high = 0, n_own, np.int64(1), np.int64(0), np.int64(0)
        while not full and n_buckets > 0:
            bucket = np.int64(-1)  # not occupied
            if at < n_own:
                if n_probe > 0:
                    bucket = best[at]
                else:
                    number = first_not_below(buckets, bucket_ids[query, at])
                    if number < n_buckets and buckets[number] == bucket_ids[query, at]:
                        bucket = np.int64(number)
                at += 1
            elif fill == 0 or n_items >= n_neighbors:
                break
            elif scores.shape[0] > 0:
                if level < 0:
                    level = np.int64(0)
                    _sort_children(scores, query, level, slots, np.int64(0), level_starts[1], walk)
                while level >= 0 and walk[level, width] == walk[level, width + 1]:
                    level -= 1
                if level < 0:
                    break
                node = walk[level, walk[level, width + 1]]
                walk[level, width + 1] += 1
                if level == depth - 1:
                    bucket = node - level_starts[depth - 1]
                else:
                    level += 1
                    _sort_children(
                        scores, query, level, slots, children[node], children[node + 1], walk
                    )
            else:
                while low == high and up <= depth:
                    if block == n_own:
                        block = 0
                        up += 1
                        if up < depth:
                            span *= width
                    if up == depth:  # the root: everything, once
                        low, high = np.int64(0), n_buckets
                        block = n_own
                    elif up < depth:
                        lowest = bucket_ids[query, block] // span * span
                        low = np.int64(first_not_below(buckets, lowest))
                        high = n_buckets  # lowest + span may lie beyond int64
                        if lowest + (span - 1) < buckets[n_buckets - 1]:
                            high = np.int64(first_not_below(buckets, lowest + span))
                        block += 1
                if low == high:
                    break
                bucket = low
                low += 1
            if bucket >= 0:
                room = max_candidates - n_items if max_candidates >= 0 else np.int64(-1)
                visits, n_visits, more, full = _visit(
                    table, bucket, query, room, own, filter_mode, mask, allowed, one_by_one,
                    visited, seen, visits, n_visits,
                )  # fmt: skip
                n_items += more
        candidates[query] = n_items
        truncated[query] = full
        for visit in range(first_visit, n_visits):
            visited[visits[visit, 4] >> 6] = 0
            if table[layout.N_ITEMS] > 0:
                _forget_items(table, visits, visit, seen)
    return visits[:n_visits]


@helper()
def _forget_items(table, visits, visit, seen):  # type: ignore[no-untyped-def]
    """Clear the bits of the items of a visit."""
    base = layout.FIRST_SEGMENT + visits[visit, 1] * layout.SEGMENT_LENGTH
    if table[base + layout.ITEMS] == 0:
        return
    items = int32s(table[base + layout.ITEMS], table[base + layout.N_ENTRIES])
    for entry in range(visits[visit, 2], visits[visit, 3]):
        seen[(table[base + layout.FIRST_ITEM] + items[entry]) >> 6] = 0


@helper()
def _sort_children(scores, query, level, slots, first, last, walk):  # type: ignore[no-untyped-def]
    """Write children ``first..last - 1`` into ``walk[level]``: best first, then lowest slot."""
    values = np.empty(last - first)
    for child in range(first, last):
        values[child - first] = -scores[query, level, slots[child]]
    order = stable_argsort(values)
    for k in range(last - first):
        walk[level, k] = first + order[k]
    walk[level, walk.shape[1] - 2] = last - first
    walk[level, walk.shape[1] - 1] = 0
