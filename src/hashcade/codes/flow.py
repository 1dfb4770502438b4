"""Second half of the solver: from any prices to an optimal flow, by shortest paths.

`solve.py` defines the problem and shows that it is a flow; `prices.py` estimates the prices that
this half starts from; `exchange.py` maintains the tables that make a step of a search cheap.

Nodes are the slots, the *pairs* (group, slot) that are in use, and the sink that all slots lead to.
A unit is one of the ``sparsity`` places of a class. Arcs, and the cost of one more unit:

    class -> pair       -score                      (directly to the slot without siblings)
    pair  -> slot       sibling_step * link         (link: units already on this arc)
    slot  -> sink       collision_step * outflow    (outflow: likewise)

Classes are not nodes: their units are always placed, and only move from slot to slot. Nor are
unused pairs: their first unit costs nothing extra, so arriving there is arriving at the slot.

I1  Every class holds ``sparsity`` different slots.
I2  Reduced costs are never negative, where a node's price is what absorbing a unit there costs:
    a unit moving in the pair (or slot) a to b: (score_a - price_a) - (score_b - price_b) >= 0;
    one more (less) unit on a link: sibling_step * link - (price_pair - price_slot) >= 0 (and
    price_pair - price_slot - sibling_step * (link - 1) >= 0); on an outflow likewise.
I3  Only flow conservation may be violated: nodes have *excess* or *deficit*, which add up to zero.

Classes start in their best slots (I1), and links and outflows are set to what the prices imply
(I2). Then, as in the successive shortest path method, a unit of excess is sent along a shortest
path, by reduced cost, to a node with a deficit. Raising the price of every settled node by (final
distance - its distance) keeps I2, and makes the arcs of the path tight, so that using them keeps it
too. Without excess the flow is feasible, and with I2 optimal: a cheaper one would need a negative
cycle. Reduced costs are clamped at zero against rounding. A search takes O(width² + units · width)
at worst, and there is one per initial unit of excess: a few per cent of the units at good prices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hashcade._kernels import Floats, Ints, kernel
from hashcade.codes import exchange as moves
from hashcade.codes import search
from hashcade.codes.search import UNSEEN, lower_label

_INF = np.inf
_ZERO = np.int64(0)  # not a literal: helpers that take it are compiled for one type


@kernel()
def optimal_codes(
    scores: Floats,  # (n_classes, width)
    sparsity: int,  # < width
    order: Ints,  # (n_classes,): the classes, group by group
    group_start: Ints,  # (n_groups + 1,): group h is order[group_start[h]:group_start[h + 1]]
    sibling_step: float,  # 2 * alpha
    collision_step: float,  # 2 * beta
    slot_price: Floats,  # (width,), changed in place
    pair_price: Floats,  # (n_groups, width), changed in place; -inf: the slot's price
    choice: Ints,  # (n_classes, >= sparsity): the best slots of each class at these prices
    scratch: Floats,  # (>= n_classes * width + table_size,): buffers of the large arrays ...
    int_scratch: Ints,  # (>= table_size,), with table_size = width * (width + n_units / DENSE)
) -> tuple[NDArray[np.bool_], int]:
    """Return the optimal codes, bool (n_classes, width), and the number of searches."""
    n_classes, width = scores.shape
    n_groups = group_start.size - 1
    n_units = n_classes * sparsity
    sink = n_groups * width  # node numbers: slot q is q, pair (h, q) is h * width + q

    # ---- Groups. Exchange tables have a row per slot, and per pair of a dense group.
    group = np.empty(n_classes, np.int64)
    gate = np.empty(n_classes, np.int64)  # row of `refund` and `closed` for the class
    first_row = np.zeros(n_groups, np.int64)  # in the tables, of the group's units; 0: not dense
    n_rows = width
    for h in range(n_groups):
        size = group_start[h + 1] - group_start[h]
        dense = h > 0 and size * sparsity >= moves.DENSE * width
        if dense:
            first_row[h] = n_rows
            n_rows += width
        for i in range(group_start[h], group_start[h + 1]):
            group[order[i]] = h
            gate[order[i]] = 0 if dense else h

    # ---- Every class in its slots (I1); its score there becomes -inf
    open_score = scratch[: n_classes * width].reshape(n_classes, width)
    max_abs = max(search.copy(scores, open_score), sibling_step)
    class_of = np.empty(n_units, np.int64)
    slot_of = np.empty(n_units, np.int64)
    count = np.zeros((n_groups, width), np.int64)  # units per pair; group 0: per slot
    first_in_row = np.full(n_rows, -1, np.int64)  # lists of units, per row of the tables ...
    next_in_row = np.empty(n_units, np.int64)
    first_in_pair = np.full(sink, -1, np.int64)  # ... and per pair
    next_in_pair = np.empty(n_units, np.int64)
    for p in range(n_classes):
        for i in range(sparsity):
            u = p * sparsity + i
            q = choice[p, i]
            class_of[u], slot_of[u] = p, q
            count[group[p], q] += 1
            open_score[p, q] = -_INF
            moves.link_unit(u, first_row[group[p]] + q, first_in_row, next_in_row)
            moves.link_unit(u, group[p] * width + q, first_in_pair, next_in_pair)

    # ---- Links and outflows as the prices imply (I2); excess and deficit follow (I3)
    link = np.zeros((n_groups, width), np.int64)
    refund = np.zeros((n_groups, width))  # saving of one unit less on the link
    closed = np.zeros((n_groups, width))  # inf where the pair is in use: paths go through it
    pairs_on = np.empty((width, n_groups), np.int64)  # groups whose pair with the slot is in use
    n_pairs_on = np.zeros(width, np.int64)
    slots_of = np.empty((n_groups, width), np.int64)  # slots whose pair with the group is in use
    n_slots_of = np.zeros(n_groups, np.int64)
    inflow = count[0].copy()
    for q in range(width):
        max_abs = max(max_abs, abs(slot_price[q]))
    for h in range(1, n_groups):
        size = group_start[h + 1] - group_start[h]
        for q in range(width):
            gap = max(pair_price[h, q] - slot_price[q], 0.0)
            max_abs = max(max_abs, pair_price[h, q])
            if count[h, q] == 0 and gap == 0.0:
                pair_price[h, q] = _INF  # not in use: unreachable
                continue
            pair_price[h, q] = slot_price[q] + gap
            # The first unit costs nothing extra: it fits any price.
            link[h, q] = max(search.flow_at_price(count[h, q], size, sibling_step, gap), 1)
            refund[h, q] = sibling_step * (link[h, q] - 1)
            inflow[q] += link[h, q]
            closed[h, q] = _INF
            moves.append(h, pairs_on, n_pairs_on, q)
            moves.append(q, slots_of, n_slots_of, h)
    sink_price = 0.0
    sink_excess = -n_units
    outflow = np.empty(width, np.int64)
    for q in range(width):
        outflow[q] = search.flow_at_price(inflow[q], n_classes, collision_step, slot_price[q])
        sink_excess += outflow[q]

    # ---- Exchange tables
    end = n_classes * width
    exchange = scratch[end : end + n_rows * width].reshape(n_rows, width)
    mover = int_scratch[: n_rows * width].reshape(n_rows, width)
    tables = (
        exchange, mover, first_in_row, next_in_row,
        scores, open_score, class_of, gate, refund, closed,
    )  # fmt: skip
    exchange[:] = _INF
    mover[:] = -1
    for u in range(n_units):
        moves.offer(u, first_row[group[class_of[u]]] + slot_of[u], slot_of[u], tables)

    # A label must improve by more than rounding: a slot's row leads through pairs that are settled
    # later, if at all; with an improvement in the last bit, a path could visit a pair twice.
    noise = 1e-13 * max_abs

    # ---- Buffers of one search
    open_price = np.empty(width)  # slot prices; inf once the slot is settled
    slot_label = np.empty(width)  # least distance so far; inf once the slot is settled
    slot_parent = np.empty(width, np.int64)  # the previous node on the path
    slot_unit = np.empty(width, np.int64)  # the unit that moves there, or -1
    pair_label = np.full(sink, _INF)
    pair_unit = np.empty(sink, np.int64)  # the unit that moves there, or -1: from its slot
    position = np.full(sink, UNSEEN, np.int64)  # in the heap
    heap = np.empty(sink, np.int64)
    settled = np.empty(2 * sink + 1, np.int64)  # later: the pairs on the path
    settled_label = np.empty(sink + 1)
    deficits = np.empty(width, np.int64)  # slots with a deficit

    n_searches = cursor = 0
    while True:
        # ---- A node with excess
        source = sink
        if sink_excess <= 0:
            while cursor < sink:
                h = cursor // width
                q = cursor - h * width
                if (h == 0 and inflow[q] > outflow[q]) or (h > 0 and count[h, q] > link[h, q]):
                    break
                cursor += 1
            if cursor == sink:
                break
            source = cursor
        n_searches += 1

        # ---- Shortest paths from it, until a node with a deficit is settled
        n_deficits = 0
        for q in range(width):
            open_price[q] = slot_price[q]
            slot_label[q] = _INF
            if inflow[q] < outflow[q]:
                deficits[n_deficits] = q
                n_deficits += 1
        sink_label, sink_parent, sink_settled = _INF, -1, False
        n_heap, n_settled = _ZERO, 0
        bound = _INF  # the nearest deficit so far: labels beyond it are not needed
        if source == sink:
            sink_label = 0.0
        elif source < width:
            slot_label[source] = 0.0
        else:
            n_heap = lower_label(source, 0.0, pair_label, position, heap, n_heap)
        while True:
            node = -1
            distance = search.lowest(slot_label)
            if n_heap > 0 and pair_label[heap[0]] < distance:
                node = heap[0]
                distance = pair_label[node]
            if not sink_settled and sink_label < distance:
                node = sink
                distance = sink_label
            if node < 0:
                node = 0
                while slot_label[node] != distance:
                    node += 1
            settled[n_settled] = node
            settled_label[n_settled] = distance
            n_settled += 1

            if node == sink:
                sink_settled = True
                if sink_excess < 0:
                    break
                for q in range(width):
                    if outflow[q] > 0:
                        cost = open_price[q] - sink_price - collision_step * (outflow[q] - 1)
                        label = distance + max(cost, 0.0)
                        if label < slot_label[q]:
                            slot_label[q] = label
                            slot_parent[q] = sink
                            slot_unit[q] = -1
            elif node < width:
                q = node
                slot_label[q] = _INF
                open_price[q] = _INF
                if inflow[q] < outflow[q]:
                    break
                if not sink_settled and outflow[q] < n_classes:
                    cost = collision_step * outflow[q] + sink_price - slot_price[q]
                    label = distance + max(cost, 0.0)
                    if label < sink_label:
                        sink_label = label
                        sink_parent = q
                        if sink_excess < 0:
                            bound = min(bound, label)
                for i in range(n_pairs_on[q]):
                    g = pairs_on[q, i]
                    pair = g * width + q
                    if link[g, q] > 0:
                        cost = pair_price[g, q] - slot_price[q] - refund[g, q]
                        label = distance + max(cost, 0.0)
                        if label < pair_label[pair] and label <= bound + noise:
                            n_heap = lower_label(pair, label, pair_label, position, heap, n_heap)
                            pair_unit[pair] = -1
                            if count[g, q] < link[g, q]:
                                bound = min(bound, label)
                search.relax_from_slot(
                    node, distance - slot_price[q], distance, exchange[q], mover[q],
                    open_price, slot_label, slot_parent, slot_unit,
                )  # fmt: skip
            else:
                n_heap = search.pop_nearest(pair_label, position, heap, n_heap)
                h = node // width
                q = node - h * width
                if count[h, q] < link[h, q]:
                    break
                if link[h, q] < group_start[h + 1] - group_start[h]:
                    cost = sibling_step * link[h, q] + open_price[q] - pair_price[h, q]
                    label = distance + max(cost, 0.0)
                    if label < slot_label[q]:
                        slot_label[q] = label
                        slot_parent[q] = node
                        slot_unit[q] = -1
                base_cost = distance - pair_price[h, q]
                if first_row[h] > 0:
                    row = first_row[h] + q
                    if n_slots_of[h] < width:
                        search.relax_from_pair(
                            node, base_cost, distance, exchange[row], mover[row], closed[h],
                            open_price, slot_label, slot_parent, slot_unit,
                        )  # fmt: skip
                    for i in range(n_slots_of[h]):
                        k = slots_of[h, i]
                        pair = h * width + k
                        label = max(base_cost + exchange[row, k] + pair_price[h, k], distance)
                        if label < pair_label[pair] and label <= bound:
                            n_heap = lower_label(pair, label, pair_label, position, heap, n_heap)
                            pair_unit[pair] = mover[row, k]
                            if count[h, k] < link[h, k]:
                                bound = label
                else:
                    # Reached from its own slot: the slot's row has relaxed the open slots already.
                    from_slot = node != source and pair_unit[node] < 0
                    u = first_in_pair[node]
                    while u >= 0:
                        p = class_of[u]
                        start = base_cost + scores[p, q]
                        if not from_slot:
                            search.relax_class(
                                node, start, distance, open_score[p], u, closed[h],
                                open_price, slot_label, slot_parent, slot_unit,
                            )  # fmt: skip
                        n_closer = search.count_closer(
                            start, distance, open_score[p], pair_price[h],
                            pair_label[h * width : (h + 1) * width], noise, bound,
                        )  # fmt: skip
                        for i in range(n_slots_of[h] if n_closer > 0 else 0):
                            k = slots_of[h, i]
                            pair = h * width + k
                            label = max(start - open_score[p, k] + pair_price[h, k], distance)
                            if label < pair_label[pair] - noise and label <= bound:
                                n_heap = lower_label(
                                    pair, label, pair_label, position, heap, n_heap
                                )
                                pair_unit[pair] = u
                                if count[h, k] < link[h, k]:
                                    bound = label
                        u = next_in_pair[u]
            for i in range(n_deficits if n_groups > 1 else 0):
                bound = min(bound, slot_label[deficits[i]])
        target = node

        # ---- Raise prices (I2), and clear the labels of pairs for the next search
        for i in range(n_settled):
            node = settled[i]
            rise = distance - settled_label[i]
            if node == sink:
                sink_price += rise
            elif node < width:
                slot_price[node] += rise
            else:
                pair_price[node // width, node % width] += rise
                pair_label[node] = _INF
                position[node] = UNSEEN
        for i in range(n_heap):
            pair_label[heap[i]] = _INF
            position[heap[i]] = UNSEEN

        # ---- Send the unit of excess: follow the path back from the target
        sink_excess += int(target == sink) - int(source == sink)
        n_path = 0
        node = target
        while True:
            if width <= node < sink:
                settled[n_path] = node
                n_path += 1
            if node == source:
                break
            if node == sink:
                node = sink_parent
                outflow[node] += 1
                continue
            u = slot_unit[node] if node < width else pair_unit[node]
            k = node % width
            if u < 0:  # between sink and slot, or pair and slot
                parent = slot_parent[node] if node < width else k
                if parent == sink:
                    outflow[k] -= 1
                else:
                    delta = 1 if node < width else -1
                    h = parent // width if node < width else node // width
                    inflow[k] += delta
                    link[h, k] += delta
                    refund[h, k] = sibling_step * (link[h, k] - 1) if link[h, k] > 0 else -_INF
                    if first_row[h] == 0 and count[h, k] > 0:  # all its moves change
                        moves.rebuild_row(k, k, tables)
                node = parent
                continue

            # ---- A unit moves from slot q to slot k
            p = class_of[u]
            h = group[p]
            q = slot_of[u]
            parent = slot_parent[node] if node < width else h * width + q
            over_link = h > 0 and parent == q  # from the slot back into the pair
            slot_of[u] = k
            count[h, q] -= 1
            count[h, k] += 1
            open_score[p, q] = scores[p, q]
            open_score[p, k] = -_INF
            moves.unlink_unit(u, h * width + q, first_in_pair, next_in_pair)
            moves.link_unit(u, h * width + k, first_in_pair, next_in_pair)
            moves.unlink_unit(u, first_row[h] + q, first_in_row, next_in_row)
            moves.link_unit(u, first_row[h] + k, first_in_row, next_in_row)
            activates_pair = h > 0 and node < width
            if over_link:
                settled[n_path] = h * width + q
                n_path += 1
                inflow[q] -= 1
                link[h, q] -= 1
                refund[h, q] = sibling_step * (link[h, q] - 1) if link[h, q] > 0 else -_INF
            if h == 0:
                inflow[q] -= 1
                inflow[k] += 1
            elif activates_pair:  # the pair becomes a node
                inflow[k] += 1
                link[h, k] = 1
                refund[h, k] = 0.0
                pair_price[h, k] = slot_price[k]
                closed[h, k] = _INF
                moves.append(h, pairs_on, n_pairs_on, k)
                moves.append(k, slots_of, n_slots_of, h)

            # ... and update the tables: u left q for k; the class may move to q, but not to k
            if over_link and count[h, q] > 0:
                moves.rebuild_row(q, q, tables)
            else:
                moves.withdraw(u, first_row[h] + q, q, tables)
            moves.offer(u, first_row[h] + k, k, tables)
            for other in range(p * sparsity, (p + 1) * sparsity):
                r = slot_of[other]
                row = first_row[h] + r
                if mover[row, k] == other:
                    moves.refresh(row, r, k, tables)
                moves.offer_slot(other, row, r, q, tables)
            if activates_pair and first_row[h] == 0:  # slot k is now closed to the siblings, too
                for i in range(n_slots_of[h]):
                    r = slots_of[h, i]
                    if mover[r, k] >= 0 and group[class_of[mover[r, k]]] == h:
                        moves.refresh(r, r, k, tables)
            node = parent

        # ---- Pairs on the path that are no longer in use: their slots open to the siblings
        for i in range(n_path):
            h = settled[i] // width
            q = settled[i] - h * width
            if closed[h, q] > 0.0 and count[h, q] == 0 and link[h, q] == 0:
                pair_price[h, q] = _INF
                closed[h, q] = 0.0
                refund[h, q] = 0.0
                moves.remove(h, pairs_on, n_pairs_on, q)
                moves.remove(q, slots_of, n_slots_of, h)
                if first_row[h] == 0:
                    for j in range(n_slots_of[h]):
                        r = slots_of[h, j]
                        u = first_in_pair[h * width + r]
                        while u >= 0:
                            moves.offer_slot(u, r, r, q, tables)
                            u = next_in_pair[u]

    codes = np.zeros((n_classes, width), np.bool_)
    for u in range(n_units):
        codes[class_of[u], slot_of[u]] = True
    return codes, n_searches
