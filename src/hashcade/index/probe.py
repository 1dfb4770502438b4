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
def best_buckets(scores, query, n_probe, table, cancel):  # type: ignore[no-untyped-def]
    """Return the ``n_probe`` live buckets of the best sums, best first, and how many got a sum."""
    depth, n_nodes, n_buckets = table[layout.DEPTH], table[layout.N_NODES], table[layout.N_BUCKETS]
    live = array_at(table[layout.LIVE], n_buckets, np.int64)
    level_starts = array_at(table[layout.LEVEL_STARTS], depth + 1, np.int64)
    slots = array_at(table[layout.SLOTS], n_nodes, np.int32)
    last_start = level_starts[depth - 1]
    children = array_at(table[layout.CHILDREN], last_start + 1, np.int64)
    n_probe = min(n_probe, n_buckets)
    best_of = np.empty(depth)
    for level in range(depth):
        best_of[level] = scores[query, level, 0]
        for slot in range(1, scores.shape[2]):
            best_of[level] = max(best_of[level], scores[query, level, slot])
    # The best so far: negated sums, so that the root is the worst, of equal ones the last.
    sums = np.empty((1, n_probe + 1))
    numbers = np.empty((1, n_probe + 1), dtype=np.int64)
    # Typed: a plain constant would have functions compiled once more, for this value alone.
    row, size = np.int64(0), np.int64(0)
    n_scored = 0
    # Open nodes by their bound. Node -1 is the root; partial[] is the sum so far.
    open_bound = np.empty((1, last_start + 1))
    open_node = np.empty((1, last_start + 1), dtype=np.int64)
    partial = np.empty(last_start + 1)
    open_bound[0, 0] = np.inf
    open_node[0, 0] = -1
    n_open = np.int64(1)
    while n_open > 0 and n_probe > 0 and not is_cancelled(cancel):
        # At a bound equal to the worst sum there may be an equal sum with a lower id.
        if size == n_probe and open_bound[0, 0] < -sums[0, 0]:
            break
        _, node = pop(open_bound, open_node, row, n_open)
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
                if size < n_probe:
                    push(sums, numbers, row, size, -total, bucket)
                    size += 1
                elif is_above(sums[0, 0], numbers[0, 0], -total, bucket):
                    replace_root(sums, numbers, row, size, -total, bucket)
                continue
            bound = total
            for below in range(level + 1, depth):
                bound += best_of[below]
            if size == n_probe and bound < -sums[0, 0]:
                continue
            partial[child] = total
            push(open_bound, open_node, row, n_open, bound, child)
            n_open += 1
    best = np.empty(size, dtype=np.int64)
    for rest in range(size, 0, -1):
        _, best[rest - 1] = pop(sums, numbers, row, rest)
    return best, n_scored


@helper()
def sort_children(scores, query, level, slots, first, last, walk, cancel):  # type: ignore[no-untyped-def]
    """Write children ``first..last - 1`` into ``walk[level]``: best first, then lowest slot."""
    size = last - first
    values = np.empty((1, size))
    order = np.empty((1, size), dtype=np.int64)
    for child in range(first, last):
        values[0, child - first] = -scores[query, level, slots[child]]
        order[0, child - first] = child
    sort_pairs(values, order, size, cancel)
    for k in range(size):
        walk[level, k] = order[0, k]
    walk[level, walk.shape[1] - 2] = size
    walk[level, walk.shape[1] - 1] = 0
