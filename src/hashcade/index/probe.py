"""Best-first search in the bucket tree: buckets with the largest sums of slot scores, best slots.

Sums of scores run from level 1 down. Floating-point addition is monotone, so a bound that is summed
in the same order is never below a sum that it bounds: the search returns exactly what scoring all
buckets would. Of equal sums the lower id comes first.
"""

from __future__ import annotations

import numpy as np

from hashcade._kernels import helper
from hashcade.index import layout
from hashcade.index.cancel import is_cancelled
from hashcade.index.layout import array_at


@helper()
def is_above(value_a, id_a, value_b, id_b):  # type: ignore[no-untyped-def]
    """Whether the first pair is larger: by value, then by id."""
    return value_a > value_b or (value_a == value_b and id_a > id_b)


@helper()
def push(values, ids, row, size, value, new_id):  # type: ignore[no-untyped-def]
    """Add a pair to a heap of ``size``: a row of values and ids, the largest at the root."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if not is_above(value, new_id, values[row, parent], ids[row, parent]):
            break
        values[row, hole] = values[row, parent]
        ids[row, hole] = ids[row, parent]
        hole = parent
    values[row, hole] = value
    ids[row, hole] = new_id


@helper()
def replace_root(values, ids, row, size, value, new_id):  # type: ignore[no-untyped-def]
    """Replace the root of a heap of ``size`` by a pair."""
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and is_above(
            values[row, child + 1], ids[row, child + 1], values[row, child], ids[row, child]
        ):
            child += 1
        if not is_above(values[row, child], ids[row, child], value, new_id):
            break
        values[row, hole] = values[row, child]
        ids[row, hole] = ids[row, child]
        hole = child
    values[row, hole] = value
    ids[row, hole] = new_id


@helper()
def pop(values, ids, row, size):  # type: ignore[no-untyped-def]
    """Remove the root of a heap of ``size``, and return it; the heap is then one shorter."""
    value, root_id, last = values[row, 0], ids[row, 0], size - 1
    replace_root(values, ids, row, last, values[row, last], ids[row, last])
    return value, root_id


@helper()
def sort_pairs(values, ids, size, cancel):  # type: ignore[no-untyped-def]
    """Sort ``size`` pairs in ascending order, by value, then by id.

    Heap sort, because the heap functions are compiled anyway: numba's own sort takes seconds to
    compile. The order is undefined if it is cancelled.
    """
    row = np.int64(0)
    for last in range(1, size):
        push(values, ids, row, last, values[0, last], ids[0, last])
    for n_left in range(size, 1, -1):
        if n_left & 4095 == 0 and is_cancelled(cancel):
            break
        values[0, n_left - 1], ids[0, n_left - 1] = pop(values, ids, row, n_left)


@helper()
def lower_bound(sorted_ids, target):  # type: ignore[no-untyped-def]
    """Return the position of the first id that is not less, as ``np.searchsorted``."""
    low, high = np.int64(0), sorted_ids.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if sorted_ids[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low


@helper()
def bucket_number(table, bucket_id):  # type: ignore[no-untyped-def]
    """Return the number of a bucket in the tree, -1 if it is not occupied.

    Buckets that are only in the recent tree are numbered after all others.
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
    """Return the number of a bucket in the recent tree, -1 if it is not in it."""
    n_buckets, n_recent = table[layout.N_BUCKETS], table[layout.N_RECENT]
    if n_recent == 0:
        return np.int64(-1)
    if bucket >= n_buckets:
        return bucket - n_buckets
    # Most buckets are not in it, and have no mark. Then search by position, not by id: the ids of
    # the main tree are many, and seldom in the cache.
    marks = array_at(table[layout.MARKS], layout.N_MARKS, np.uint8)
    if marks[bucket & (layout.N_MARKS - 1)] == 0:
        return np.int64(-1)
    positions = array_at(table[layout.POSITIONS], n_recent, np.int64)
    number = lower_bound(positions, bucket + 1) - 1
    if number < 0 or positions[number] != bucket:
        return np.int64(-1)
    bucket_id = array_at(table[layout.BUCKETS], n_buckets, np.int64)[bucket]
    recent = array_at(table[layout.RECENT], n_recent, np.int64)
    return number if recent[number] == bucket_id else np.int64(-1)


@helper()
def live_entries(table, bucket, in_recent):  # type: ignore[no-untyped-def]
    """Return the number of live entries of a bucket, given its :func:`recent_number`."""
    n_buckets, n_recent = table[layout.N_BUCKETS], table[layout.N_RECENT]
    total = np.int64(0)
    if bucket < n_buckets:
        total = array_at(table[layout.LIVE], n_buckets, np.int32)[bucket]
    if in_recent >= 0:
        total += array_at(table[layout.RECENT_LIVE], n_recent, np.int32)[in_recent]
    return total


@helper()
def best_buckets(scores, query, n_probe, table, cancel):  # type: ignore[no-untyped-def]
    """Return the ``n_probe`` live buckets with the largest sums, and how many were computed."""
    depth, n_nodes, n_buckets = table[layout.DEPTH], table[layout.N_NODES], table[layout.N_BUCKETS]
    n_recent = table[layout.N_RECENT]
    live = array_at(table[layout.LIVE], n_buckets, np.int32)
    level_starts = array_at(table[layout.LEVEL_STARTS], depth + 1, np.int64)
    slots = array_at(table[layout.SLOTS], n_nodes, np.int32)
    last_start, n_inner = level_starts[depth - 1], np.int64(0)
    children = array_at(table[layout.CHILDREN], last_start + 1, np.int64)
    recent_starts, recent_slots, recent_children = level_starts, slots, children
    positions, recent_live = children, live
    if n_recent > 0:
        recent_starts = array_at(table[layout.RECENT_LEVEL_STARTS], depth + 1, np.int64)
        recent_slots = array_at(table[layout.RECENT_SLOTS], table[layout.N_RECENT_NODES], np.int32)
        n_inner = recent_starts[depth - 1]  # inner nodes of the recent tree
        recent_children = array_at(table[layout.RECENT_CHILDREN], n_inner + 1, np.int64)
        positions = array_at(table[layout.POSITIONS], n_recent, np.int64)
        recent_live = array_at(table[layout.RECENT_LIVE], n_recent, np.int32)
    n_probe = min(n_probe, n_buckets + n_recent)
    best_scores = np.empty(depth)
    for level in range(depth):
        best_scores[level] = scores[query, level, 0]
        for slot in range(1, scores.shape[2]):
            best_scores[level] = max(best_scores[level], scores[query, level, slot])
    # The best so far: negated sums, so that the root is the worst, of equal ones the last. The code
    # of a bucket orders the ids of both trees: n_recent + 1 for each bucket of the main tree.
    sums = np.empty((1, n_probe + 1))
    codes = np.empty((1, n_probe + 1), dtype=np.int64)
    step = n_recent + 1
    # Typed: with a plain constant the functions would be compiled once more, for this value.
    row, size, no_node = np.int64(0), np.int64(0), np.int64(-1)
    n_scored, worst = 0, -np.inf
    # Open nodes by their bound. Both trees are searched as one: the code of a node combines its
    # numbers in both, each plus 1, 0 for none; the root is -1.
    open_bound = np.empty((1, last_start + n_inner + 2))
    open_node = np.empty((1, last_start + n_inner + 2), dtype=np.int64)
    partial_sums = np.empty(last_start + n_inner + 1)
    # Children of the current node in the recent tree, by slot.
    recent_child_of = np.empty(scores.shape[2], dtype=np.int64)
    for slot in range(scores.shape[2]):  # a loop: numba takes long to compile np.full
        recent_child_of[slot] = -1
    open_bound[0, 0] = np.inf
    open_node[0, 0] = -1
    n_open = np.int64(1)
    while n_open > 0 and n_probe > 0 and not is_cancelled(cancel):
        if open_bound[0, 0] < worst:
            break
        _, node_code = pop(open_bound, open_node, row, n_open)
        n_open -= 1
        level, partial_sum = 0, 0.0  # level of the children
        child, high = np.int64(0), level_starts[1]
        recent_low, recent_high = np.int64(0), np.int64(0)
        if node_code >= 0:
            node, recent_node = node_code // (n_inner + 1) - 1, node_code % (n_inner + 1) - 1
            level, high = 1, np.int64(0)
            if recent_node >= 0:
                while recent_starts[level] <= recent_node:  # ends: it is not on the last level
                    level += 1
                recent_low = recent_children[recent_node]
                recent_high = recent_children[recent_node + 1]
            if node >= 0:
                while level_starts[level] <= node:
                    level += 1
                child, high = children[node], children[node + 1]
            partial_sum = partial_sums[node if node >= 0 else last_start + recent_node]
        elif n_recent > 0:
            recent_high = recent_starts[1]
        if level == depth - 1:
            n_scored += high - child + recent_high - recent_low
        for k in range(recent_low, recent_high):
            recent_child_of[recent_slots[k]] = k
        # The children in the main tree, then those only in the recent tree. The latter may include
        # some of both trees that were pruned before, and are pruned again.
        for k in range(child, high + recent_high - recent_low):
            slot = slots[k] if k < high else recent_slots[recent_low + k - high]
            total = partial_sum + scores[query, level, slot]
            bound = total
            for lower_level in range(level + 1, depth):
                bound += best_scores[lower_level]
            # A bound equal to the worst sum may lead to an equal sum with a lower id.
            if bound < worst and k < high:
                continue
            node, recent_node = k if k < high else no_node, recent_child_of[slot]
            recent_child_of[slot] = -1
            if bound < worst or (node < 0 and recent_node < 0):
                continue
            if level < depth - 1:
                partial_sums[node if node >= 0 else last_start + recent_node] = total
                code = (node + 1) * (n_inner + 1) + recent_node + 1
                push(open_bound, open_node, row, n_open, bound, code)
                n_open += 1
                continue
            n_live, code = np.int64(0), np.int64(0)
            if recent_node >= 0:
                recent_node -= n_inner
                n_live = recent_live[recent_node]
                code = positions[recent_node] * step + 1 + recent_node
            if node >= 0:
                n_live += live[node - last_start]
                code = (node - last_start + 1) * step
            if n_live == 0:
                continue
            if size < n_probe:
                push(sums, codes, row, size, -total, code)
                size += 1
            elif is_above(sums[0, 0], codes[0, 0], -total, code):
                replace_root(sums, codes, row, size, -total, code)
            if size == n_probe:
                worst = -sums[0, 0]
    best = np.empty(size, dtype=np.int64)
    for n_left in range(size, 0, -1):
        _, code = pop(sums, codes, row, n_left)
        in_recent = code % step
        best[n_left - 1] = code // step - 1 if in_recent == 0 else n_buckets + in_recent - 1
    return best, n_scored


@helper()
def child_by_slot(slots, first, last, slot):  # type: ignore[no-untyped-def]
    """Return the node of a slot among first..last - 1, which ascend by slot; -1 for none."""
    if first + slot < last and slots[first + slot] == slot:  # no slot before it is missing
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
    """Write the slots below a node of both trees to ``walk[level]``: best first, then lowest."""
    n_children, size = last - first + recent_last - recent_first, 0
    values = np.empty((1, n_children))
    order = np.empty((1, n_children), dtype=np.int64)
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
    width = walk.shape[1] - 6
    walk[level, width] = size
    walk[level, width + 1] = 0
    walk[level, width + 2], walk[level, width + 3] = first, last
    walk[level, width + 4], walk[level, width + 5] = recent_first, recent_last
