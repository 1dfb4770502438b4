"""Exchange tables: the cheapest unit to move from one slot to another.

``exchange[row, k]`` is the least cost, without prices, of moving a unit of a row to a slot k that
is open to it, and ``mover[row, k]`` is that unit (inf and -1 if there is none). There is a row per
slot, and one per pair of a dense group. A unit of a small group starts from the *slot*, and first
goes back over the link into its pair; a unit of a dense group starts from its pair.

Invariant: between two searches every entry is the minimum over the units of its row. A move
changes few entries, and only those are recomputed.

``tables`` are exchange, mover, first_in_row, next_in_row, scores, open_score, class_of, gate,
refund and closed, as `flow.py` has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hashcade._kernels import Ints, helper

DENSE = 2  # a group with at least this many units per slot has its own rows
_REBUILD_LIMIT = 4  # units in a row: up to this many, rebuilding it is faster than updating it


@helper()
def offer(u: int, row: int, q: int, tables: tuple[Any, ...]) -> None:
    """Enter the moves of unit u, in slot q, wherever they are the cheapest of the row."""
    exchange, mover, _, _, scores, open_score, class_of, gate, refund, closed = tables
    p = class_of[u]
    g = gate[p]
    cost = scores[p, q] - refund[g, q]
    for k in range(exchange.shape[1]):
        new_cost = cost - open_score[p, k] + closed[g, k]
        better = new_cost < exchange[row, k]
        exchange[row, k] = new_cost if better else exchange[row, k]
        mover[row, k] = u if better else mover[row, k]


@helper()
def offer_slot(u: int, row: int, q: int, k: int, tables: tuple[Any, ...]) -> None:
    """Enter the move of unit u from slot q to slot k if it is the cheapest of the row."""
    exchange, mover, _, _, scores, open_score, class_of, gate, refund, closed = tables
    p = class_of[u]
    g = gate[p]
    new_cost = scores[p, q] - refund[g, q] - open_score[p, k] + closed[g, k]
    if new_cost < exchange[row, k]:
        exchange[row, k] = new_cost
        mover[row, k] = u


@helper()
def rebuild_row(row: int, q: int, tables: tuple[Any, ...]) -> None:
    """Recompute a row (of slot q, or of a pair with it)."""
    exchange, mover, first_in_row, next_in_row = tables[:4]
    for k in range(exchange.shape[1]):
        exchange[row, k] = np.inf
        mover[row, k] = -1
    u = first_in_row[row]
    while u >= 0:
        offer(u, row, q, tables)
        u = next_in_row[u]


@helper()
def refresh(row: int, q: int, k: int, tables: tuple[Any, ...]) -> None:
    """Recompute one entry."""
    exchange, mover, first_in_row, next_in_row = tables[:4]
    exchange[row, k] = np.inf
    mover[row, k] = -1
    u = first_in_row[row]
    while u >= 0:
        offer_slot(u, row, q, k, tables)
        u = next_in_row[u]


@helper()
def withdraw(u: int, row: int, q: int, tables: tuple[Any, ...]) -> None:
    """Remove the moves of unit u, which has left the row."""
    exchange, mover, first_in_row, next_in_row = tables[:4]
    n_left = 0
    other = first_in_row[row]
    while other >= 0 and n_left <= _REBUILD_LIMIT:
        n_left += 1
        other = next_in_row[other]
    if n_left <= _REBUILD_LIMIT:
        rebuild_row(row, q, tables)
        return
    for k in range(exchange.shape[1]):
        if mover[row, k] == u:
            refresh(row, q, k, tables)


@helper()
def link_unit(u: int, row: int, first: Ints, next_unit: Ints) -> None:
    """Put a unit at the front of a linked list."""
    next_unit[u] = first[row]
    first[row] = u


@helper()
def unlink_unit(u: int, row: int, first: Ints, next_unit: Ints) -> None:
    """Take a unit out of a linked list."""
    if first[row] == u:
        first[row] = next_unit[u]
        return
    previous = first[row]
    while next_unit[previous] != u:
        previous = next_unit[previous]
    next_unit[previous] = next_unit[u]


@helper()
def append(item: int, items: Ints, n_items: Ints, row: int) -> None:
    """Append to a row that is filled from the left."""
    items[row, n_items[row]] = item
    n_items[row] += 1


@helper()
def remove(item: int, items: Ints, n_items: Ints, row: int) -> None:
    """Remove from such a row; the last item replaces the removed one."""
    n_items[row] -= 1
    i = 0
    while items[row, i] != item:
        i += 1
    items[row, i] = items[row, n_items[row]]
