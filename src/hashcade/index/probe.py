"""Through the bucket tree: the buckets with the best sums of slot scores, and the best slots.

Sums of scores run from level 1 down. Floating-point addition is monotone, so a bound that is added
up in the same order is never below a sum that it bounds, and the search through the tree gives
exactly what scoring all buckets would give. Equal sums: the lower id first.
"""

from __future__ import annotations

import numpy as np

from hashcade._kernels import helper
from hashcade.index import layout
from hashcade.index.cancel import is_cancelled
from hashcade.index.layout import array_at


@helper()
def is_above(value_a, name_a, value_b, name_b):  # type: ignore[no-untyped-def]
    """Whether the first pair is larger: by value, of equal values by name."""
    return value_a > value_b or (value_a == value_b and name_a > name_b)


@helper()
def push(values, names, row, size, value, name):  # type: ignore[no-untyped-def]
    """Add a pair to a heap of ``size``: a row of values and names, the largest at the root."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if not is_above(value, name, values[row, parent], names[row, parent]):
            break
        values[row, hole] = values[row, parent]
        names[row, hole] = names[row, parent]
        hole = parent
    values[row, hole] = value
    names[row, hole] = name


@helper()
def replace_root(values, names, row, size, value, name):  # type: ignore[no-untyped-def]
    """Put a pair in the place of the root of a heap of ``size``."""
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and is_above(
            values[row, child + 1], names[row, child + 1], values[row, child], names[row, child]
        ):
            child += 1
        if not is_above(values[row, child], names[row, child], value, name):
            break
        values[row, hole] = values[row, child]
        names[row, hole] = names[row, child]
        hole = child
    values[row, hole] = value
    names[row, hole] = name


@helper()
def pop(values, names, row, size):  # type: ignore[no-untyped-def]
    """Remove the root of a heap of ``size``, and return it; the heap is then one shorter."""
    value, name, last = values[row, 0], names[row, 0], size - 1
    replace_root(values, names, row, last, values[row, last], names[row, last])
    return value, name


@helper()
def sort_pairs(values, names, size, cancel):  # type: ignore[no-untyped-def]
    """Sort ``size`` pairs, the smallest value first, of equal values the smallest name.

    A heap, because pairs are pushed anyway: numba compiles its own sort for seconds. The order is
    undefined if it is cancelled.
    """
    row = np.int64(0)
    for last in range(1, size):
        push(values, names, row, last, values[0, last], names[0, last])
    for rest in range(size, 1, -1):
        if rest & 4095 == 0 and is_cancelled(cancel):
            break
        values[0, rest - 1], names[0, rest - 1] = pop(values, names, row, rest)


@helper()
def lower_bound(sorted_ids, wanted):  # type: ignore[no-untyped-def]
    """Return the place of the first that is not less, as ``np.searchsorted``."""
    low, high = np.int64(0), sorted_ids.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if sorted_ids[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@helper()
def bucket_number(table, bucket_id):  # type: ignore[no-untyped-def]
    """Return the number of a bucket in the tree, -1 if it is not occupied.

    Buckets that are only in the tree of recent segments have the numbers after all others.
    """
    n_buckets, n_recent = table[layout.N_BUCKETS], table[layout.N_RECENT]
    buckets = array_at(table[layout.BUCKETS], n_buckets, np.int64)
    number = lower_bound(buckets, bucket_id)
    if number < n_buckets and buckets[number] == bucket_id:
        return number
    if n_recent > 0:
        recent = array_at(table[layout.RECENT], n_recent, np.int64)
        number = lower_bound(recent, bucket_id)
        if number < n_recent and recent[number] == bucket_id:
            return n_buckets + number
    return np.int64(-1)


@helper()
def recent_number(table, bucket):  # type: ignore[no-untyped-def]
    """Return the number of a bucket in the tree of recent segments, -1 if it is not there."""
    n_buckets, n_recent = table[layout.N_BUCKETS], table[layout.N_RECENT]
    if n_recent == 0:
        return np.int64(-1)
    if bucket >= n_buckets:
        return bucket - n_buckets
    # Most are not there, and have no mark. Then by its place: ids of the large tree are many, and
    # seldom in the cache.
    marks = array_at(table[layout.MARKS], layout.N_MARKS, np.uint8)
    if marks[bucket & (layout.N_MARKS - 1)] == 0:
        return np.int64(-1)
    places = array_at(table[layout.PLACES], n_recent, np.int64)
    number = lower_bound(places, bucket + 1) - 1
    if number < 0 or places[number] != bucket:
        return np.int64(-1)
    bucket_id = array_at(table[layout.BUCKETS], n_buckets, np.int64)[bucket]
    recent = array_at(table[layout.RECENT], n_recent, np.int64)
    return number if recent[number] == bucket_id else np.int64(-1)


@helper()
def live_entries(table, bucket, recent):  # type: ignore[no-untyped-def]
    """Return how many entries of a bucket, with its :func:`recent_number`, were not removed."""
    n_buckets, n_recent = table[layout.N_BUCKETS], table[layout.N_RECENT]
    total = np.int64(0)
    if bucket < n_buckets:
        total = array_at(table[layout.LIVE], n_buckets, np.int32)[bucket]
    if recent >= 0:
        total += array_at(table[layout.RECENT_LIVE], n_recent, np.int32)[recent]
    return total


@helper()
def best_buckets(scores, query, n_probe, table, cancel):  # type: ignore[no-untyped-def]
    """Return the ``n_probe`` live buckets of the best sums, best first, and the number of sums."""
    depth, n_nodes, n_buckets = table[layout.DEPTH], table[layout.N_NODES], table[layout.N_BUCKETS]
    n_recent = table[layout.N_RECENT]
    live = array_at(table[layout.LIVE], n_buckets, np.int32)
    level_starts = array_at(table[layout.LEVEL_STARTS], depth + 1, np.int64)
    slots = array_at(table[layout.SLOTS], n_nodes, np.int32)
    last_start, n_late = level_starts[depth - 1], np.int64(0)
    children = array_at(table[layout.CHILDREN], last_start + 1, np.int64)
    recent_starts, recent_slots, recent_children = level_starts, slots, children
    places, recent_live = children, live
    if n_recent > 0:
        recent_starts = array_at(table[layout.RECENT_LEVEL_STARTS], depth + 1, np.int64)
        recent_slots = array_at(table[layout.RECENT_SLOTS], table[layout.N_RECENT_NODES], np.int32)
        n_late = recent_starts[depth - 1]  # inner nodes of the recent tree
        recent_children = array_at(table[layout.RECENT_CHILDREN], n_late + 1, np.int64)
        places = array_at(table[layout.PLACES], n_recent, np.int64)
        recent_live = array_at(table[layout.RECENT_LIVE], n_recent, np.int32)
    n_probe = min(n_probe, n_buckets + n_recent)
    best_of = np.empty(depth)
    for level in range(depth):
        best_of[level] = scores[query, level, 0]
        for slot in range(1, scores.shape[2]):
            best_of[level] = max(best_of[level], scores[query, level, slot])
    # The best so far: negated sums, so that the root is the worst, of equal ones the last. A name
    # tells the rank of a bucket's id in both trees: n_recent + 1 for each bucket of the large one.
    sums = np.empty((1, n_probe + 1))
    names = np.empty((1, n_probe + 1), dtype=np.int64)
    step = n_recent + 1
    # Typed: a plain constant would have functions compiled once more, for this value alone.
    row, size, none = np.int64(0), np.int64(0), np.int64(-1)
    n_scored, worst = 0, -np.inf
    # Open nodes by their bound. Both trees are walked as one: a name tells the numbers of a node in
    # both, each plus 1, 0 for none; the root is -1. partial[] is the sum so far.
    open_bound = np.empty((1, last_start + n_late + 2))
    open_node = np.empty((1, last_start + n_late + 2), dtype=np.int64)
    partial = np.empty(last_start + n_late + 1)
    # By slot, of the node that is looked at: its children in the recent tree.
    late_of = np.empty(scores.shape[2], dtype=np.int64)
    for slot in range(scores.shape[2]):  # by hand: numba compiles np.full for long
        late_of[slot] = -1
    open_bound[0, 0] = np.inf
    open_node[0, 0] = -1
    n_open = np.int64(1)
    while n_open > 0 and n_probe > 0 and not is_cancelled(cancel):
        if open_bound[0, 0] < worst:
            break
        _, node_name = pop(open_bound, open_node, row, n_open)
        n_open -= 1
        level, so_far = 0, 0.0  # level of the children
        child, high, late, late_high = np.int64(0), level_starts[1], np.int64(0), np.int64(0)
        if node_name >= 0:
            node, late_node = node_name // (n_late + 1) - 1, node_name % (n_late + 1) - 1
            level, high = 1, np.int64(0)
            if late_node >= 0:
                while recent_starts[level] <= late_node:  # ends: it is not of the last level
                    level += 1
                late, late_high = recent_children[late_node], recent_children[late_node + 1]
            if node >= 0:
                while level_starts[level] <= node:
                    level += 1
                child, high = children[node], children[node + 1]
            so_far = partial[node if node >= 0 else last_start + late_node]
        elif n_recent > 0:
            late_high = recent_starts[1]
        if level == depth - 1:
            n_scored += high - child + late_high - late
        for k in range(late, late_high):
            late_of[recent_slots[k]] = k
        # The children in the large tree, then those that the recent one alone has: all that are
        # left, but for some of both trees that were not good enough, and are not now.
        for k in range(child, high + late_high - late):
            slot = slots[k] if k < high else recent_slots[late + k - high]
            total = so_far + scores[query, level, slot]
            bound = total
            for below in range(level + 1, depth):
                bound += best_of[below]
            # At a bound equal to the worst sum there may be an equal sum with a lower id.
            if bound < worst and k < high:
                continue
            node, late_node = k if k < high else none, late_of[slot]
            late_of[slot] = -1
            if bound < worst or (node < 0 and late_node < 0):
                continue
            if level < depth - 1:
                partial[node if node >= 0 else last_start + late_node] = total
                name = (node + 1) * (n_late + 1) + late_node + 1
                push(open_bound, open_node, row, n_open, bound, name)
                n_open += 1
                continue
            n_live, name = np.int64(0), np.int64(0)
            if late_node >= 0:
                late_node -= n_late
                n_live = recent_live[late_node]
                name = places[late_node] * step + 1 + late_node
            if node >= 0:
                n_live += live[node - last_start]
                name = (node - last_start + 1) * step
            if n_live == 0:
                continue
            if size < n_probe:
                push(sums, names, row, size, -total, name)
                size += 1
            elif is_above(sums[0, 0], names[0, 0], -total, name):
                replace_root(sums, names, row, size, -total, name)
            if size == n_probe:
                worst = -sums[0, 0]
    best = np.empty(size, dtype=np.int64)
    for rest in range(size, 0, -1):
        _, name = pop(sums, names, row, rest)
        in_recent = name % step
        best[rest - 1] = name // step - 1 if in_recent == 0 else n_buckets + in_recent - 1
    return best, n_scored


@helper()
def child_by_slot(slots, first, last, slot):  # type: ignore[no-untyped-def]
    """Return the node of first..last - 1, by ascending slot, that a slot leads to; -1 for none."""
    if first + slot < last and slots[first + slot] == slot:  # none is missing before it
        return first + slot
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if slots[middle] < slot:
            low = middle + 1
        else:
            high = middle
    return low if low < last and slots[low] == slot else np.int64(-1)


@helper()
def sort_children(  # type: ignore[no-untyped-def]
    scores, query, level, slots, first, last, recent_slots, recent_first, recent_last, walk, cancel
):
    """Write the slots below a node of either tree into ``walk[level]``: best first, then lowest."""
    room, size = last - first + recent_last - recent_first, 0
    values = np.empty((1, room))
    order = np.empty((1, room), dtype=np.int64)
    for child in range(first, last):
        values[0, size] = -scores[query, level, slots[child]]
        order[0, size] = slots[child]
        size += 1
    for child in range(recent_first, recent_last):
        slot = np.int64(recent_slots[child])
        if child_by_slot(slots, first, last, slot) < 0:
            values[0, size] = -scores[query, level, slot]
            order[0, size] = slot
            size += 1
    sort_pairs(values, order, size, cancel)
    for k in range(size):
        walk[level, k] = order[0, k]
    rest = walk.shape[1] - 6
    walk[level, rest] = size
    walk[level, rest + 1] = 0
    walk[level, rest + 2], walk[level, rest + 3] = first, last
    walk[level, rest + 4], walk[level, rest + 5] = recent_first, recent_last
