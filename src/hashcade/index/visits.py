"""From bucket ids or slot scores to the entries that a query visits.

For each query an ordered list of visits (segment, first entry, last entry), and the number of items
in them, each counted once. The query's own buckets come first. Then, to fill up: the other listed
buckets; with scores and ``n_probe`` the next buckets by sum of scores; with only scores a
depth-first walk through the tree, best slot first; without scores the buckets of the same parent by
ascending id, then of its parent, for each of the listed buckets in turn.

With a filter the table has only the items that pass, and a query continues, with scores by their
sums, until it has as many candidates as without the filter.
"""

from __future__ import annotations

import numpy as np

from hashcade._kernels import helper, kernel
from hashcade.index import layout
from hashcade.index.cancel import is_cancelled
from hashcade.index.layout import array_at, entries_at, segment_row
from hashcade.index.probe import (
    best_buckets,
    bucket_number,
    child_by_slot,
    live_entries,
    lower_bound,
    recent_number,
    sort_children,
)

NO_LIMIT = 1 << 62
_FIRST_SUMS = 16  # buckets that are ranked by sum at first; then twice as many


@helper()
def counts_one_by_one(table, exclude, max_candidates):  # type: ignore[no-untyped-def]
    """Whether entries must be read to count the items in a bucket."""
    may_stop_early = max_candidates < NO_LIMIT and table[layout.ANY_REMOVED] != 0
    return exclude.shape[0] > 0 or table[layout.N_ITEMS] > 0 or may_stop_early


@helper()
def count_items(table, segment, start, stop, max_new, excluded_id, seen):  # type: ignore[no-untyped-def]
    """Count items not ``seen`` before among entries start..stop - 1, up to ``max_new``.

    Returns the count, the entry to stop before, and whether there were more.
    """
    ids = entries_at(table, segment, layout.IDS, np.int64)
    removed = entries_at(table, segment, layout.REMOVED, np.uint8)
    items = entries_at(table, segment, layout.ITEMS, np.int32)
    any_removed, has_duplicates = removed.shape[0] > 0, items.shape[0] > 0
    first_item = table[segment_row(segment) + layout.FIRST_ITEM]
    n_items = 0
    for entry in range(start, stop):
        if any_removed and removed[entry] != 0:
            continue
        if ids[entry] == excluded_id:
            continue
        item = first_item + (items[entry] if has_duplicates else 0)
        if has_duplicates and seen[item >> 6] >> (item & 63) & 1:
            continue
        if n_items == max_new:
            return n_items, entry, True
        if has_duplicates:
            seen[item >> 6] |= np.int64(1) << (item & 63)
        n_items += 1
    return n_items, stop, False


@helper()
def _enlarge(array):  # type: ignore[no-untyped-def]
    larger = np.empty((2 * array.shape[0], array.shape[1]), dtype=np.int64)
    for row in range(array.shape[0]):  # a loop: numba takes seconds to compile an assignment
        for column in range(array.shape[1]):
            larger[row, column] = array[row, column]
    return larger


@helper()
def _visit(  # type: ignore[no-untyped-def]
    table, bucket, query, max_new, is_spent, excluded_id, one_by_one, visited, seen, visits,
    n_visits,
):  # fmt: skip
    """Append a query's visits to a bucket, segment by segment, unless it was visited before.

    At most ``max_new`` items are added, none if the budget ``is_spent``. Returns the visits, which
    may be a new array, their number, the number of new items, and whether items were left out.
    """
    n_buckets, n_segments = table[layout.N_BUCKETS], table[layout.N_SEGMENTS]
    n_main, n_recent = table[layout.N_MAIN_SEGMENTS], table[layout.N_RECENT]
    in_recent = recent_number(table, bucket)
    n_live = live_entries(table, bucket, in_recent)
    if n_live == 0 or visited[bucket >> 6] >> (bucket & 63) & 1:
        return visits, n_visits, np.int64(0), False
    if is_spent:
        return visits, n_visits, np.int64(0), True
    rows = array_at(table[layout.ROWS], n_main * n_buckets, np.int32)
    recent_rows = array_at(table[layout.RECENT_ROWS], (n_segments - n_main) * n_recent, np.int32)
    n_items = np.int64(0)
    truncated = False
    for segment in range(n_segments if in_recent >= 0 else n_main):
        if segment >= n_main:
            row = in_recent
            if row >= 0 and table[layout.RECENT_ROWS] != 0:
                row = np.int64(recent_rows[(segment - n_main) * n_recent + in_recent])
        elif bucket >= n_buckets:
            row = np.int64(-1)
        else:
            row = bucket
            if table[layout.ROWS] != 0:
                row = np.int64(rows[segment * n_buckets + bucket])
        if row < 0:
            continue
        base = segment_row(segment)
        offsets = array_at(table[base + layout.OFFSETS], row + 2, np.int64)
        start, stop = offsets[row], offsets[row + 1]
        if one_by_one:
            n_new, stop, truncated = count_items(
                table, segment, start, stop, max_new - n_items, excluded_id, seen
            )
            n_items += n_new
            if n_new == 0:
                stop = start
        else:  # nothing was removed, or there is no limit
            truncated = stop - start > max_new - n_items
            stop = min(stop, start + max_new - n_items)
            n_items += stop - start
        if stop > start:
            if n_visits == visits.shape[0]:
                visits = _enlarge(visits)
            for column, value in enumerate((query, segment, start, stop, bucket, row)):
                visits[n_visits, column] = value
            n_visits += 1
            visited[bucket >> 6] |= np.int64(1) << (bucket & 63)
        if truncated:
            break
    return visits, n_visits, min(n_items, n_live), truncated


@helper()
def _plan(  # type: ignore[no-untyped-def]
    table, unfiltered, targets, cancel, order, first, last, n_neighbors, bucket_ids, scores,
    n_probe, fill, max_candidates, exclude, budget, candidates, truncated,
):  # fmt: skip
    """Plan the visits; ``targets`` : int64[q] is the number of candidates to reach, or empty."""
    n_buckets, depth, width = table[layout.N_BUCKETS], table[layout.DEPTH], table[layout.WIDTH]
    buckets = array_at(table[layout.BUCKETS], n_buckets, np.int64)
    level_starts = array_at(table[layout.LEVEL_STARTS], depth + 1, np.int64)
    slots = array_at(table[layout.SLOTS], table[layout.N_NODES], np.int32)
    children = array_at(table[layout.CHILDREN], level_starts[depth - 1] + 1, np.int64)
    n_recent = table[layout.N_RECENT]
    recent = array_at(table[layout.RECENT], n_recent, np.int64)
    recent_starts, recent_slots, recent_children = level_starts, slots, children
    if n_recent > 0:
        recent_starts = array_at(table[layout.RECENT_LEVEL_STARTS], depth + 1, np.int64)
        n_recent_nodes = table[layout.N_RECENT_NODES]
        recent_slots = array_at(table[layout.RECENT_SLOTS], n_recent_nodes, np.int32)
        n_recent_inner = recent_starts[depth - 1] + 1
        recent_children = array_at(table[layout.RECENT_CHILDREN], n_recent_inner, np.int64)
    visits = np.empty((max(4, 2 * (last - first)), 6), dtype=np.int64)
    n_visits = np.int64(0)
    one_by_one = counts_one_by_one(table, exclude, max_candidates)
    # A bit for each bucket and item that the current query has seen. Arrays that are not needed
    # alias others: half of the time of a small search is allocations.
    visited = np.zeros(((n_buckets + n_recent) >> 6) + 1, dtype=np.int64)
    seen = visited
    if table[layout.N_ITEMS] > 0:
        seen = np.zeros((table[layout.N_ITEMS] >> 6) + 1, dtype=np.int64)
    best = visited
    # Per level of the walk: the slots in order, their number, how many were visited, and the range
    # of their nodes in both trees.
    walk = visits
    if scores.shape[0] > 0:
        walk = np.empty((depth, width + 6), dtype=np.int64)

    for local in range(first, last):
        if is_cancelled(cancel):
            break
        query = order[local] if order.shape[0] > 0 else local
        excluded_id = exclude[query] if exclude.shape[0] > 0 else np.int64(-1)
        first_visit = n_visits
        target = n_neighbors
        if targets.shape[0] > 0:
            target = max(n_neighbors, targets[query])
        n_items, n_examined = np.int64(0), np.int64(0)
        is_full = False
        by_sum = n_probe > 0 and scores.shape[0] > 0
        n_ranked = n_probe if by_sum else 0  # buckets to rank by sum next
        n_listed = 0 if by_sum else bucket_ids.shape[1]
        n_required = n_probe if by_sum or 0 < n_probe < n_listed else n_listed
        # The first `n_required` listed buckets; then to fill up, the other listed ones; then with
        # scores those with the next best sums, or a walk through the tree at `level`; without
        # scores the buckets low..high - 1 below the ancestor, `levels_up` above, of listed bucket
        # number `origin`.
        rank = 0
        level = np.int64(-1)
        levels_up, origin, span, low, high = 0, n_listed, np.int64(1), np.int64(0), np.int64(0)
        recent_low, recent_high = np.int64(0), np.int64(0)  # the same in the recent tree
        while not is_full and n_buckets > 0 and not is_cancelled(cancel):
            bucket = np.int64(-1)  # not occupied
            if n_ranked > 0:  # the only call: each one is compiled separately
                best, _ = best_buckets(scores, query, n_ranked, table, cancel)
                if best.shape[0] == n_listed:
                    break
                n_listed, n_ranked = best.shape[0], 0  # these begin with the previous ones
                n_required = min(n_required, n_listed)
            is_filling = rank >= n_required
            if is_filling and (fill == 0 or n_items >= target):
                break
            if rank < n_listed:
                bucket = best[rank] if by_sum else bucket_number(table, bucket_ids[query, rank])
                rank += 1
            elif scores.shape[0] > 0 and (by_sum or targets.shape[0] > 0):
                if not by_sum:
                    by_sum = True
                    rank, n_listed, n_required = 0, 0, 0
                n_ranked = max(2 * n_listed, _FIRST_SUMS)
            elif scores.shape[0] > 0:
                if level < 0:
                    level = np.int64(0)
                    zero, end = np.int64(0), recent_starts[1] if n_recent > 0 else np.int64(0)
                    sort_children(
                        scores, query, level, slots, zero, level_starts[1], recent_slots, zero, end,
                        walk, cancel,
                    )  # fmt: skip
                while level >= 0 and walk[level, width] == walk[level, width + 1]:
                    level -= 1
                if level < 0:
                    break
                slot = walk[level, walk[level, width + 1]]
                walk[level, width + 1] += 1
                node = child_by_slot(slots, walk[level, width + 2], walk[level, width + 3], slot)
                recent_node = np.int64(-1)
                if n_recent > 0:
                    recent_node = child_by_slot(
                        recent_slots, walk[level, width + 4], walk[level, width + 5], slot
                    )
                if level == depth - 1:
                    bucket = node - level_starts[depth - 1]
                    if node < 0:
                        bucket = n_buckets + recent_node - recent_starts[depth - 1]
                else:
                    level += 1
                    start, end, recent_start, recent_end = zero, zero, zero, zero
                    if node >= 0:
                        start, end = children[node], children[node + 1]
                    if recent_node >= 0:
                        recent_start = recent_children[recent_node]
                        recent_end = recent_children[recent_node + 1]
                    sort_children(
                        scores, query, level, slots, start, end, recent_slots, recent_start,
                        recent_end, walk, cancel,
                    )  # fmt: skip
            else:
                while low == high and recent_low == recent_high and levels_up <= depth:
                    if origin == n_listed:
                        origin = 0
                        levels_up += 1
                        if levels_up < depth:
                            span *= width
                    if levels_up == depth:  # the root: everything, once
                        low, high = np.int64(0), n_buckets
                        recent_low, recent_high = np.int64(0), n_recent
                        origin = n_listed
                    elif levels_up < depth:
                        lowest = bucket_ids[query, origin] // span * span
                        low = lower_bound(buckets, lowest)
                        high = n_buckets  # lowest + span may overflow int64
                        if lowest + (span - 1) < buckets[n_buckets - 1]:
                            high = lower_bound(buckets, lowest + span)
                        if n_recent > 0:
                            recent_low = lower_bound(recent, lowest)
                            recent_high = n_recent
                            if lowest + (span - 1) < recent[n_recent - 1]:
                                recent_high = lower_bound(recent, lowest + span)
                        origin += 1
                if low == high and recent_low == recent_high:
                    break
                from_recent = low == high
                if low < high and recent_low < recent_high:
                    from_recent = recent[recent_low] < buckets[low]
                    if recent[recent_low] == buckets[low]:
                        recent_low += 1
                if from_recent:
                    bucket = n_buckets + recent_low
                    recent_low += 1
                else:
                    bucket = low
                    low += 1
            if bucket >= 0:
                visits, n_visits, n_new, is_full = _visit(
                    table, bucket, query, max_candidates - n_items,
                    is_filling and n_examined >= budget, excluded_id, one_by_one, visited, seen,
                    visits, n_visits,
                )  # fmt: skip
                n_items += n_new
                if n_new > 0 and budget < NO_LIMIT:
                    in_recent = recent_number(unfiltered, bucket)
                    n_examined += live_entries(unfiltered, bucket, in_recent)
        candidates[query] = n_items
        truncated[query] = is_full
        for visit in range(first_visit, n_visits):
            visited[visits[visit, 4] >> 6] = 0
            items = entries_at(table, visits[visit, 1], layout.ITEMS, np.int32)
            if items.shape[0] > 0:
                first_item = table[segment_row(visits[visit, 1]) + layout.FIRST_ITEM]
                for entry in range(visits[visit, 2], visits[visit, 3]):
                    seen[(first_item + items[entry]) >> 6] = 0
    return visits[:n_visits]


@kernel()
def plan_visits(  # type: ignore[no-untyped-def]
    table, unfiltered, cancel, order, first, last, n_neighbors, bucket_ids, scores, n_probe, fill,
    max_candidates, exclude, budget, candidates, truncated,
):  # fmt: skip
    """Plan the visits of queries ``order[first:last]``, or first..last - 1 if it is empty.

    ``table`` is described in ``layout.py``; with a filter it has only the items that pass, and
    ``unfiltered``, otherwise empty, has all. For the arguments from ``bucket_ids`` to ``budget``
    see ``search.Request``; bucket ids are within the range of the shape.

    Writes ``candidates`` : int64[q], the number of candidates, and ``truncated`` : bool[q], whether
    ``max_candidates`` or ``budget`` left something out. Returns visits : int64[v, 6] of query,
    segment, first entry, entry after the last, number of the bucket, and its number within the
    segment. If the flag at the address ``cancel`` is set, all of these are undefined.
    """
    targets = np.empty(0, dtype=np.int64)
    if unfiltered.shape[0] == 0:
        return _plan(
            table, table, targets, cancel, order, first, last, n_neighbors, bucket_ids, scores,
            n_probe, fill, max_candidates, exclude, budget, candidates, truncated,
        )  # fmt: skip
    counts = np.empty(candidates.shape[0], dtype=np.int64)
    _plan(
        unfiltered, unfiltered, targets, cancel, order, first, last, n_neighbors, bucket_ids,
        scores, n_probe, fill, max_candidates, exclude, np.int64(NO_LIMIT), counts, truncated,
    )  # fmt: skip
    return _plan(
        table, unfiltered, counts, cancel, order, first, last, n_neighbors, bucket_ids, scores,
        n_probe, fill, max_candidates, exclude, budget, candidates, truncated,
    )  # fmt: skip
