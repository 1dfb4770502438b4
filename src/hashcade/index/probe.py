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
    bucket_id = array_at(table[layout.BUCKETS], n_buckets, np.int64)[bucket]
    recent = array_at(table[layout.RECENT], n_recent, np.int64)
    number = lower_bound(recent, bucket_id)
    if number < n_recent and recent[number] == bucket_id:
        return number
    return np.int64(-1)


@helper()
def live_entries(table, bucket):  # type: ignore[no-untyped-def]
    """Return how many entries of a bucket were not removed."""
    n_buckets, n_recent = table[layout.N_BUCKETS], table[layout.N_RECENT]
    total = np.int64(0)
    if bucket < n_buckets:
        total = array_at(table[layout.LIVE], n_buckets, np.int64)[bucket]
    recent = recent_number(table, bucket)
    if recent >= 0:
        total += array_at(table[layout.RECENT_LIVE], n_recent, np.int64)[recent]
    return total


@helper()
def best_buckets(scores, query, n_probe, table, cancel):  # type: ignore[no-untyped-def]
    """Return the ``n_probe`` live buckets of the best sums, best first, and how many got a sum."""
    depth, n_nodes, n_buckets = table[layout.DEPTH], table[layout.N_NODES], table[layout.N_BUCKETS]
    n_recent, n_recent_nodes = table[layout.N_RECENT], table[layout.N_RECENT_NODES]
    buckets = array_at(table[layout.BUCKETS], n_buckets, np.int64)
    live = array_at(table[layout.LIVE], n_buckets, np.int64)
    level_starts = array_at(table[layout.LEVEL_STARTS], depth + 1, np.int64)
    slots = array_at(table[layout.SLOTS], n_nodes, np.int32)
    last_start = level_starts[depth - 1]
    children = array_at(table[layout.CHILDREN], last_start + 1, np.int64)
    recent_starts, recent_slots, recent_children = level_starts, slots, children
    places, n_inner = children, last_start
    if n_recent > 0:
        recent_starts = array_at(table[layout.RECENT_LEVEL_STARTS], depth + 1, np.int64)
        recent_slots = array_at(table[layout.RECENT_SLOTS], n_recent_nodes, np.int32)
        n_inner += recent_starts[depth - 1]
        n_inner_recent = recent_starts[depth - 1] + 1
        recent_children = array_at(table[layout.RECENT_CHILDREN], n_inner_recent, np.int64)
        places = array_at(table[layout.PLACES], n_recent, np.int64)
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
    row, size = np.int64(0), np.int64(0)
    n_scored = 0
    # Open nodes by their bound, those of the recent tree after the others. Nodes -1 and -2 are the
    # roots; partial[] is the sum so far.
    open_bound = np.empty((1, n_inner + 2))
    open_node = np.empty((1, n_inner + 2), dtype=np.int64)
    partial = np.empty(n_inner + 1)
    open_bound[0, 0] = np.inf
    open_node[0, 0] = -1
    n_open = np.int64(1)
    if n_recent > 0:
        push(open_bound, open_node, row, n_open, np.inf, np.int64(-2))
        n_open += 1
    while n_open > 0 and n_probe > 0 and not is_cancelled(cancel):
        # At a bound equal to the worst sum there may be an equal sum with a lower id.
        if size == n_probe and open_bound[0, 0] < -sums[0, 0]:
            break
        _, node = pop(open_bound, open_node, row, n_open)
        n_open -= 1
        is_recent = node == -2 or node >= last_start
        first, starts, its_slots, its_children = np.int64(0), level_starts, slots, children
        if is_recent:
            first, starts = last_start, recent_starts
            its_slots, its_children = recent_slots, recent_children
        if node < 0:
            level = 0
            low, high = np.int64(0), starts[1]
            so_far = 0.0
        else:
            level = 1  # of the children
            while starts[level] <= node - first:  # ends: the node is not of the last level
                level += 1
            low, high = its_children[node - first], its_children[node - first + 1]
            so_far = partial[node]
        for child in range(low, high):
            total = so_far + scores[query, level, its_slots[child]]
            if level == depth - 1:
                bucket = child - starts[depth - 1]
                if is_recent:
                    place = places[bucket]
                    bucket_id = array_at(table[layout.RECENT], n_recent, np.int64)[bucket]
                    if place < n_buckets and buckets[place] == bucket_id:
                        continue  # it has its turn in the large tree
                    if array_at(table[layout.RECENT_LIVE], n_recent, np.int64)[bucket] == 0:
                        continue
                    name = place * step + 1 + bucket
                else:
                    if live[bucket] == 0 and live_entries(table, bucket) == 0:
                        continue
                    name = (bucket + 1) * step
                n_scored += 1
                if size < n_probe:
                    push(sums, names, row, size, -total, name)
                    size += 1
                elif is_above(sums[0, 0], names[0, 0], -total, name):
                    replace_root(sums, names, row, size, -total, name)
                continue
            bound = total
            for below in range(level + 1, depth):
                bound += best_of[below]
            if size == n_probe and bound < -sums[0, 0]:
                continue
            partial[first + child] = total
            push(open_bound, open_node, row, n_open, bound, first + child)
            n_open += 1
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
