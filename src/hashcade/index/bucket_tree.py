"""The bucket tree: which buckets are occupied, as a tree of prefixes, and where their entries are.

This is the part that finds buckets; the segments are the part that holds them. Probing works on
numbers of occupied buckets (their rank among all of them) and never touches a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape
from hashcade.index.segment import Int64s, View


@dataclass(frozen=True, eq=False)
class BucketTree:
    """All occupied buckets of a snapshot.

    Nodes of all levels lie in one array: first those of level 1, then of level 2, and so on; the
    last level are the buckets, in ascending order of their ids. The root is not stored.

    ``rows`` has the number of each bucket within each segment, -1 where a segment has none; it is
    None for one segment, which has the same buckets. Children of node i are
    ``children[i]..children[i + 1] - 1``.
    """

    buckets: Int64s  # (n_buckets,) ids of the occupied ones, ascending
    rows: npt.NDArray[np.int32] | None  # (n_segments, n_buckets)
    live: Int64s  # (n_buckets,) entries that were not removed; a bucket may be down to 0 of them
    level_starts: Int64s  # (depth + 1,) where the nodes of each level begin, and the last ends
    slots: npt.NDArray[np.int32]  # (n_nodes,) the slot that leads to each
    children: Int64s  # (n_inner_nodes + 1,)

    @cached_property
    def mean_bucket_size(self) -> float:
        """Entries in the bucket of an entry, on average."""
        live = self.live.astype(np.float64)
        return float((live**2).sum() / max(live.sum(), 1.0))

    def below(self, path: Sequence[int], shape: CodeShape) -> tuple[int, int]:
        """Return the numbers of the buckets below a node: the first, and that after the last."""
        prefix = 0
        for slot in path:
            prefix = prefix * shape.width + slot
        span = shape.width ** (shape.depth - len(path))
        low = int(np.searchsorted(self.buckets, prefix * span))
        # (prefix + 1) * span may lie beyond int64, the last bucket does not.
        return low, int(np.searchsorted(self.buckets, prefix * span + (span - 1), "right"))


def build_tree(
    views: Sequence[View], shape: CodeShape, previous: BucketTree | None = None
) -> BucketTree:
    """Collect the buckets of all segments; the nodes are taken over if no bucket is new."""
    rows = None
    if len(views) == 1:
        buckets, live = views[0].segment.buckets, views[0].live_per_bucket
    else:
        empty = np.empty(0, dtype=np.int64)
        buckets = np.unique(np.concatenate([empty, *(view.segment.buckets for view in views)]))
        rows = np.full((len(views), len(buckets)), -1, dtype=np.int32)
        live = np.zeros(len(buckets), dtype=np.int64)
        for number, view in enumerate(views):
            at = np.searchsorted(buckets, view.segment.buckets)
            rows[number, at] = np.arange(len(at), dtype=np.int32)
            live[at] += view.live_per_bucket
    if previous is not None and np.array_equal(previous.buckets, buckets):
        return replace(previous, rows=rows, live=live)
    return BucketTree(buckets, rows, live, *_nodes(buckets, shape))


def _nodes(buckets: Int64s, shape: CodeShape) -> tuple[Int64s, npt.NDArray[np.int32], Int64s]:
    prefixes = [buckets]  # from the last level up
    for _ in range(shape.depth - 1):
        prefixes.append(np.unique(prefixes[-1] // shape.width))
    prefixes.reverse()
    level_starts = np.cumsum([0, *map(len, prefixes)], dtype=np.int64)
    slots = np.concatenate([p % shape.width for p in prefixes]).astype(np.int32)
    children = [
        level_starts[level + 1] + np.searchsorted(below // shape.width, above)
        for level, (above, below) in enumerate(pairwise(prefixes))
    ]
    ends = np.concatenate([*children, level_starts[-1:]]).astype(np.int64)
    return level_starts, slots, ends
