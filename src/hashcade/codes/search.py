"""Steps of the shortest path search: lower labels along arcs, and find the nearest node.

Labels of slots are plain arrays (width,), which are fastest to scan. Labels of pairs are in a
binary heap that knows the position of each pair, so that they can be lowered in place.
"""

from __future__ import annotations

from hashcade._kernels import Floats, Ints, helper

UNSEEN = -1  # position of a pair that was never in the heap


@helper(fastmath={"nnan", "nsz", "reassoc"})
def copy(values: Floats, out: Floats) -> float:
    """Copy an array; return its largest absolute value."""
    largest = 0.0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = values[i, j]
            out[i, j] = value
            size = abs(value)
            largest = size if size > largest else largest
    return largest


@helper()
def flow_at_price(count: int, capacity: int, step: float, gap: float) -> int:
    """Return the flow nearest to ``count`` that fits the price difference between the ends."""
    while count > 0 and step * (count - 1) > gap:
        count -= 1
    while count < capacity and step * count < gap:
        count += 1
    return count


@helper(fastmath={"nnan", "nsz", "reassoc"})
def lowest(labels: Floats) -> float:
    """Return the least label."""
    least: float = labels[0]
    for label in labels:
        least = label if label < least else least
    return least


# Three variants, because one for all cases is a tenth slower. ``base_cost`` is the distance of the
# node that the units leave, less its price.


@helper()
def relax_from_slot(
    node: int, base_cost: float, distance: float, exchange: Floats, mover: Ints, open_price: Floats,
    slot_label: Floats, slot_parent: Ints, slot_unit: Ints,
) -> None:  # fmt: skip
    """Lower the labels of the slots that units of a slot may move to."""
    for k in range(slot_label.size):
        label = base_cost + exchange[k] + open_price[k]
        label = label if label > distance else distance
        better = label < slot_label[k]
        slot_label[k] = label if better else slot_label[k]
        slot_parent[k] = node if better else slot_parent[k]
        slot_unit[k] = mover[k] if better else slot_unit[k]


@helper()
def relax_from_pair(
    node: int, base_cost: float, distance: float, exchange: Floats, mover: Ints, closed: Floats,
    open_price: Floats, slot_label: Floats, slot_parent: Ints, slot_unit: Ints,
) -> None:  # fmt: skip
    """Do the same for a pair of a dense group."""
    for k in range(slot_label.size):
        label = base_cost + exchange[k] + closed[k] + open_price[k]
        label = label if label > distance else distance
        better = label < slot_label[k]
        slot_label[k] = label if better else slot_label[k]
        slot_parent[k] = node if better else slot_parent[k]
        slot_unit[k] = mover[k] if better else slot_unit[k]


@helper()
def relax_class(
    node: int, base_cost: float, distance: float, open_score: Floats, u: int, closed: Floats,
    open_price: Floats, slot_label: Floats, slot_parent: Ints, slot_unit: Ints,
) -> None:  # fmt: skip
    """Do the same for one unit u of a pair of a small group; ``base_cost`` includes its score."""
    for k in range(slot_label.size):
        label = base_cost - open_score[k] + closed[k] + open_price[k]
        label = label if label > distance else distance
        better = label < slot_label[k]
        slot_label[k] = label if better else slot_label[k]
        slot_parent[k] = node if better else slot_parent[k]
        slot_unit[k] = u if better else slot_unit[k]


@helper()
def count_closer(
    base_cost: float, distance: float, open_score: Floats, pair_price: Floats, pair_label: Floats,
    noise: float, bound: float,
) -> int:  # fmt: skip
    """Return in how many pairs of its group a unit would lower the label: mostly none."""
    n = 0
    for k in range(pair_price.size):
        label = base_cost - open_score[k] + pair_price[k]
        label = label if label > distance else distance
        n += (label < pair_label[k] - noise) & (label <= bound)
    return n


@helper()
def lower_label(
    pair: int, label: float, pair_label: Floats, position: Ints, heap: Ints, n_heap: int
) -> int:
    """Lower the label of a pair, or insert it; return the size of the heap."""
    i = position[pair]
    if i == UNSEEN:
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


@helper()
def pop_nearest(pair_label: Floats, position: Ints, heap: Ints, n_heap: int) -> int:
    """Remove the nearest pair; return the size of the heap."""
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
