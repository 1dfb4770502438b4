"""Ranked lists: the best slots of every class by net value, one more than it buys.

``value[rank, class]`` are the net values, best first, and ``choice[rank, class]`` their slots.
"""

from __future__ import annotations

from hashcade._kernels import Floats, Ints, helper


@helper()
def rank_slot_roughly(net: Floats, bits: Ints, q: int, n_bits: int, value: Floats) -> None:
    """Insert one slot into the ranked list of every class, with its number in the last bits.

    Precise enough to count buyers, and three times faster than :func:`rank_slot`. Overwrites
    ``net``, of which ``bits`` is a view as integers.
    """
    for p in range(bits.size):
        bits[p] = ((bits[p] >> n_bits) << n_bits) | q
    for i in range(value.shape[0]):
        ranked = value[i]
        for p in range(net.size):
            v = ranked[p]
            w = net[p]
            ranked[p] = v if v > w else w
            net[p] = w if v > w else v


@helper()
def unpack(bits: Ints, n_bits: int, choice: Ints) -> None:
    """Read the slots out of the last bits."""
    for i in range(bits.shape[0]):
        for p in range(bits.shape[1]):
            choice[i, p] = bits[i, p] & ((1 << n_bits) - 1)


@helper()
def rank_slot(net: Floats, q: int, value: Floats, choice: Ints, carried_slot: Ints) -> None:
    """Insert one slot into the ranked list of every class; overwrites ``net``, its net values."""
    for p in range(net.size):
        carried_slot[p] = q
    for i in range(value.shape[0]):
        best = value[i]
        slot = choice[i]
        for p in range(net.size):
            # An `if`, not four conditional expressions: LLVM's vectoriser once miscompiled those,
            # with wrong slots (the tests compare with a sort).
            if net[p] > best[p]:
                best[p], net[p] = net[p], best[p]
                slot[p], carried_slot[p] = carried_slot[p], slot[p]


@helper(forceinline=True)
def move_in_list(
    p: int, q: int, new_value: float, value: Floats, choice: Ints,
    score: Floats, slot_price: Floats, pair_price: Floats,
) -> None:  # fmt: skip
    """Give slot q its new net value in the ranked list of class p."""
    n_ranked = value.shape[0]
    i = 0
    while i < n_ranked and choice[i, p] != q:
        i += 1
    if i == n_ranked:  # not listed so far: enters at the end, if at all
        i = n_ranked - 1
        if new_value <= value[i, p]:
            return
    elif new_value < value[i, p]:
        while i < n_ranked - 1 and value[i + 1, p] > new_value:
            value[i, p] = value[i + 1, p]
            choice[i, p] = choice[i + 1, p]
            i += 1
        if i == n_ranked - 1:  # last now: an unlisted slot may be better
            rank_class(p, value, choice, score, slot_price, pair_price)
            return
    while i > 0 and value[i - 1, p] < new_value:
        value[i, p] = value[i - 1, p]
        choice[i, p] = choice[i - 1, p]
        i -= 1
    value[i, p] = new_value
    choice[i, p] = q


@helper(forceinline=True)
def rank_class(
    p: int, value: Floats, choice: Ints, score: Floats, slot_price: Floats, pair_price: Floats
) -> None:
    """Recompute the ranked list of class p."""
    n_ranked = value.shape[0]
    n = 0
    for q in range(slot_price.size):
        v = score[q] - max(slot_price[q], pair_price[q])
        if n < n_ranked:
            i = n
            n += 1
        elif v > value[n_ranked - 1, p]:
            i = n_ranked - 1
        else:
            continue
        while i > 0 and value[i - 1, p] < v:
            value[i, p] = value[i - 1, p]
            choice[i, p] = choice[i - 1, p]
            i -= 1
        value[i, p] = v
        choice[i, p] = q
