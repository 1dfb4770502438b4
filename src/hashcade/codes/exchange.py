"""Exchange tables: which unit moves most cheaply from here to there.

``exchange[row, k]`` is the least cost, prices apart, at which a unit of a row goes to slot k that
is open to it, and ``mover[row, k]`` is that unit (inf and -1 if there is none). There is a row per
slot, and one per pair of a dense group. A unit of a small group starts from the *slot*, going back
over the link into its pair; a unit of a dense group starts from its pair.

Invariant: between two searches every entry is the minimum over the units of its row. A move
changes few of them, and only those are computed again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashcade._kernels import inner_kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DENSE = 2  # a group with so many units per slot has rows of its own
_FEW = 4  # units in a row, up to which filling it anew beats updating it
_INF = np.inf


@inner_kernel()
def offer(
    u: int, row: int, q: int,
    exchange: Floats, mover: Ints, first_in_row: Ints, next_in_row: Ints, scores: Floats,
    open_score: Floats, class_of: Ints, gate: Ints, refund: Floats, closed: Floats,
) -> None:  # fmt: skip
    """Enter the moves of unit u, which is in slot q, where they are the cheapest of the row."""
    p = class_of[u]
    g = gate[p]
    cost = scores[p, q] - refund[g, q]
    for k in range(exchange.shape[1]):
        offered = cost - open_score[p, k] + closed[g, k]
        better = offered < exchange[row, k]
        exchange[row, k] = offered if better else exchange[row, k]
        mover[row, k] = u if better else mover[row, k]


@inner_kernel()
def offer_slot(
    u: int, row: int, q: int, k: int,
    exchange: Floats, mover: Ints, first_in_row: Ints, next_in_row: Ints, scores: Floats,
    open_score: Floats, class_of: Ints, gate: Ints, refund: Floats, closed: Floats,
) -> None:  # fmt: skip
    """Enter the move of unit u from slot q to slot k if it is the cheapest of the row."""
    p = class_of[u]
    g = gate[p]
    offered = scores[p, q] - refund[g, q] - open_score[p, k] + closed[g, k]
    if offered < exchange[row, k]:
        exchange[row, k] = offered
        mover[row, k] = u


@inner_kernel()
def rebuild_row(
    row: int, q: int,
    exchange: Floats, mover: Ints, first_in_row: Ints, next_in_row: Ints, scores: Floats,
    open_score: Floats, class_of: Ints, gate: Ints, refund: Floats, closed: Floats,
) -> None:  # fmt: skip
    """Compute a row (slot q, or a pair with it) anew."""
    for k in range(exchange.shape[1]):
        exchange[row, k] = _INF
        mover[row, k] = -1
    u = first_in_row[row]
    while u >= 0:
        offer(
            u, row, q, exchange, mover, first_in_row, next_in_row,
            scores, open_score, class_of, gate, refund, closed,
        )  # fmt: skip
        u = next_in_row[u]


@inner_kernel()
def refresh(
    row: int, q: int, k: int,
    exchange: Floats, mover: Ints, first_in_row: Ints, next_in_row: Ints, scores: Floats,
    open_score: Floats, class_of: Ints, gate: Ints, refund: Floats, closed: Floats,
) -> None:  # fmt: skip
    """Compute the entry of a row for slot k anew."""
    best = _INF
    best_unit = -1
    u = first_in_row[row]
    while u >= 0:
        p = class_of[u]
        g = gate[p]
        offered = scores[p, q] - refund[g, q] - open_score[p, k] + closed[g, k]
        if offered < best:
            best = offered
            best_unit = u
        u = next_in_row[u]
    exchange[row, k] = best
    mover[row, k] = best_unit


@inner_kernel()
def withdraw(
    u: int, row: int, q: int,
    exchange: Floats, mover: Ints, first_in_row: Ints, next_in_row: Ints, scores: Floats,
    open_score: Floats, class_of: Ints, gate: Ints, refund: Floats, closed: Floats,
) -> None:  # fmt: skip
    """Remove the moves of unit u, which has left the row."""
    n_left = 0
    other = first_in_row[row]
    while other >= 0 and n_left <= _FEW:
        n_left += 1
        other = next_in_row[other]
    if n_left <= _FEW:
        rebuild_row(
            row, q, exchange, mover, first_in_row, next_in_row,
            scores, open_score, class_of, gate, refund, closed,
        )  # fmt: skip
        return
    for k in range(exchange.shape[1]):
        if mover[row, k] == u:
            refresh(
                row, q, k, exchange, mover, first_in_row, next_in_row,
                scores, open_score, class_of, gate, refund, closed,
            )  # fmt: skip


# -- lists -----------------------------------------------------------------------------------------


@inner_kernel()
def link_unit(u: int, name: int, first: Ints, following: Ints) -> None:
    """Put a unit at the front of a linked list."""
    following[u] = first[name]
    first[name] = u


@inner_kernel()
def unlink_unit(u: int, name: int, first: Ints, following: Ints) -> None:
    """Take a unit out of a linked list."""
    if first[name] == u:
        first[name] = following[u]
        return
    before = first[name]
    while following[before] != u:
        before = following[before]
    following[before] = following[u]


@inner_kernel()
def append(item: int, items: Ints, n_items: Ints, row: int) -> None:
    """Append to a row of an array that is filled from the left."""
    items[row, n_items[row]] = item
    n_items[row] += 1


@inner_kernel()
def remove(item: int, items: Ints, n_items: Ints, row: int) -> None:
    """Remove from such a row; the last one takes the place."""
    n_items[row] -= 1
    i = 0
    while items[row, i] != item:
        i += 1
    items[row, i] = items[row, n_items[row]]
