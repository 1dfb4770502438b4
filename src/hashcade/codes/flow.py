"""Second half of the solver: from any prices to an optimal flow, by shortest paths.

Kernel only: arrays in, arrays out, numba. `_solve.py` says what is solved and why it is a flow;
`_prices.py` makes the prices that this half starts from.

The network, without its parallel arcs
--------------------------------------
Nodes are the slots, the *pairs* (group, slot) that are in use, and one ledger, into which every
slot pays. A unit is one of the ``sparsity`` places of a class. Arcs, and what one more unit costs:

    class -> pair       -score                   (a slot directly, if the class has no siblings)
    pair  -> slot       sibling_step * link      (link: units that already take this arc)
    slot  -> ledger     collision_step * paid    (paid: likewise)

The figure of the paper draws the second and third kind as bundles of parallel arcs with rising
costs. The next arc of a bundle that is cheapest to fill, or to empty, follows from the count, so
the bundles need not exist. Classes need no nodes either: all their units are always placed, and a
class only ever appears as the one who moves from one slot to another. Pairs not in use are not
nodes: the first unit in a pair costs nothing extra, so arriving there is arriving at the slot.

Invariants
----------
I1  Every class holds ``sparsity`` different slots.
I2  Reduced costs are never negative, where a node's price is what absorbing a unit there costs:
    a unit moving in the pair (or slot) a to b: (score_a - price_a) - (score_b - price_b) >= 0;
    one more (less) unit on a link: sibling_step * link - (price_pair - price_slot) >= 0 (and
    price_pair - price_slot - sibling_step * (link - 1) >= 0); on a payment likewise.
I3  What is wrong is in the books only: a node may receive more than it passes on (*excess*)
    or less (*deficit*). Excess and deficit add up to zero.

The start gives I1 and I2 by construction: classes take their best slots at the given prices, and
counts on links and payments are set to what the prices justify. Then, as in the successive
shortest path method, a unit of excess is sent along a shortest path, by reduced cost, to a node
with a deficit. Raising the price of every node that was passed by (final distance - its distance)
keeps I2, and the path's arcs become tight, so that using them keeps it too. Without excess the
flow is feasible, and with I2 it is optimal: a cheaper one would need a negative cycle.

Complexity: one search passes each slot and each pair in use at most once, and the exchange tables
below make a step from a slot to all others O(width): O(width² + units · width) at worst, and it
ends as soon as the nearest deficit is known. There are as many searches as there are units of
excess at the start. At level prices these are a tenth to a half of all units, at good prices a
few per cent; from prices that nobody would pay it still ends, after n_classes · width at most.

Rounding: reduced costs are clamped at zero, so that a search cannot run backwards on the last
bit; the error this adds to the energy is of the order of the last bits of the prices.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_INF = np.inf
_DENSE = 2  # a group with so many units per slot gets exchange tables of its own
_UNSEEN = -1
_FEW = 4  # units in a row, up to which filling it anew beats mending it


@njit(cache=True)
def optimal_codes(
    scores: Floats,  # (n_classes, width)
    sparsity: int,  # < width
    order: Ints,  # (n_classes,): the classes, those of one group side by side
    group_start: Ints,  # (n_groups + 1,): group h is order[group_start[h]:group_start[h + 1]]
    sibling_step: float,  # 2 * alpha
    collision_step: float,  # 2 * beta
    slot_price: Floats,  # (width,), changed in place
    pair_price: Floats,  # (n_groups, width), changed in place; -inf: the slot's price
    choice: Ints,  # (n_classes, >= sparsity): the best slots of each class at these prices
    scratch: Floats,  # (>= n_classes * width + table_size,): room for the large arrays ...
    int_scratch: Ints,  # (>= table_size,), with table_size = width * (width + n_units / _DENSE)
) -> tuple[npt.NDArray[np.bool_], int]:
    """Return the optimal codes, bool (n_classes, width), and the number of searches it took."""
    n_classes, width = scores.shape
    n_groups = group_start.size - 1
    n_units = n_classes * sparsity
    ledger = n_groups * width  # node numbers: slot q is q, pair (h, q) is h * width + q

    # ---- Groups. Tables of exchange (below) have a row per slot, and per pair of a dense group.
    group = np.empty(n_classes, np.int64)
    gate = np.empty(n_classes, np.int64)  # row of `refund` and `closed` that holds for the class
    table = np.zeros(n_groups, np.int64)  # first row of the group's units
    n_rows = width
    for h in range(n_groups):
        size = group_start[h + 1] - group_start[h]
        dense = h > 0 and size * sparsity >= _DENSE * width
        if dense:
            table[h] = n_rows
            n_rows += width
        for i in range(group_start[h], group_start[h + 1]):
            group[order[i]] = h
            gate[order[i]] = 0 if dense else h

    # ---- Every class in its slots (I1)
    open_score = scratch[: n_classes * width].reshape(n_classes, width)
    open_score[:] = scores  # -inf where the class holds the slot
    class_of = np.empty(n_units, np.int64)
    slot_of = np.empty(n_units, np.int64)
    n_here = np.zeros((n_groups, width), np.int64)  # units per pair; group 0: per slot
    first_in_row = np.full(n_rows, -1, np.int64)  # lists of units, per row of the tables ...
    next_in_row = np.empty(n_units, np.int64)
    first_in_pair = np.full(n_groups * width, -1, np.int64)  # ... and per pair
    next_in_pair = np.empty(n_units, np.int64)
    for p in range(n_classes):
        for i in range(sparsity):
            u = p * sparsity + i
            q = choice[p, i]
            class_of[u] = p
            slot_of[u] = q
            n_here[group[p], q] += 1
            open_score[p, q] = -_INF
            _list(u, table[group[p]] + q, first_in_row, next_in_row)
            _list(u, group[p] * width + q, first_in_pair, next_in_pair)

    largest = max(np.abs(scores).max(), np.abs(slot_price).max(), pair_price.max(), sibling_step)

    # ---- Links and payments as the prices justify them (I2); excess and deficit follow (I3)
    link = np.zeros((n_groups, width), np.int64)
    refund = np.zeros((n_groups, width))  # what a unit less on the link saves
    closed = np.zeros((n_groups, width))  # inf where the pair is in use: the way leads through it
    pairs_on = np.empty((width, n_groups), np.int64)  # groups whose pair with the slot is in use
    n_pairs_on = np.zeros(width, np.int64)
    slots_of = np.empty((n_groups, width), np.int64)  # slots whose pair with the group is in use
    n_slots_of = np.zeros(n_groups, np.int64)
    received = n_here[0].copy()
    for h in range(1, n_groups):
        size = group_start[h + 1] - group_start[h]
        for q in range(width):
            gap = max(pair_price[h, q] - slot_price[q], 0.0)
            if n_here[h, q] == 0 and gap == 0.0:
                pair_price[h, q] = _INF  # not in use: from here on, no way in
                continue
            pair_price[h, q] = slot_price[q] + gap
            # The first unit costs nothing more: it is justified at any price.
            link[h, q] = max(_justified(n_here[h, q], size, sibling_step, gap), 1)
            refund[h, q] = sibling_step * (link[h, q] - 1)
            received[q] += link[h, q]
            closed[h, q] = _INF
            _append(h, pairs_on, n_pairs_on, q)
            _append(q, slots_of, n_slots_of, h)
    ledger_price = 0.0
    ledger_excess = -n_units
    paid = np.empty(width, np.int64)
    for q in range(width):
        paid[q] = _justified(received[q], n_classes, collision_step, slot_price[q])
        ledger_excess += paid[q]

    # ---- Exchange tables: the least cost, prices apart, at which a unit of row r goes to slot k
    # that is open to it, and which unit that is. A unit of a small group starts from the *slot*,
    # going back over the link into its pair; a unit of a dense group starts from its pair.
    end = n_classes * width
    exchange = scratch[end : end + n_rows * width].reshape(n_rows, width)
    mover = int_scratch[: n_rows * width].reshape(n_rows, width)
    exchange[:] = _INF
    mover[:] = -1
    for u in range(n_units):
        p = class_of[u]
        _offer(
            u, p, table[group[p]] + slot_of[u], slot_of[u],
            scores, open_score, gate, refund, closed, exchange, mover,
        )  # fmt: skip

    # Nearer by less than rounding is not nearer. It matters in one place: a slot's row leads
    # through pairs that are passed later, if at all; were such a pair then reached from beyond,
    # by the last bit, the way would run through it twice.
    noise = 1e-13 * largest

    # ---- Room for one search
    open_price = np.empty(width)  # slot prices; inf once the slot is passed
    slot_label = np.empty(width)  # distance found so far; inf once the slot is passed
    slot_from = np.empty(width, np.int64)  # the node before it on the way
    slot_via = np.empty(width, np.int64)  # the unit that moves there, or -1
    pair_label = np.full(n_groups * width, _INF)
    pair_via = np.empty(n_groups * width, np.int64)  # the unit that moves there, or -1: from slot
    position = np.full(n_groups * width, _UNSEEN, np.int64)  # in the heap
    heap = np.empty(n_groups * width, np.int64)
    passed = np.empty(2 * n_groups * width + 1, np.int64)  # later: the pairs on the path
    passed_label = np.empty(n_groups * width + 1)
    short = np.empty(width, np.int64)  # slots with a deficit

    n_searches = 0
    cursor = 0
    while True:
        # ---- A node with excess
        source = ledger
        if ledger_excess <= 0:
            while cursor < ledger:
                h = cursor // width
                q = cursor - h * width
                if h == 0 and received[q] > paid[q]:
                    break
                if h > 0 and n_here[h, q] > link[h, q]:
                    break
                cursor += 1
            if cursor == ledger:
                break
            source = cursor
        n_searches += 1

        # ---- Shortest paths from it, until a node with a deficit is passed
        n_short = 0
        for q in range(width):
            open_price[q] = slot_price[q]
            slot_label[q] = _INF
            if received[q] < paid[q]:
                short[n_short] = q
                n_short += 1
        ledger_label = _INF
        ledger_from = -1
        ledger_passed = False
        n_heap = 0
        n_passed = 0
        bound = _INF  # the nearest deficit seen so far: labels beyond it lead nowhere
        if source == ledger:
            ledger_label = 0.0
        elif source < width:
            slot_label[source] = 0.0
        else:
            n_heap = _lower(source, 0.0, pair_label, position, heap, n_heap)
        while True:
            node = -1
            distance = _lowest(slot_label)
            if n_heap > 0 and pair_label[heap[0]] < distance:
                node = heap[0]
                distance = pair_label[node]
            if not ledger_passed and ledger_label < distance:
                node = ledger
                distance = ledger_label
            if node < 0:
                node = 0
                while slot_label[node] != distance:
                    node += 1
            passed[n_passed] = node
            passed_label[n_passed] = distance
            n_passed += 1

            if node == ledger:
                ledger_passed = True
                if ledger_excess < 0:
                    break
                for q in range(width):
                    if paid[q] > 0:
                        cost = open_price[q] - ledger_price - collision_step * (paid[q] - 1)
                        label = distance + max(cost, 0.0)
                        if label < slot_label[q]:
                            slot_label[q] = label
                            slot_from[q] = ledger
                            slot_via[q] = -1
            elif node < width:
                q = node
                slot_label[q] = _INF
                open_price[q] = _INF
                if received[q] < paid[q]:
                    break
                if not ledger_passed and paid[q] < n_classes:
                    cost = collision_step * paid[q] + ledger_price - slot_price[q]
                    label = distance + max(cost, 0.0)
                    if label < ledger_label:
                        ledger_label = label
                        ledger_from = q
                        if ledger_excess < 0:
                            bound = min(bound, label)
                for i in range(n_pairs_on[q]):
                    h = pairs_on[q, i]
                    pair = h * width + q
                    if link[h, q] > 0:
                        cost = pair_price[h, q] - slot_price[q] - refund[h, q]
                        label = distance + max(cost, 0.0)
                        if label < pair_label[pair] and label <= bound + noise:
                            n_heap = _lower(pair, label, pair_label, position, heap, n_heap)
                            pair_via[pair] = -1
                            if n_here[h, q] < link[h, q]:
                                bound = min(bound, label)
                _relax(
                    node, distance - slot_price[q], distance, exchange[q], mover[q],
                    open_price, slot_label, slot_from, slot_via,
                )  # fmt: skip
            else:
                n_heap = _pop(pair_label, position, heap, n_heap)
                h = node // width
                q = node - h * width
                if n_here[h, q] < link[h, q]:
                    break
                if link[h, q] < group_start[h + 1] - group_start[h]:
                    cost = sibling_step * link[h, q] + open_price[q] - pair_price[h, q]
                    label = distance + max(cost, 0.0)
                    if label < slot_label[q]:
                        slot_label[q] = label
                        slot_from[q] = node
                        slot_via[q] = -1
                before = distance - pair_price[h, q]
                if table[h] > 0:
                    row = table[h] + q
                    if n_slots_of[h] < width:
                        _relax_gated(
                            node, before, distance, exchange[row], mover[row], closed[h],
                            open_price, slot_label, slot_from, slot_via,
                        )  # fmt: skip
                    for i in range(n_slots_of[h]):
                        k = slots_of[h, i]
                        pair = h * width + k
                        label = max(before + exchange[row, k] + pair_price[h, k], distance)
                        if label < pair_label[pair] and label <= bound:
                            n_heap = _lower(pair, label, pair_label, position, heap, n_heap)
                            pair_via[pair] = mover[row, k]
                            if n_here[h, k] < link[h, k]:
                                bound = label
                else:
                    # Reached from its own slot, the slot's row has done the open slots already.
                    from_slot = node != source and pair_via[node] < 0
                    u = first_in_pair[node]
                    while u >= 0:
                        p = class_of[u]
                        if not from_slot:
                            _relax_class(
                                node, before + scores[p, q], distance, open_score[p], u, closed[h],
                                open_price, slot_label, slot_from, slot_via,
                            )  # fmt: skip
                        start = before + scores[p, q]
                        n_closer = _count_closer(
                            start, distance, open_score[p], pair_price[h],
                            pair_label[h * width : (h + 1) * width], noise, bound,
                        )  # fmt: skip
                        for i in range(n_slots_of[h] if n_closer > 0 else 0):
                            k = slots_of[h, i]
                            pair = h * width + k
                            label = max(start - open_score[p, k] + pair_price[h, k], distance)
                            if label < pair_label[pair] - noise and label <= bound:
                                n_heap = _lower(pair, label, pair_label, position, heap, n_heap)
                                pair_via[pair] = u
                                if n_here[h, k] < link[h, k]:
                                    bound = label
                        u = next_in_pair[u]
            for i in range(n_short if n_groups > 1 else 0):
                bound = min(bound, slot_label[short[i]])
        target = node

        # ---- Prices rise (I2), and the pairs' labels are cleared for the next search
        for i in range(n_passed):
            node = passed[i]
            rise = distance - passed_label[i]
            if node == ledger:
                ledger_price += rise
            elif node < width:
                slot_price[node] += rise
            else:
                pair_price[node // width, node % width] += rise
                pair_label[node] = _INF
                position[node] = _UNSEEN
        for i in range(n_heap):
            pair_label[heap[i]] = _INF
            position[heap[i]] = _UNSEEN

        # ---- The excess travels, followed back from the target to the source
        ledger_excess += int(target == ledger) - int(source == ledger)
        n_path = 0
        node = target
        while True:
            if width <= node < ledger:
                passed[n_path] = node
                n_path += 1
            if node == source:
                break
            if node == ledger:
                node = ledger_from
                paid[node] += 1
                continue
            u = slot_via[node] if node < width else pair_via[node]
            k = node % width
            if u < 0:  # between ledger and slot, or pair and slot
                origin = slot_from[node] if node < width else k
                if origin == ledger:
                    paid[k] -= 1
                else:
                    more = 1 if node < width else -1
                    h = origin // width if node < width else node // width
                    received[k] += more
                    link[h, k] += more
                    refund[h, k] = sibling_step * (link[h, k] - 1) if link[h, k] > 0 else -_INF
                    if table[h] == 0 and n_here[h, k] > 0:  # all moves from there change
                        _rebuild(
                            k, k, scores, open_score, class_of, gate, refund, closed,
                            first_in_row, next_in_row, exchange, mover,
                        )  # fmt: skip
                node = origin
                continue

            # ---- A unit moves from slot q to slot k
            p = class_of[u]
            h = group[p]
            q = slot_of[u]
            origin = slot_from[node] if node < width else h * width + q
            over_link = h > 0 and origin == q  # from the slot back into the pair
            slot_of[u] = k
            n_here[h, q] -= 1
            n_here[h, k] += 1
            open_score[p, q] = scores[p, q]
            open_score[p, k] = -_INF
            _unlist(u, h * width + q, first_in_pair, next_in_pair)
            _list(u, h * width + k, first_in_pair, next_in_pair)
            _unlist(u, table[h] + q, first_in_row, next_in_row)
            _list(u, table[h] + k, first_in_row, next_in_row)
            into_use = h > 0 and node < width
            if over_link:
                passed[n_path] = h * width + q
                n_path += 1
                received[q] -= 1
                link[h, q] -= 1
                refund[h, q] = sibling_step * (link[h, q] - 1) if link[h, q] > 0 else -_INF
            if h == 0:
                received[q] -= 1
                received[k] += 1
            elif into_use:  # a pair that was not a node so far
                received[k] += 1
                link[h, k] = 1
                refund[h, k] = 0.0
                pair_price[h, k] = slot_price[k]
                closed[h, k] = _INF
                _append(h, pairs_on, n_pairs_on, k)
                _append(k, slots_of, n_slots_of, h)

            # ... and the tables follow: u is not at q, is at k; the class may go to q, not to k
            if over_link and n_here[h, q] > 0:
                _rebuild(
                    q, q, scores, open_score, class_of, gate, refund, closed,
                    first_in_row, next_in_row, exchange, mover,
                )  # fmt: skip
            else:
                _withdraw(
                    u, table[h] + q, q, scores, open_score, class_of, gate, refund, closed,
                    first_in_row, next_in_row, exchange, mover,
                )  # fmt: skip
            _offer(
                u, p, table[h] + k, k,
                scores, open_score, gate, refund, closed, exchange, mover,
            )  # fmt: skip
            for other in range(p * sparsity, (p + 1) * sparsity):
                r = slot_of[other]
                row = table[h] + r
                if mover[row, k] == other:
                    _refresh(
                        row, r, k, scores, open_score, class_of, gate, refund, closed,
                        first_in_row, next_in_row, exchange, mover,
                    )  # fmt: skip
                _offer_slot(
                    other, p, row, r, q,
                    scores, open_score, gate, refund, closed, exchange, mover,
                )  # fmt: skip
            if into_use and table[h] == 0:  # slot k has closed to the siblings, too
                for i in range(n_slots_of[h]):
                    r = slots_of[h, i]
                    if mover[r, k] >= 0 and group[class_of[mover[r, k]]] == h:
                        _refresh(
                            r, r, k, scores, open_score, class_of, gate, refund, closed,
                            first_in_row, next_in_row, exchange, mover,
                        )  # fmt: skip
            node = origin

        # ---- Pairs on the way that have fallen out of use: their slots open to the siblings
        for i in range(n_path):
            h = passed[i] // width
            q = passed[i] - h * width
            if closed[h, q] > 0.0 and n_here[h, q] == 0 and link[h, q] == 0:
                pair_price[h, q] = _INF
                closed[h, q] = 0.0
                refund[h, q] = 0.0
                _remove(h, pairs_on, n_pairs_on, q)
                _remove(q, slots_of, n_slots_of, h)
                if table[h] == 0:
                    for j in range(n_slots_of[h]):
                        r = slots_of[h, j]
                        u = first_in_pair[h * width + r]
                        while u >= 0:
                            _offer_slot(
                                u, class_of[u], r, r, q,
                                scores, open_score, gate, refund, closed, exchange, mover,
                            )  # fmt: skip
                            u = next_in_pair[u]

    codes = np.zeros((n_classes, width), np.bool_)
    for u in range(n_units):
        codes[class_of[u], slot_of[u]] = True
    return codes, n_searches


@njit(cache=True)
def _justified(count: int, most: int, step: float, gap: float) -> int:
    """Return the number of arcs, nearest to count, that fit the price difference between ends."""
    while count > 0 and step * (count - 1) > gap:
        count -= 1
    while count < most and step * count < gap:
        count += 1
    return count


# ---------------------------------------------------------------------------------- lists


@njit(cache=True)
def _list(u: int, name: int, first: Ints, following: Ints) -> None:
    following[u] = first[name]
    first[name] = u


@njit(cache=True)
def _unlist(u: int, name: int, first: Ints, following: Ints) -> None:
    if first[name] == u:
        first[name] = following[u]
        return
    before = first[name]
    while following[before] != u:
        before = following[before]
    following[before] = following[u]


@njit(cache=True)
def _append(item: int, items: Ints, n_items: Ints, row: int) -> None:
    items[row, n_items[row]] = item
    n_items[row] += 1


@njit(cache=True)
def _remove(item: int, items: Ints, n_items: Ints, row: int) -> None:
    n_items[row] -= 1
    i = 0
    while items[row, i] != item:
        i += 1
    items[row, i] = items[row, n_items[row]]


# ------------------------------------------------------------------------- exchange tables


@njit(cache=True)
def _offer(
    u: int,
    p: int,  # its class
    row: int,
    q: int,  # its slot
    scores: Floats,
    open_score: Floats,
    gate: Ints,
    refund: Floats,
    closed: Floats,
    exchange: Floats,
    mover: Ints,
) -> None:
    """Enter the moves of unit u into the table where they are the cheapest."""
    g = gate[p]
    cost = scores[p, q] - refund[g, q]
    for k in range(exchange.shape[1]):
        offered = cost - open_score[p, k] + closed[g, k]
        better = offered < exchange[row, k]
        exchange[row, k] = offered if better else exchange[row, k]
        mover[row, k] = u if better else mover[row, k]


@njit(cache=True)
def _offer_slot(
    u: int,
    p: int,
    row: int,
    q: int,
    k: int,  # the slot that it may go to
    scores: Floats,
    open_score: Floats,
    gate: Ints,
    refund: Floats,
    closed: Floats,
    exchange: Floats,
    mover: Ints,
) -> None:
    """Enter one move of unit u into the table if it is the cheapest."""
    g = gate[p]
    offered = scores[p, q] - refund[g, q] - open_score[p, k] + closed[g, k]
    if offered < exchange[row, k]:
        exchange[row, k] = offered
        mover[row, k] = u


@njit(cache=True)
def _withdraw(
    u: int,
    row: int,
    q: int,
    scores: Floats,
    open_score: Floats,
    class_of: Ints,
    gate: Ints,
    refund: Floats,
    closed: Floats,
    first_in_row: Ints,
    next_in_row: Ints,
    exchange: Floats,
    mover: Ints,
) -> None:
    """Take the moves of unit u, which has left the row, out of it."""
    n_left = 0
    other = first_in_row[row]
    while other >= 0 and n_left <= _FEW:
        n_left += 1
        other = next_in_row[other]
    if n_left <= _FEW:
        _rebuild(
            row, q, scores, open_score, class_of, gate, refund, closed,
            first_in_row, next_in_row, exchange, mover,
        )  # fmt: skip
        return
    for k in range(exchange.shape[1]):
        if mover[row, k] == u:
            _refresh(
                row, q, k, scores, open_score, class_of, gate, refund, closed,
                first_in_row, next_in_row, exchange, mover,
            )  # fmt: skip


@njit(cache=True)
def _rebuild(
    row: int,
    q: int,
    scores: Floats,
    open_score: Floats,
    class_of: Ints,
    gate: Ints,
    refund: Floats,
    closed: Floats,
    first_in_row: Ints,
    next_in_row: Ints,
    exchange: Floats,
    mover: Ints,
) -> None:
    """Fill a row anew."""
    for k in range(exchange.shape[1]):
        exchange[row, k] = _INF
        mover[row, k] = -1
    u = first_in_row[row]
    while u >= 0:
        p = class_of[u]
        _offer(u, p, row, q, scores, open_score, gate, refund, closed, exchange, mover)
        u = next_in_row[u]


@njit(cache=True)
def _refresh(
    row: int,
    q: int,
    k: int,
    scores: Floats,
    open_score: Floats,
    class_of: Ints,
    gate: Ints,
    refund: Floats,
    closed: Floats,
    first_in_row: Ints,
    next_in_row: Ints,
    exchange: Floats,
    mover: Ints,
) -> None:
    """Find the cheapest move from a row (slot q, or a pair with it) to slot k anew."""
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


# ------------------------------------------------------------------------------ the search


@njit(cache=True, fastmath={"nnan", "nsz", "reassoc"})
def _lowest(labels: Floats) -> float:
    lowest: float = labels[0]
    for label in labels:
        lowest = label if label < lowest else lowest
    return lowest


@njit(cache=True)
def _relax(
    node: int,
    before: float,  # distance less the price of the node that is left
    distance: float,
    exchange: Floats,  # (width,), as all arrays here
    mover: Ints,
    open_price: Floats,
    slot_label: Floats,
    slot_from: Ints,
    slot_via: Ints,
) -> None:
    for k in range(slot_label.size):
        label = before + exchange[k] + open_price[k]
        label = label if label > distance else distance
        better = label < slot_label[k]
        slot_label[k] = label if better else slot_label[k]
        slot_from[k] = node if better else slot_from[k]
        slot_via[k] = mover[k] if better else slot_via[k]


@njit(cache=True)
def _relax_gated(
    node: int,
    before: float,  # distance less the price of the node that is left
    distance: float,
    exchange: Floats,  # (width,), as all arrays here
    mover: Ints,
    closed: Floats,
    open_price: Floats,
    slot_label: Floats,
    slot_from: Ints,
    slot_via: Ints,
) -> None:
    for k in range(slot_label.size):
        label = before + exchange[k] + closed[k] + open_price[k]
        label = label if label > distance else distance
        better = label < slot_label[k]
        slot_label[k] = label if better else slot_label[k]
        slot_from[k] = node if better else slot_from[k]
        slot_via[k] = mover[k] if better else slot_via[k]


@njit(cache=True)
def _relax_class(
    node: int,
    before: float,  # distance less the price of the pair that is left, plus the score there
    distance: float,
    open_score: Floats,
    u: int,
    closed: Floats,
    open_price: Floats,
    slot_label: Floats,
    slot_from: Ints,
    slot_via: Ints,
) -> None:
    for k in range(slot_label.size):
        label = before - open_score[k] + closed[k] + open_price[k]
        label = label if label > distance else distance
        better = label < slot_label[k]
        slot_label[k] = label if better else slot_label[k]
        slot_from[k] = node if better else slot_from[k]
        slot_via[k] = u if better else slot_via[k]


@njit(cache=True)
def _count_closer(
    before: float,
    distance: float,
    open_score: Floats,
    pair_price: Floats,
    pair_label: Floats,
    noise: float,
    bound: float,
) -> int:
    """In how many pairs of its group a unit would lower the label: none, mostly."""
    n = 0
    for k in range(pair_price.size):
        label = before - open_score[k] + pair_price[k]
        label = label if label > distance else distance
        n += (label < pair_label[k] - noise) & (label <= bound)
    return n


# A heap of pairs by label, which knows where each pair is, so that labels can be lowered in it.


@njit(cache=True)
def _lower(
    pair: int, label: float, pair_label: Floats, position: Ints, heap: Ints, n_heap: int
) -> int:
    """Lower the label of a pair, or enter it; return the size of the heap."""
    i = position[pair]
    if i == _UNSEEN:
        i = n_heap
        n_heap += 1
    pair_label[pair] = label
    while i > 0:
        parent = (i - 1) >> 1
        if pair_label[heap[parent]] <= label:
            break
        heap[i] = heap[parent]
        position[heap[i]] = i
        i = parent
    heap[i] = pair
    position[pair] = i
    return n_heap


@njit(cache=True)
def _pop(pair_label: Floats, position: Ints, heap: Ints, n_heap: int) -> int:
    """Take the nearest pair out; return the size of the heap."""
    n_heap -= 1
    pair = heap[n_heap]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n_heap:
            break
        if child + 1 < n_heap and pair_label[heap[child + 1]] < pair_label[heap[child]]:
            child += 1
        if pair_label[heap[child]] >= pair_label[pair]:
            break
        heap[i] = heap[child]
        position[heap[i]] = i
        i = child
    heap[i] = pair
    position[pair] = i
    return n_heap
