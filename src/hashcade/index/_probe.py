"""Where to look: from bucket ids or slot scores to the entries that a query visits.

One self-contained file of kernels, arrays in and arrays out. For each query it makes a list of
visits (segment, first entry, last entry), in order, and counts the items in them, each once.

- Bucket ids: these buckets, in the order given.
- Scores: the buckets of the hash function, or the ``n_probe`` occupied buckets with the largest
  sum of slot scores, found best first through the tree: a node is opened only if the sum so far
  plus the best that the levels below could give reaches the worst bucket kept so far.
- Too few items, and ``fill``: with scores, all other buckets in the order in which a person would
  walk the tree, best slot first, the last level fastest; without, the other buckets of the same
  parent by ascending id, then of the parent's parent, for each of the query's buckets in turn.

Notes
-----
Sums of scores are float64 and run from level 1 down. Floating-point addition is monotone, so a
bound that is added up in the same order is never below a sum that it bounds, and the search
through the tree gives exactly what scoring all buckets would give. Equal sums: the lower id first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

BY_BUCKETS = 0
BY_SCORES = 1

_NO_FILTER = 0
_FILTER_MASK = 1


# -- arrays of several segments, handed over by address -------------------------------------------


def _to_pointer(typing_context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


_at: Any = intrinsic(_to_pointer)


@njit(nogil=True)
def _is_chosen(item_id, filter_mode, mask, chosen):  # type: ignore[no-untyped-def]
    if filter_mode == _NO_FILTER:
        return True
    if filter_mode == _FILTER_MASK:
        return item_id < mask.shape[0] and mask[item_id]
    at = np.searchsorted(chosen, item_id)
    return at < chosen.shape[0] and chosen[at] == item_id


@njit(nogil=True)
def _count(  # type: ignore[no-untyped-def]
    segment, start, stop, room, stamp, stamps, own,
    addresses, lengths, item_starts, filter_mode, mask, chosen,
):  # fmt: skip
    """Count items not seen before among entries start..stop; stop early when ``room`` is used up.

    Returns the count, the entry to stop before, and whether there was more.
    """
    ids = carray(_at(addresses[segment, 0]), (lengths[segment, 0],), np.int64)
    items = carray(_at(addresses[segment, 1]), (lengths[segment, 1],), np.int32)
    dead = carray(_at(addresses[segment, 2]), (lengths[segment, 2],), np.uint8)
    several = lengths[segment, 1] > 0
    counted = 0
    for entry in range(start, stop):
        if lengths[segment, 2] > 0 and dead[entry] != 0:
            continue
        item_id = ids[entry]
        if item_id == own or not _is_chosen(item_id, filter_mode, mask, chosen):
            continue
        if several:
            item = item_starts[segment] + items[entry]
            if stamps[item] == stamp:
                continue
        if counted == room:
            return counted, entry, True
        if several:
            stamps[item_starts[segment] + items[entry]] = stamp
        counted += 1
    return counted, stop, False


@njit(nogil=True)
def _grown(array):  # type: ignore[no-untyped-def]
    larger = np.empty((2 * array.shape[0], array.shape[1]), dtype=array.dtype)
    larger[: array.shape[0]] = array
    return larger


# -- the n_probe best buckets -----------------------------------------------------------------


@njit(nogil=True)
def _push(values, nodes, size, value, node):  # type: ignore[no-untyped-def]
    """Push onto a heap with the largest value at its root; of equal values the lower node."""
    hole = size
    while hole > 0:
        parent = (hole - 1) // 2
        if values[parent] > value or (values[parent] == value and nodes[parent] < node):
            break
        values[hole] = values[parent]
        nodes[hole] = nodes[parent]
        hole = parent
    values[hole] = value
    nodes[hole] = node


@njit(nogil=True)
def _pop(values, nodes, size):  # type: ignore[no-untyped-def]
    """Move the root of a heap of ``size`` behind its end; the heap is then one shorter."""
    top_value, top_node = values[0], nodes[0]
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
    values[last] = top_value
    nodes[last] = top_node


@njit(cache=True, nogil=True)
def best_buckets(scores, n_probe, level_starts, slots, children, live):  # type: ignore[no-untyped-def]
    """Find the occupied buckets with the largest sums of slot scores.

    Parameters
    ----------
    scores : float64[depth, width]
    n_probe : int
    level_starts, slots, children
        The tree, see ``Tree``.
    live : int64[n_buckets]
        Entries per bucket: those without any are not occupied.

    Returns
    -------
    best : int64[m], m <= n_probe
        Numbers of buckets, best first.
    n_scored : int
        How many buckets' sums were computed on the way.
    """
    depth = scores.shape[0]
    last_start = level_starts[depth - 1]
    n_buckets = slots.shape[0] - last_start
    n_probe = min(n_probe, n_buckets)
    best_of = np.empty(depth)
    for level in range(depth):
        best_of[level] = scores[level].max()
    # Kept buckets: negated sums and negated numbers, so that the root is the worst of them and,
    # of equal sums, the one with the highest id.
    kept_value = np.empty(max(n_probe, 1))
    kept = np.empty(max(n_probe, 1), dtype=np.int64)
    n_kept = 0
    n_scored = 0
    # Open nodes by their bound. Node -1 is the root; partial[] is the sum so far.
    open_value = np.empty(last_start + 1)
    open_node = np.empty(last_start + 1, dtype=np.int64)
    partial = np.empty(last_start + 1)
    open_value[0] = np.inf
    open_node[0] = -1
    n_open = 1
    while n_open > 0 and n_probe > 0:
        bound, node = open_value[0], open_node[0]
        # At a bound equal to the worst kept sum there may be an equal sum with a lower id.
        if n_kept == n_probe and bound < -kept_value[0]:
            break
        _pop(open_value, open_node, n_open)
        n_open -= 1
        if node < 0:
            level = 0
            low, high = 0, level_starts[1] if depth > 1 else slots.shape[0]
            so_far = 0.0
        else:
            level = 1  # of the children
            while level_starts[level] <= node:  # ends: the node is not of the last level
                level += 1
            low, high = children[node], children[node + 1]
            so_far = partial[node]
        for child in range(low, high):
            total = so_far + scores[level, slots[child]]
            if level == depth - 1:
                bucket = child - last_start
                if live[bucket] == 0:
                    continue
                n_scored += 1
                if n_kept < n_probe:
                    _push(kept_value, kept, n_kept, -total, -bucket)
                    n_kept += 1
                elif total > -kept_value[0] or (total == -kept_value[0] and bucket < -kept[0]):
                    _pop(kept_value, kept, n_kept)
                    _push(kept_value, kept, n_kept - 1, -total, -bucket)
                continue
            bound = total
            for below in range(level + 1, depth):
                bound += best_of[below]
            if n_kept == n_probe and bound < -kept_value[0]:
                continue
            partial[child] = total
            _push(open_value, open_node, n_open, bound, child)
            n_open += 1
    best = np.empty(n_kept, dtype=np.int64)
    for size in range(n_kept, 0, -1):
        best[size - 1] = -kept[0]
        _pop(kept_value, kept, size)
    return best, n_scored


# -- the plan ------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def plan(  # type: ignore[no-untyped-def]
    first_query, last_query, mode, bucket_ids, scores, n_probe, n_wanted, fill, max_candidates,
    width, buckets, starts, stops, live, level_starts, slots, children,
    careful, addresses, lengths, item_starts, own, filter_mode, mask, chosen,
):  # fmt: skip
    """Decide for queries ``first_query..last_query - 1`` which entries they visit.

    Parameters
    ----------
    mode
        ``BY_BUCKETS``, or ``BY_SCORES`` which uses scores for filling.
    bucket_ids : int64[q, p]
        Used unless ``n_probe`` is positive.
    scores : float64[q, depth, width]
    n_probe
        0 for the buckets given.
    n_wanted
        With ``fill``, go on while fewer items than this were found.
    max_candidates
        Most items to look at; -1 for no limit.
    careful
        Count entry by entry. Needed with filters, own ids, several buckets per item, and with a
        limit when there are removed entries; otherwise ``live`` says it all.
    addresses, lengths : int64[n_segments, 3]
        Where ids, item numbers and removal masks are, and how long; an absent one has length 0.
    item_starts : int64[n_segments + 1]
        First item number of each segment, when all of them are counted through.

    Returns
    -------
    visits : int64[v, 5]
        Query, segment, first entry, entry after the last, number of the bucket.
    candidates : int64[last_query - first_query]
        Items to look at, each counted once.
    truncated : bool[last_query - first_query]
        Whether ``max_candidates`` left something out.
    """
    n_queries = last_query - first_query
    n_segments, n_buckets = starts.shape
    depth = level_starts.shape[0]
    last_start = level_starts[depth - 1]
    visits = np.empty((max(16, 2 * n_queries), 5), dtype=np.int64)
    n_visits = 0
    candidates = np.zeros(n_queries, dtype=np.int64)
    truncated = np.zeros(n_queries, dtype=np.bool_)
    visited = np.zeros(n_buckets, dtype=np.int32)  # number of the last query that came by, from 1
    stamps = np.zeros(item_starts[n_segments] if careful else 0, dtype=np.int32)
    order = np.empty((depth, 0), dtype=np.int64)
    position = np.zeros(depth, dtype=np.int64)
    amount = np.zeros(depth, dtype=np.int64)
    none = np.empty(0, dtype=np.int64)

    for local in range(n_queries):
        query = first_query + local
        stamp = local + 1
        found = 0
        # Stage 0: the query's own buckets. Stage 1: filling.
        best = none
        if n_probe > 0:
            best, _ = best_buckets(scores[query], n_probe, level_starts, slots, children, live)
        n_own = best.shape[0] if n_probe > 0 else bucket_ids.shape[1]
        at = 0  # in stage 0
        up = 0  # without scores: how far up the parent is; block: number of the query's bucket
        block = n_own
        span = np.int64(1)
        low = high = np.int64(0)
        level = -1  # with scores: level of the walk, -1 before it starts
        while True:
            # -- the next bucket, or -1 for one that is not occupied, or leave the loop
            bucket = np.int64(-1)
            if at < n_own:
                if n_probe > 0:
                    bucket = best[at]
                else:
                    wanted = bucket_ids[query, at]
                    place = np.searchsorted(buckets, wanted)
                    if place < n_buckets and buckets[place] == wanted:
                        bucket = place
                at += 1
            elif not fill or found >= n_wanted:
                break
            elif mode == BY_SCORES:
                if level < 0:
                    if order.shape[1] == 0:
                        order = np.empty((depth, width), dtype=np.int64)
                    level = 0
                    first, last = np.int64(0), slots.shape[0]
                    if depth > 1:
                        last = level_starts[1]
                    amount[0] = last - first
                    position[0] = 0
                    _sort_children(scores[query, 0], slots, first, last, order[0])
                while level >= 0 and position[level] == amount[level]:
                    level -= 1
                if level < 0:
                    break
                node = order[level, position[level]]
                position[level] += 1
                if level == depth - 1:
                    bucket = node - last_start
                else:
                    level += 1
                    first, last = children[node], children[node + 1]
                    amount[level] = last - first
                    position[level] = 0
                    _sort_children(scores[query, level], slots, first, last, order[level])
            else:
                while low == high and up <= depth:
                    if block == n_own:
                        block = 0
                        up += 1
                        if up > depth:
                            break
                        if up < depth:
                            span *= width
                    if up == depth:  # the root: everything, once
                        low, high = np.int64(0), np.int64(n_buckets)
                        block = n_own
                    elif block < n_own:
                        parent = bucket_ids[query, block] // span
                        low = np.searchsorted(buckets, parent * span)
                        # (parent + 1) * span may lie beyond int64, its last bucket does not.
                        high = np.searchsorted(buckets, parent * span + (span - 1), side="right")
                        block += 1
                if low == high:
                    break
                bucket = low
                low += 1
            if bucket < 0 or visited[bucket] == stamp:
                continue
            visited[bucket] = stamp
            if live[bucket] == 0:
                continue
            # -- visit it, segment after segment
            for segment in range(n_segments):
                start, stop = starts[segment, bucket], stops[segment, bucket]
                if start == stop:
                    continue
                room = max_candidates - found if max_candidates >= 0 else np.int64(-1)
                more = False
                counted = np.int64(1)
                if careful:
                    counted, stop, more = _count(
                        segment, start, stop, room, stamp, stamps, own[query],
                        addresses, lengths, item_starts, filter_mode, mask, chosen,
                    )  # fmt: skip
                    found += counted
                elif room >= 0:
                    more = stop - start > room
                    stop = min(stop, start + room)
                    found += stop - start
                if stop > start and counted > 0:
                    if n_visits == visits.shape[0]:
                        visits = _grown(visits)
                    visits[n_visits, 0] = query
                    visits[n_visits, 1] = segment
                    visits[n_visits, 2] = start
                    visits[n_visits, 3] = stop
                    visits[n_visits, 4] = bucket
                    n_visits += 1
                if more:
                    truncated[local] = True
                    break
            if not careful and max_candidates < 0:
                found += live[bucket]
            if truncated[local]:
                break
        candidates[local] = found
    return visits[:n_visits], candidates, truncated


@njit(nogil=True)
def _sort_children(scores, slots, first, last, order):  # type: ignore[no-untyped-def]
    """Write children ``first..last - 1`` into ``order``: best score first, then lowest slot."""
    values = np.empty(last - first)
    for child in range(first, last):
        values[child - first] = -scores[slots[child]]
    ranks = np.argsort(values, kind="mergesort")  # stable
    for k in range(last - first):
        order[k] = first + ranks[k]
