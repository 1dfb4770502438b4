"""The directory: which buckets are occupied, as a tree of prefixes, and where their entries are.

This is the part that finds buckets; the segments are the part that holds them. Probing works on
numbers of occupied buckets (their rank among all of them) and never touches a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hashcade.codes._shape import CodeShape
from hashcade.index._table import Int64s, View


@dataclass(frozen=True, eq=False)
class Tree:
    """Occupied prefixes, level by level.

    Nodes of all levels lie in one array: first those of level 1, then of level 2, and so on; the
    last level are the buckets, in ascending order of their ids. The root is not stored.

    Attributes
    ----------
    level_starts : int64[depth + 1]
        Where the nodes of each level begin.
    slots : int32[n_nodes]
        The slot that leads to each node.
    children : int64[n_inner_nodes + 1]
        Children of node i are ``children[i]..children[i + 1] - 1``. Of inner nodes alone.
    """

    level_starts: Int64s
    slots: npt.NDArray[np.int32]
    children: Int64s


@dataclass(frozen=True, eq=False)
class Directory:
    """All occupied buckets of a snapshot.

    Attributes
    ----------
    buckets : int64[n_buckets]
        Ids of the occupied buckets, ascending.
    starts, stops : int64[n_segments, n_buckets]
        Entries of each bucket in each segment; both 0 where a segment has none.
    live : int64[n_buckets]
        Entries per bucket that were not removed. A bucket may be down to 0 of them.
    tree : Tree
    """

    buckets: Int64s
    starts: Int64s
    stops: Int64s
    live: Int64s
    tree: Tree

    def __post_init__(self) -> None:
        for array in (self.buckets, self.starts, self.stops, self.live):
            array.flags.writeable = False


def build_directory(
    views: Sequence[View], shape: CodeShape, previous: Directory | None = None
) -> Directory:
    """Collect the buckets of all segments; the tree is taken over if no bucket is new."""
    if len(views) == 1:
        segment = views[0].segment
        buckets = segment.buckets
        starts, stops = segment.offsets[None, :-1], segment.offsets[None, 1:]
        live = views[0].live_per_bucket.copy()
    else:
        parts = [view.segment.buckets for view in views]
        buckets = np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
        starts = np.zeros((len(views), len(buckets)), dtype=np.int64)
        stops = np.zeros_like(starts)
        live = np.zeros(len(buckets), dtype=np.int64)
        for number, view in enumerate(views):
            at = np.searchsorted(buckets, view.segment.buckets)
            starts[number, at] = view.segment.offsets[:-1]
            stops[number, at] = view.segment.offsets[1:]
            live[at] += view.live_per_bucket
    if previous is not None and np.array_equal(previous.buckets, buckets):
        return Directory(previous.buckets, starts, stops, live, previous.tree)
    return Directory(buckets, starts, stops, live, _build_tree(buckets, shape))


def _build_tree(buckets: Int64s, shape: CodeShape) -> Tree:
    prefixes = [buckets]  # from the last level up
    for _ in range(shape.depth - 1):
        prefixes.append(np.unique(prefixes[-1] // shape.width))
    prefixes.reverse()
    sizes = [len(p) for p in prefixes]
    level_starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    slots = np.concatenate([p % shape.width for p in prefixes]).astype(np.int32)
    children = [
        level_starts[level + 1] + np.searchsorted(below // shape.width, here)
        for level, (here, below) in enumerate(pairwise(prefixes))
    ]
    ends = np.concatenate([*children, [level_starts[-1]]]).astype(np.int64)
    return Tree(level_starts[:-1].copy(), slots, ends)
