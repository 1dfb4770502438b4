"""First half of the solver: an estimate of the slot prices that clear the market.

`solve.py` defines the problem. `flow.py` finds the exact solution from any prices: good ones only
leave it less to do (typically a few per cent of the units).

Classes buy, slots sell. A class of group h pays for slot q

    price(h, q) = max(slot_price[q], pair_price[h, q])

and buys its `sparsity` best slots by net value, score minus price. Slot q sells its (Y+1)-th
unit for no less than ``collision_step * Y`` (the cost of one more collision, 2·beta·Y), and the
(y+1)-th unit within one group for ``sibling_step * y`` (2·alpha·y) on top. At an optimum of
equation 5 there are prices that clear the market: the solution of the dual problem.

A *correction* counts the buyers of every slot and moves all prices at once, by the slope at which
buyers are expected to leave. A *sweep* visits one slot after the other; a visit is an exact line
search in all prices of that slot. A class buys the slot at any price below its *bid*: its score
less the net value of the slot it would give up. The bids, highest first, meet the rising cost at
some number of units; any price between the lowest bid served and the highest one not served clears
the slot, and the middle is taken. Corrections and sweeps cost O(n_classes · width · sparsity) each.
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
_SORT_LIMIT = 24
_PADDING = 8
_DAMPING = 0.4  # later corrections are smaller: all prices move at once, and may overshoot


def arrange_groups(groups: Ints) -> tuple[Ints, Ints]:
    """Return the classes ordered by group, group h at ``start[h]:start[h + 1]``.

    Group 0 is the classes without siblings, A_0 in the paper; the others follow by group number.
    """
    by_group = groups.argsort(kind="stable")  # stable: equal input, equal output
    order = np.empty(len(groups), np.int64)
    start = np.empty(len(groups) + 2, np.int64)
    n_groups = _arrange(groups, by_group, order, start)
    return order, start[: n_groups + 1]


@kernel()
def _arrange(groups: Ints, by_group: Ints, order: Ints, start: Ints) -> int:
    n_classes = groups.size
    n_singletons = 0
    n_groups = 1
    for singleton in (True, False):  # those without siblings first
        position = n_singletons
        for i in range(n_classes):
            group = groups[by_group[i]]
            first = i == 0 or groups[by_group[i - 1]] != group
            last = i == n_classes - 1 or groups[by_group[i + 1]] != group
            if (first and last) != singleton:
                continue
            if singleton:
                n_singletons += 1
            elif first:
                start[n_groups] = position
                n_groups += 1
            order[position] = by_group[i]
            position += 1
    start[0] = 0
    start[n_groups] = n_classes
    return n_groups


def estimate_prices(
    scores: Floats,  # (n_classes, width)
    sparsity: int,  # < width
    order: Ints,  # (n_classes,): the classes, group by group
    group_start: Ints,  # (n_groups + 1,): group h is order[group_start[h]:group_start[h + 1]]
    sibling_step: float,  # 2 * alpha
    collision_step: float,  # 2 * beta
    corrections: int,  # number of corrections ...
    sweeps: int,  # ... and then of sweeps
    scratch: Floats,  # (>= (n_classes + 8) * width,): reused from call to call
) -> tuple[Floats, Floats, Ints]:
    """Return ``slot_price[slot]``, ``pair_price[group, slot]`` and ``choice[class, rank]``.

    ``pair_price`` is -inf where a group pays the slot's price. ``choice[:, :sparsity]`` are
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
    # Here class p is the p-th in order, so that a group is a range. The scores of a slot are
    # contiguous, and padded: rows a power of two apart would compete for the same cache lines.
    stride = n_classes + _PADDING
    columns = scratch[: width * stride].reshape(width, stride)
    for p in range(n_classes):
        for q in range(width):
            columns[q, p] = scores[order[p], q]
    group = np.empty(n_classes, np.int64)
    for h in range(n_groups):
        for p in range(group_start[h], group_start[h + 1]):
            group[p] = h

    # ---- Initial prices: equal, so that all slots together sell as much as is bought
    level = _level(n_classes * sparsity, width, collision_step)
    for q in range(width):
        slot_price[q] = level
        for h in range(n_groups):
            pair_price[h, q] = -_INF
    premium = np.empty((width, n_groups), np.int64)  # groups whose price is above the slot's
    n_premium = np.zeros(width, np.int64)
    for h in range(1, n_groups):
        n_units = (group_start[h + 1] - group_start[h]) * sparsity
        if n_units >= width:
            price = slot_price[0] + _level(n_units, width, sibling_step)
            for q in range(width):
                pair_price[h, q] = price
                append(h, premium, n_premium, q)

    # ---- What each class buys, and its next best slot: ranked lists, updated by all visits
    n_ranked = sparsity + 1
    value = ranked[:n_ranked]  # net values, best first
    net = ranked[n_ranked]
    choice = np.empty((n_ranked, n_classes), np.int64)  # their slots
    last_bought = value[sparsity - 1]
    next_best = value[sparsity]
    new_net = np.empty(n_classes)
    margin = np.empty(n_classes)
    carried_slot = np.empty(n_classes, np.int64)
    n_bits = 0
    while 1 << n_bits < width:
        n_bits += 1
    for correction in range(corrections):
        value[:] = -_INF
        for q in range(width):
            _net_values(q, columns, slot_price, pair_price, premium, n_premium, group_start, net)
            rank_slot_roughly(net, bits[n_ranked], q, n_bits, value)
        unpack(bits[:n_ranked], n_bits, choice)
        step = _mean_gap(last_bought, next_best) / (1.0 + _DAMPING * correction)
        _correct(
            choice, sparsity, group, group_start, sibling_step, collision_step, step,
            slot_price, pair_price, premium, n_premium,
        )  # fmt: skip
    value[:] = -_INF
    for q in range(width):
        _net_values(q, columns, slot_price, pair_price, premium, n_premium, group_start, net)
        rank_slot(net, q, value, choice, carried_slot)
    bid_range = _mean_gap(last_bought, next_best)  # how far a price may fall in one visit

    bid = np.empty(n_classes)  # bids of group h, highest first, from bid[group_start[h]] on
    n_bids = np.zeros(n_groups, np.int64)
    n_sold = np.zeros(n_groups, np.int64)
    bidders = np.empty(n_groups, np.int64)
    key = np.empty(n_classes)  # what bids are worth to the slot, in any order

    for _ in range(sweeps):
        for q in range(width):
            column = columns[q]
            old_price = slot_price[q]

            # ---- Bids: margin is how far the price may rise before the class prefers its next
            # best slot, or, negative, how far it must fall to replace the last slot bought
            _net_values(q, columns, slot_price, pair_price, premium, n_premium, group_start, net)
            for p in range(n_classes):
                is_bought = net[p] >= last_bought[p]
                margin[p] = net[p] - (next_best[p] if is_bought else last_bought[p])

            current_range = bid_range
            for widening in range(_MAX_WIDENINGS + 1):
                n_keys = _ZERO
                n_bidders = 0
                for p in range(n_classes):
                    if margin[p] > -current_range:
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
                # Too few bids for the high price of a group: collect those of all its classes.
                for i in range(n_premium[q]):
                    h = premium[q, i]
                    if pair_price[h, q] - current_range - sibling_step * n_bids[h] > old_price:
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
                # A class outside the range might have bid enough: widen the range.
                is_wide_enough = old_price - current_range <= collision_step * n_units
                if is_wide_enough or widening == _MAX_WIDENINGS:
                    break
                for i in range(n_bidders):
                    n_bids[bidders[i]] = 0
                current_range *= 8.0
            for i in range(n_bidders):
                h = bidders[i]
                while (
                    n_sold[h] < n_bids[h]
                    and bid[group_start[h] + n_sold[h]] - sibling_step * n_sold[h] >= lowest_sold
                ):
                    n_sold[h] += 1

            # ---- New prices: the middle of the feasible interval
            price_floor = old_price - current_range  # at least the bids outside the range
            if n_units == 0:
                price = max(0.0, price_floor)
            else:
                high = min(collision_step * n_units, lowest_sold)
                low = max(max(collision_step * (n_units - 1), highest_unsold), price_floor)
                price = 0.5 * (low + high) if low < high else max(high, price_floor)
            slot_price[q] = price

            n_premium_left = 0
            for i in range(n_premium[q]):  # groups that bought nothing: their price falls
                h = premium[q, i]
                if n_sold[h] == 0:
                    group_price = pair_price[h, q] - current_range
                    if group_price > price:
                        pair_price[h, q] = group_price
                        premium[q, n_premium_left] = h
                        n_premium_left += 1
                    else:
                        pair_price[h, q] = -_INF
            for i in range(n_bidders):
                h = bidders[i]
                count = n_sold[h]
                if count > 0:
                    first = group_start[h]
                    low = price + sibling_step * (count - 1)
                    high = min(price + sibling_step * count, bid[first + count - 1])
                    group_price = max(low, pair_price[h, q] - current_range)
                    if count < n_bids[h] and bid[first + count] > low:
                        group_price = 0.5 * (bid[first + count] + high)
                    group_price = min(group_price, high)
                    if group_price > price:
                        pair_price[h, q] = group_price
                        premium[q, n_premium_left] = h
                        n_premium_left += 1
                    else:
                        pair_price[h, q] = -_INF
                n_bids[h] = 0
                n_sold[h] = 0
            n_premium[q] = n_premium_left
            _net_values(
                q, columns, slot_price, pair_price, premium, n_premium, group_start, new_net
            )

            # ---- Update the ranked lists in which the slot was, or now belongs
            for p in range(n_classes):
                margin[p] = max(net[p], new_net[p]) - next_best[p]
            for p in range(n_classes):
                if margin[p] >= 0.0 and net[p] != new_net[p]:
                    move_in_list(
                        p, q, new_net[p], value, choice,
                        scores[order[p]], slot_price, pair_price[group[p]],
                    )  # fmt: skip

    for p in range(n_classes):
        for i in range(n_ranked):  # a loop: numba takes seconds to compile an assignment of rows
            best_slots[order[p], i] = choice[i, p]


@helper()
def _level(n_units: int, n_slots: int, step: float) -> float:
    """Price level at which slots whose units cost 0, step, 2·step, ... sell n_units together."""
    full_rounds = n_units // n_slots
    if full_rounds * n_slots < n_units:
        return step * full_rounds
    return step * (full_rounds - 0.5)  # any level within the step is right: its middle


@helper()
def _net_values(
    q: int,
    columns: Floats, slot_price: Floats, pair_price: Floats, premium: Ints, n_premium: Ints,
    group_start: Ints, out: Floats,
) -> None:  # fmt: skip
    """Write the net value of slot q for every class, at its price."""
    for p in range(out.size):
        out[p] = columns[q, p] - slot_price[q]
    for i in range(n_premium[q]):
        h = premium[q, i]
        for p in range(group_start[h], group_start[h + 1]):
            out[p] = columns[q, p] - pair_price[h, q]


@helper()
def _correct(
    choice: Ints, sparsity: int, group: Ints, group_start: Ints, sibling_step: float,
    collision_step: float, step: float, slot_price: Floats, pair_price: Floats, premium: Ints,
    n_premium: Ints,
) -> None:  # fmt: skip
    """Move all prices at once towards the balance of supply and demand.

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
    demand = np.empty(width)  # at the prices of the slots
    for q in range(width):
        demand[q] = buyers[0, q]
    slack = sparsity * step
    for h in range(1, n_groups):
        group_units = (group_start[h + 1] - group_start[h]) * sparsity
        for q in range(width):
            if group_units >= width:
                supply = (pair_price[h, q] - slot_price[q]) / sibling_step + 0.5
                change = _change(1.0 * buyers[h, q], supply, slack, sibling_step)
                pair_price[h, q] += change
                demand[q] += max(supply, 0.0)
                continue
            supply_units = 1
            if pair_price[h, q] > slot_price[q]:
                supply_units += int((pair_price[h, q] - slot_price[q]) / sibling_step)
            elif buyers[h, q] <= 1:
                demand[q] += buyers[h, q]
                continue
            demand[q] += min(buyers[h, q], supply_units)
            change = _change(1.0 * buyers[h, q], 1.0 * supply_units, slack, sibling_step)
            pair_price[h, q] = max(pair_price[h, q], slot_price[q]) + change
    for q in range(width):
        n_premium[q] = 0
        if collision_step > 0.0:  # the first unit of a slot costs 0: no price is below
            supply = slot_price[q] / collision_step + 0.5
            change = _change(demand[q], supply, slack, collision_step)
            slot_price[q] = max(slot_price[q] + change, 0.0)
        for h in range(1, n_groups):
            if pair_price[h, q] > slot_price[q]:
                append(h, premium, n_premium, q)
            else:
                pair_price[h, q] = -_INF


@helper()
def _change(demand: float, supply: float, slack: float, unit_step: float) -> float:
    """Return the change of a price that balances rising supply and falling demand."""
    demand_slope = max(max(demand, supply), 1.0) / slack if slack > 0.0 else _INF
    return (demand - supply) / (demand_slope + 1.0 / unit_step)


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

    Return their number, the lowest key served (inf if none) and the highest one not served (-inf
    if none). Few keys are sorted; many are bisected, which is faster, but may be off by a unit
    where keys are close together.
    """
    if n_keys <= _SORT_LIMIT:
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
