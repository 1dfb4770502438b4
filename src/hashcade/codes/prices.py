"""First half of the solver: an estimate of the slot prices that clear the market.

`solve.py` says what is solved, `flow.py` makes it exact, whatever prices come out of here: good
ones only leave it little to do (a few per cent of the units, typically).

Classes buy, slots sell. A class of group h pays for slot q

    price(h, q) = max(slot_price[q], pair_price[h, q])

and buys its `sparsity` best slots by net value, score minus price. Slot q sells its (Y+1)-th
unit for no less than ``collision_step * Y`` (the cost of one more collision, 2·beta·Y), and the
(y+1)-th unit within one group for ``sibling_step * y`` (2·alpha·y) on top. At an optimum of
equation 5 there are prices that clear the market: the solution of the dual problem.

A *correction* counts the buyers everywhere and moves all prices at once, by the slope at which
buyers are expected to leave. A *sweep* visits one slot after the other, and a visit is an exact
line search in all prices of that slot. A class comes at any price below its *bid*: its score less
the net value it would have to give up elsewhere. The bids, sold highest first, meet the rising cost
at some number of units; every price between the last bid that was served and the first that was not
fits, and the middle is taken. Each of the two costs O(n_classes · width · sparsity).
"""

from __future__ import annotations

import numpy as np

from hashcade._kernels import Floats, Ints, helper, kernel
from hashcade.codes.exchange import append
from hashcade.codes.ranking import move_in_list, rank_slot, rank_slot_roughly, unpack

_INF = np.inf
_ZERO = np.int64(0)  # not a literal: helpers that take it are compiled for one type
_MAX_WIDENINGS = 3
_BISECTIONS = 14
_FEW = 24
_PADDING = 8
_CALM = 0.4  # all prices move at once, and what one gains another loses: by less each time


def arrange_groups(groups: Ints) -> tuple[Ints, Ints]:
    """Return an order of the classes with those of group h at ``start[h]:start[h + 1]``.

    Group 0 are the classes without siblings, the paper's A_0; the others follow by their numbers.
    """
    by_group = groups.argsort(kind="stable")  # stable: equal input, equal output
    order = np.empty(len(groups), np.int64)
    start = np.empty(len(groups) + 2, np.int64)
    n_groups = _arrange(groups, by_group, order, start)
    return order, start[: n_groups + 1]


@kernel()
def _arrange(groups: Ints, by_group: Ints, order: Ints, start: Ints) -> int:
    n_classes = groups.size
    n_alone = 0
    n_groups = 1
    for alone in (True, False):  # those without siblings first
        at = n_alone
        for i in range(n_classes):
            group = groups[by_group[i]]
            first = i == 0 or groups[by_group[i - 1]] != group
            last = i == n_classes - 1 or groups[by_group[i + 1]] != group
            if (first and last) != alone:
                continue
            if alone:
                n_alone += 1
            elif first:
                start[n_groups] = at
                n_groups += 1
            order[at] = by_group[i]
            at += 1
    start[0] = 0
    start[n_groups] = n_classes
    return n_groups


def estimate_prices(
    scores: Floats,  # (n_classes, width)
    sparsity: int,  # < width
    order: Ints,  # (n_classes,): the classes, those of one group side by side
    group_start: Ints,  # (n_groups + 1,): group h is order[group_start[h]:group_start[h + 1]]
    sibling_step: float,  # 2 * alpha
    collision_step: float,  # 2 * beta
    corrections: int,  # how often to correct all prices at once ...
    sweeps: int,  # ... and then how often to visit every slot
    scratch: Floats,  # (>= (n_classes + 8) * width,): reused from call to call
) -> tuple[Floats, Floats, Ints]:
    """Return ``slot_price[slot]``, ``pair_price[group, slot]`` and ``choice[class, rank]``.

    ``pair_price`` is -inf where a group pays the slot's own price. ``choice[:, :sparsity]`` are
    the slots that each class buys at these prices, best first; the last one is its next best.
    """
    n_classes, width = scores.shape
    slot_price = np.empty(width)
    pair_price = np.empty((group_start.size - 1, width))
    ranked = np.empty((sparsity + 2, n_classes))
    choice = np.empty((n_classes, sparsity + 1), np.int64)
    _estimate(
        scores, sparsity, order, group_start, sibling_step, collision_step, corrections, sweeps,
        scratch, slot_price, pair_price, ranked, ranked.view(np.int64), choice,
    )  # fmt: skip
    return slot_price, pair_price, choice


@kernel()
def _estimate(
    scores: Floats, sparsity: int, order: Ints, group_start: Ints,
    sibling_step: float, collision_step: float, corrections: int, sweeps: int, scratch: Floats,
    slot_price: Floats, pair_price: Floats,  # results
    ranked: Floats,  # (sparsity + 2, n_classes): net values of the best slots, then of one slot
    bits: Ints,  # the same memory, as whole numbers
    best_slots: Ints,  # the third result, class by class
) -> None:  # fmt: skip
    n_classes, width = scores.shape
    n_groups = group_start.size - 1
    # In here class p is the p-th in order, so that a group is a range. A slot's scores are side by
    # side, padded, because rows a power of two apart compete for the same lines of the cache.
    stride = n_classes + _PADDING
    columns = scratch[: width * stride].reshape(width, stride)
    for p in range(n_classes):
        for q in range(width):
            columns[q, p] = scores[order[p], q]
    group = np.empty(n_classes, np.int64)
    for h in range(n_groups):
        for p in range(group_start[h], group_start[h + 1]):
            group[p] = h

    # ---- Opening prices: level, so that the slots together sell exactly what is bought
    level = _level(n_classes * sparsity, width, collision_step)
    for q in range(width):
        slot_price[q] = level
        for h in range(n_groups):
            pair_price[h, q] = -_INF
    raised = np.empty((width, n_groups), np.int64)  # groups that pay more than the slot's price
    n_raised = np.zeros(width, np.int64)
    for h in range(1, n_groups):
        n_units = (group_start[h + 1] - group_start[h]) * sparsity
        if n_units >= width:
            price = slot_price[0] + _level(n_units, width, sibling_step)
            for q in range(width):
                pair_price[h, q] = price
                append(h, raised, n_raised, q)

    # ---- What each class would buy, and one slot more: ranked lists, kept through all visits
    n_ranked = sparsity + 1
    value = ranked[:n_ranked]  # net values, best first
    net = ranked[n_ranked]
    choice = np.empty((n_ranked, n_classes), np.int64)  # their slots
    last_bought = value[sparsity - 1]
    next_best = value[sparsity]
    new_net = np.empty(n_classes)
    margin = np.empty(n_classes)
    carried = np.empty(n_classes, np.int64)
    n_bits = 0
    while 1 << n_bits < width:
        n_bits += 1
    for correction in range(corrections):
        value[:] = -_INF
        for q in range(width):
            _net_values(q, columns, slot_price, pair_price, raised, n_raised, group_start, net)
            rank_slot_roughly(net, bits[n_ranked], q, n_bits, value)
        unpack(bits[:n_ranked], n_bits, choice)
        step = _mean_gap(last_bought, next_best) / (1.0 + _CALM * correction)
        _correct(
            choice, sparsity, group, group_start, sibling_step, collision_step, step,
            slot_price, pair_price, raised, n_raised,
        )  # fmt: skip
    value[:] = -_INF
    for q in range(width):
        _net_values(q, columns, slot_price, pair_price, raised, n_raised, group_start, net)
        rank_slot(net, q, value, choice, carried)
    reach = _mean_gap(last_bought, next_best)  # how far a price is expected to fall in one visit

    bid = np.empty(n_classes)  # bids of group h, highest first, from bid[group_start[h]] on
    n_bids = np.zeros(n_groups, np.int64)
    n_sold = np.zeros(n_groups, np.int64)
    bidders = np.empty(n_groups, np.int64)
    key = np.empty(n_classes)  # what bids are worth to the slot, in any order

    for _ in range(sweeps):
        for q in range(width):
            column = columns[q]
            old_price = slot_price[q]

            # ---- Bids: margin is how much dearer the slot may get before the class leaves it for
            # its next best slot, or, negative, how much cheaper it must get to push out the last
            # slot bought
            _net_values(q, columns, slot_price, pair_price, raised, n_raised, group_start, net)
            for p in range(n_classes):
                bought = net[p] >= last_bought[p]
                margin[p] = net[p] - (next_best[p] if bought else last_bought[p])

            this_reach = reach
            for widening in range(_MAX_WIDENINGS + 1):
                n_keys = _ZERO
                n_bidders = 0
                for p in range(n_classes):
                    if margin[p] > -this_reach:
                        b = column[p] - net[p] + margin[p]
                        h = group[p]
                        if h == 0:
                            key[n_keys] = b
                            n_keys += 1
                        else:
                            if n_bids[h] == 0:
                                bidders[n_bidders] = h
                                n_bidders += 1
                            _insert_bid(bid, group_start[h], n_bids[h], b)
                            n_bids[h] += 1
                # A group that lives on high prices, with too few bids to justify them: all of it.
                for i in range(n_raised[q]):
                    h = raised[q, i]
                    if pair_price[h, q] - this_reach - sibling_step * n_bids[h] > old_price:
                        if n_bids[h] == 0:
                            bidders[n_bidders] = h
                            n_bidders += 1
                        n_bids[h] = 0
                        for p in range(group_start[h], group_start[h + 1]):
                            b = column[p] - net[p] + margin[p]
                            _insert_bid(bid, group_start[h], n_bids[h], b)
                            n_bids[h] += 1

                for i in range(n_bidders):
                    h = bidders[i]
                    for rank in range(n_bids[h]):
                        key[n_keys] = bid[group_start[h] + rank] - sibling_step * rank
                        n_keys += 1

                # ---- Sale: the price at which as many keys are higher as the slot has units for
                n_units, lowest_sold, highest_unsold = _sell(key, n_keys, collision_step)
                # Somebody who was not asked might have paid enough: ask farther.
                enough = old_price - this_reach <= collision_step * n_units
                if enough or widening == _MAX_WIDENINGS:
                    break
                for i in range(n_bidders):
                    n_bids[bidders[i]] = 0
                this_reach *= 8.0
            for i in range(n_bidders):
                h = bidders[i]
                while (
                    n_sold[h] < n_bids[h]
                    and bid[group_start[h] + n_sold[h]] - sibling_step * n_sold[h] >= lowest_sold
                ):
                    n_sold[h] += 1

            # ---- New prices: the middle of what fits
            unasked = old_price - this_reach  # nobody who was not asked bids more
            if n_units == 0:
                price = max(0.0, unasked)
            else:
                high = min(collision_step * n_units, lowest_sold)
                low = max(max(collision_step * (n_units - 1), highest_unsold), unasked)
                price = 0.5 * (low + high) if low < high else max(high, unasked)
            slot_price[q] = price

            n_still_raised = 0
            for i in range(n_raised[q]):  # groups that bought nothing: their price falls, limited
                h = raised[q, i]
                if n_sold[h] == 0:
                    group_price = pair_price[h, q] - this_reach
                    if group_price > price:
                        pair_price[h, q] = group_price
                        raised[q, n_still_raised] = h
                        n_still_raised += 1
                    else:
                        pair_price[h, q] = -_INF
            for i in range(n_bidders):
                h = bidders[i]
                sold = n_sold[h]
                if sold > 0:
                    first = group_start[h]
                    low = price + sibling_step * (sold - 1)
                    high = min(price + sibling_step * sold, bid[first + sold - 1])
                    group_price = max(low, pair_price[h, q] - this_reach)
                    if sold < n_bids[h] and bid[first + sold] > low:
                        group_price = 0.5 * (bid[first + sold] + high)
                    group_price = min(group_price, high)
                    if group_price > price:
                        pair_price[h, q] = group_price
                        raised[q, n_still_raised] = h
                        n_still_raised += 1
                    else:
                        pair_price[h, q] = -_INF
                n_bids[h] = 0
                n_sold[h] = 0
            n_raised[q] = n_still_raised
            _net_values(q, columns, slot_price, pair_price, raised, n_raised, group_start, new_net)

            # ---- Tell the classes that have, or now want, this slot on their list
            for p in range(n_classes):
                margin[p] = max(net[p], new_net[p]) - next_best[p]
            for p in range(n_classes):
                if margin[p] >= 0.0 and net[p] != new_net[p]:
                    move_in_list(
                        p, q, new_net[p], value, choice,
                        scores[order[p]], slot_price, pair_price[group[p]],
                    )  # fmt: skip

    for p in range(n_classes):
        for i in range(n_ranked):  # by hand: numba compiles an assignment of rows for seconds
            best_slots[order[p], i] = choice[i, p]


@helper()
def _level(n_units: int, n_slots: int, step: float) -> float:
    """Price level at which slots whose units cost 0, step, 2·step, ... sell n_units together."""
    full_rounds = n_units // n_slots
    if full_rounds * n_slots < n_units:
        return step * full_rounds
    return step * (full_rounds - 0.5)  # any level within the step will do: its middle


@helper()
def _net_values(
    q: int,
    columns: Floats, slot_price: Floats, pair_price: Floats, raised: Ints, n_raised: Ints,
    group_start: Ints, out: Floats,
) -> None:  # fmt: skip
    """What slot q is worth to every class at its price."""
    for p in range(out.size):
        out[p] = columns[q, p] - slot_price[q]
    for i in range(n_raised[q]):
        h = raised[q, i]
        for p in range(group_start[h], group_start[h + 1]):
            out[p] = columns[q, p] - pair_price[h, q]


@helper()
def _correct(
    choice: Ints, sparsity: int, group: Ints, group_start: Ints, sibling_step: float,
    collision_step: float, step: float, slot_price: Floats, pair_price: Floats, raised: Ints,
    n_raised: Ints,
) -> None:  # fmt: skip
    """Move all prices at once towards where supply meets demand.

    With ``step`` the mean net value between the last slot bought and the next best, or less: if a
    price rises by x, about the share x / (sparsity * step) of the units there leaves, and
    x / unit_step more are on sale; by these slopes an excess of buyers is turned into a price. A
    pair whose group is too small to fill all slots sells what its price above the slot's
    justifies, one unit at least. What pairs sell is their demand at the slot.
    """
    n_groups, width = pair_price.shape
    n_classes = group.size
    buyers = np.zeros((n_groups, width), np.int64)
    for p in range(n_classes):
        for i in range(sparsity):
            buyers[group[p], choice[i, p]] += 1
    demand = np.empty(width)  # at the slots' own prices
    for q in range(width):
        demand[q] = buyers[0, q]
    slack = sparsity * step
    for h in range(1, n_groups):
        group_units = (group_start[h + 1] - group_start[h]) * sparsity
        for q in range(width):
            if group_units >= width:
                sold = (pair_price[h, q] - slot_price[q]) / sibling_step + 0.5
                change = _change(1.0 * buyers[h, q], sold, slack, sibling_step)
                pair_price[h, q] += change
                demand[q] += max(sold, 0.0)
                continue
            served = 1
            if pair_price[h, q] > slot_price[q]:
                served += int((pair_price[h, q] - slot_price[q]) / sibling_step)
            elif buyers[h, q] <= 1:
                demand[q] += buyers[h, q]
                continue
            demand[q] += min(buyers[h, q], served)
            change = _change(1.0 * buyers[h, q], 1.0 * served, slack, sibling_step)
            pair_price[h, q] = max(pair_price[h, q], slot_price[q]) + change
    for q in range(width):
        n_raised[q] = 0
        if collision_step > 0.0:  # no slot sells below its first unit's cost, which is nothing
            sold = slot_price[q] / collision_step + 0.5
            change = _change(demand[q], sold, slack, collision_step)
            slot_price[q] = max(slot_price[q] + change, 0.0)
        for h in range(1, n_groups):
            if pair_price[h, q] > slot_price[q]:
                append(h, raised, n_raised, q)
            else:
                pair_price[h, q] = -_INF


@helper()
def _change(demand: float, supply: float, slack: float, unit_step: float) -> float:
    """Change of a price that brings supply, rising with it, and demand, falling, together."""
    leaving = max(max(demand, supply), 1.0) / slack if slack > 0.0 else _INF
    return (demand - supply) / (leaving + 1.0 / unit_step)


@helper()
def _mean_gap(last_bought: Floats, next_best: Floats) -> float:
    gap = 0.0
    for p in range(last_bought.size):
        gap += last_bought[p] - next_best[p]
    return gap / last_bought.size


@helper(forceinline=True)
def _insert_bid(bid: Floats, first: int, n: int, b: float) -> None:
    i = first + n
    while i > first and bid[i - 1] < b:
        bid[i] = bid[i - 1]
        i -= 1
    bid[i] = b


@helper()
def _sell(key: Floats, n_keys: int, step: float) -> tuple[int, float, float]:
    """Sell as many units as there are keys above the cost of the last one.

    Return their number, the lowest key that was served (inf if none) and the highest that was
    not (-inf if none). Few keys are sorted; many are bisected, which is faster, and may stop a
    unit early or late where keys lie close together.
    """
    if n_keys <= _FEW:
        for i in range(1, n_keys):
            _insert_bid(key, _ZERO, i, key[i])
        n_sold = 0
        while n_sold < n_keys and key[n_sold] > step * n_sold:
            n_sold += 1
        lowest_sold = key[n_sold - 1] if n_sold > 0 else _INF
        return n_sold, lowest_sold, key[n_sold] if n_sold < n_keys else -_INF
    low = 0.0
    high = step * n_keys
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        n_above = 0
        for i in range(n_keys):
            n_above += key[i] > middle
        if step * n_above > middle:
            low = middle
        else:
            high = middle
    lowest_sold = _INF
    highest_unsold = -_INF
    n_sold = 0
    for i in range(n_keys):
        if key[i] > low:
            n_sold += 1
            lowest_sold = min(lowest_sold, key[i])
        else:
            highest_unsold = max(highest_unsold, key[i])
    return n_sold, lowest_sold, highest_unsold
