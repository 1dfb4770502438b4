"""What lies in the buckets of an index: labels of items, sizes, class mixes, the tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hashcade.index._stats import live_table

if TYPE_CHECKING:
    from hashcade.index import HashIndex


@dataclass
class Node:
    """A node of the tree: everything whose path begins with ``path``."""

    path: tuple[int, ...]
    n_entries: int
    n_buckets: int
    classes: dict[int, int]  # label: entries, largest first; empty without labels
    children: list[Node] = field(default_factory=list)

    @property
    def purity(self) -> float | None:
        """Share of the largest class."""
        return max(self.classes.values()) / self.n_entries if self.classes else None


def labels_of(index: HashIndex, ids: npt.NDArray[np.int64]) -> list[list[int | None]]:
    """Labels of items by id, int64[q, n]; None for id -1 and for an index without labels."""
    _, known, labels = live_table(index._snapshot)
    if labels is None or len(known) == 0:
        return [[None] * ids.shape[1] for _ in ids]
    order = np.argsort(known, kind="stable")
    at = order[np.searchsorted(known, np.maximum(ids, known.min()), sorter=order)]
    found = labels[at].tolist()
    return [
        [label if item >= 0 else None for label, item in zip(*row, strict=True)]
        for row in zip(found, ids.tolist(), strict=True)
    ]


def make_tree(index: HashIndex) -> Node:
    """The occupied part of the tree, from the root to the buckets."""
    snapshot = index._snapshot
    numbers, _, labels = live_table(snapshot)
    paths = index.shape.paths(snapshot.directory.buckets).reshape(-1, index.shape.depth)
    by_bucket = np.argsort(numbers, kind="stable")
    occupied, starts = np.unique(numbers[by_bucket], return_index=True)
    ends = np.append(starts[1:], len(numbers))
    leaves = []
    for number, start, end in zip(occupied.tolist(), starts.tolist(), ends.tolist(), strict=True):
        classes = {} if labels is None else _counts(labels[by_bucket[start:end]].tolist())
        leaves.append(Node(tuple(paths[number].tolist()), end - start, 1, classes))
    return _joined((), leaves, index.shape.depth)


def _joined(path: tuple[int, ...], leaves: list[Node], depth: int) -> Node:
    """The node above some leaves, which come in the order of their paths."""
    if len(path) == depth:
        return leaves[0]
    by_slot: dict[int, list[Node]] = {}
    for leaf in leaves:
        by_slot.setdefault(leaf.path[len(path)], []).append(leaf)
    children = [_joined((*path, slot), below, depth) for slot, below in by_slot.items()]
    total: dict[int, int] = {}
    for child in children:
        for label, count in child.classes.items():
            total[label] = total.get(label, 0) + count
    return Node(
        path,
        sum(child.n_entries for child in children),
        sum(child.n_buckets for child in children),
        _largest_first(total),
        children,
    )


def _counts(labels: list[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    return _largest_first(counts)


def _largest_first(counts: dict[int, int]) -> dict[int, int]:
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
