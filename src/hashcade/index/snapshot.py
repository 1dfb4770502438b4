"""The state of an index at one moment: never written to, only replaced as a whole.

The segments hold the buckets, the tree finds them, by their rank among the occupied ones. A change
to a large index leaves its tree alone: the last segments, as long as they are small, have a tree of
their own, and a search looks at both. So a change takes its own time, not that of all buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape
from hashcade.index.layout import N_MARKS, describe, describe_tree
from hashcade.index.segment import (
    NO_LABEL,
    Int64s,
    Items,
    Segment,
    View,
    build_segment,
    merge_segments,
)

Int32s = npt.NDArray[np.int32]

# Neighbouring segments are merged while the older one is less than this many times as large.
_GROWTH = 2
# From so many buckets on the last segments have a tree of their own, up to so many entries.
_LARGE = 2048
_RECENT = 1024


@dataclass(frozen=True, eq=False)
class BucketTree:
    """All occupied buckets of a snapshot.

    Nodes of all levels lie in one array, level after level without the root; the last are the
    buckets. Children of node i are ``children[i]..children[i + 1] - 1``. ``rows`` are the numbers
    of the buckets within each segment, -1 for none; None for one segment, with the same buckets.
    """

    buckets: Int64s  # (n_buckets,) ids of the occupied ones, ascending
    rows: Int32s | None  # (n_segments, n_buckets)
    live: Int32s  # (n_buckets,) entries that were not removed; a bucket may be down to 0 of them
    level_starts: Int64s  # (depth + 1,) where the nodes of each level begin, and the last ends
    slots: Int32s  # (n_nodes,) the slot that leads to each
    children: Int64s  # (n_inner_nodes + 1,)

    @cached_property
    def mean_bucket_size(self) -> float:
        """Entries in the bucket of an entry, on average."""
        live = self.live.astype(np.float64)
        return float((live**2).sum() / max(live.sum(), 1.0))

    @cached_property
    def row(self) -> list[int]:
        """Where its arrays are, for ``layout.describe``."""
        return describe_tree(self)

    def below(self, path: Sequence[int], shape: CodeShape) -> tuple[int, int]:
        """Return the numbers of the buckets below a node: the first, and that after the last."""
        prefix = 0
        for slot in path:
            prefix = prefix * shape.width + slot
        span = shape.width ** (shape.depth - len(path))
        low = int(np.searchsorted(self.buckets, prefix * span))
        # (prefix + 1) * span may lie beyond int64, the last bucket does not.
        return low, int(np.searchsorted(self.buckets, prefix * span + (span - 1), "right"))


@dataclass(frozen=True, eq=False)
class Recent:
    """Buckets of the last segments. One that the large tree has too goes by its number there."""

    n_views: int
    tree: BucketTree
    places: Int64s  # (n_buckets,) numbers in the large tree of the first bucket that is not less

    @cached_property
    def marks(self) -> npt.NDArray[np.uint8]:
        """1 where a number of a place may end: most buckets need not be looked for in places."""
        marks = np.zeros(N_MARKS, np.uint8)
        marks[self.places & (N_MARKS - 1)] = 1
        return marks


def build_tree(views: Sequence[View], shape: CodeShape, previous: BucketTree | None) -> BucketTree:
    """Collect the buckets of all segments; the nodes are taken over if no bucket is new."""
    rows = None
    if len(views) == 1:
        buckets = views[0].segment.buckets
        live = views[0].live_per_bucket.astype(np.int32)
    else:
        empty = np.empty(0, dtype=np.int64)
        buckets = np.concatenate([empty, *(view.segment.buckets for view in views)])
        buckets.sort(kind="stable")  # in no time, as each segment is sorted already
        buckets = buckets[np.diff(buckets, prepend=-1) != 0]
        rows = np.full((len(views), len(buckets)), -1, dtype=np.int32)
        live = np.zeros(len(buckets), dtype=np.int32)
        for number, view in enumerate(views):
            at = np.searchsorted(buckets, view.segment.buckets)
            rows[number, at] = np.arange(len(at), dtype=np.int32)
            live[at] += view.live_per_bucket
    if previous is not None and np.array_equal(previous.buckets, buckets):
        return replace(previous, rows=rows, live=live)
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
    return BucketTree(buckets, rows, live, level_starts, slots, ends)


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """How many entries of which class lie in which bucket; those without a label do not count."""

    labels: Int64s  # (n_classes,)
    number: Int64s  # (n_pairs,) of each pair that occurs: number of the bucket, ascending
    code: Int64s  # (n_pairs,) and position in labels
    count: Int64s  # (n_pairs,) and how often
    majority: Int64s  # (n_buckets,) entries of the largest class


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Segments without what was removed, and the tree of their buckets."""

    views: tuple[View, ...]  # the oldest first; an item lies in exactly one of them
    tree: BucketTree
    shape: CodeShape
    dim: int
    with_labels: bool
    next_id: int  # larger than every id that was ever here
    unit_length: bool = False  # whether vectors are scaled to length 1 when they are added
    recent: Recent | None = None  # the last segments, if they are not in the tree
    first_pass: str | None = None  # "int8": every segment has codes
    dtype: str = "float32"  # of the vectors, or "float16"

    @cached_property
    def n_settled(self) -> int:
        """Number of segments whose buckets are in the tree."""
        return len(self.views) - (self.recent.n_views if self.recent else 0)

    @cached_property
    def settled(self) -> Snapshot:
        """The same with all buckets in one tree."""
        if self.recent is None:
            return self
        tree = build_tree(self.views, self.shape, self.tree)
        return replace(self, tree=tree, recent=None)

    @cached_property
    def n_items(self) -> int:
        """Number of items."""
        return sum(view.n_items for view in self.views)

    @cached_property
    def n_numbers(self) -> int:
        """Numbers in the vectors of all items."""
        return self.n_items * self.dim

    @cached_property
    def any_several(self) -> bool:
        """Whether an item may have several entries."""
        return any(view.segment.items is not None for view in self.views)

    @cached_property
    def max_norm(self) -> float:
        """A bound of the norms of all vectors, with what float32 squares may have lost."""
        hidden = 1e-18 * float(np.sqrt(self.dim))
        return max((view.segment.max_norm for view in self.views), default=0.0) + hidden

    @cached_property
    def table(self) -> Int64s:
        """Where everything is that a kernel needs, see ``layout.py``."""
        return describe(self)

    def contains(self, ids: Int64s) -> npt.NDArray[np.bool_]:
        """Return for each id whether there is such an item."""
        present = np.zeros(len(ids), dtype=np.bool_)
        for view in self.views:
            present[view.entries_of(ids)[1]] = True
        return present

    def labels_of(self, ids: Int64s) -> Int64s:
        """Return the label of each item; -1 if it has none or is not here."""
        labels = np.full(len(ids), NO_LABEL, dtype=np.int64)
        for view in self.views if self.with_labels else ():
            entries, position = view.entries_of(ids)
            if len(entries) and view.segment.labels is not None:
                view.segment.check.section("labels")
                labels[position] = view.segment.labels[entries]
        return labels

    def entries(self) -> tuple[Int64s, Int64s, npt.NDArray[Any] | None]:
        """Return of all live entries the number of the bucket, the id, and the label.

        As :attr:`class_counts`, for a snapshot that is ``settled``.
        """
        empty: npt.NDArray[Any] = np.empty(0, dtype=np.int64)
        numbers, ids, labels = [empty], [empty], [empty]
        for view in self.views:
            segment, live = view.segment, view.live_entries()
            segment.check.ids()
            segment.check.section("labels")
            own = np.searchsorted(self.tree.buckets, segment.buckets)
            numbers.append(np.repeat(own, np.diff(segment.offsets))[live])
            ids.append(segment.ids[live])
            if segment.labels is not None:
                labels.append(segment.labels[live])
        classes = np.concatenate(labels) if self.with_labels else None
        return np.concatenate(numbers), np.concatenate(ids), classes

    @cached_property
    def class_counts(self) -> ClassCounts | None:
        """Classes per bucket; None without labels."""
        numbers, _, labels = self.entries()
        if labels is None:
            return None
        labelled = labels != NO_LABEL
        classes, codes = np.unique(labels[labelled], return_inverse=True)
        n_classes = max(len(classes), 1)
        pairs, counts = np.unique(numbers[labelled] * n_classes + codes, return_counts=True)
        number, code = pairs // n_classes, pairs % n_classes
        majority = np.zeros(len(self.tree.buckets), dtype=np.int64)
        np.maximum.at(majority, number, counts)
        return ClassCounts(classes.astype(np.int64), number, code, counts, majority)

    def with_items(self, items: Items) -> Snapshot:
        """Append a segment, and merge from the end while neighbours are of similar size."""
        if len(items.ids) == 0:
            return self
        views = [*self.views, self._view(build_segment(items, self.dtype))]
        last = views[self.n_settled :]
        if len(self.tree.buckets) >= _LARGE and _RECENT < _entries(last) <= 2 * _RECENT:
            # They are about to become part of the large tree: as one segment, which is merged
            # again, and the tree rebuilt, only after as many more.
            views[self.n_settled :] = [self._view(merge_segments(last))]
        while len(views) > 1 and views[-2].n_items < _GROWTH * views[-1].n_items:
            if views[-2].segment.check.stays_apart:
                break
            views[-2:] = [self._view(merge_segments(views[-2:]))]
        return self.with_views(views, max(self.next_id, int(items.ids.max()) + 1))

    def with_first_pass(self, first_pass: str | None) -> Snapshot:
        """Return the same items with codes, or without."""
        if first_pass == self.first_pass:
            return self
        views = []
        for view in self.views:
            view.segment.check.blocks()
            segment = view.segment.with_first_pass(first_pass)
            views.append(replace(view, segment=segment, removed_uid=uuid4().hex))
        return replace(self, first_pass=first_pass).with_views(views, self.next_id)

    def _view(self, segment: Segment) -> View:
        return View(segment.with_first_pass(self.first_pass) if self.first_pass else segment)

    def without(self, ids: Int64s) -> Snapshot:
        """Remove items, which must be here."""
        views = []
        for view in self.views:
            entries, position = view.entries_of(ids)
            n_items = len(np.unique(position))
            views.append(view.without(entries, n_items) if n_items else view)
        return self.with_views([view for view in views if view.n_items > 0], self.next_id)

    def compacted(self) -> Snapshot:
        """Put everything into one segment without removed entries; may return itself."""
        if len(self.views) == 0 or (len(self.views) == 1 and len(self.views[0].removed) == 0):
            return self
        return self.with_views([self._view(merge_segments(self.views))], self.next_id)

    def with_views(self, views: Sequence[View], next_id: int) -> Snapshot:
        """Put other segments in the place of these."""
        settled, last = self.views[: self.n_settled], views[self.n_settled :]
        tree, recent = None, None
        if len(self.tree.buckets) >= _LARGE and _entries(last) <= _RECENT:
            tree = _same_buckets(self.tree, settled, views)
        if tree is None:
            tree = build_tree(views, self.shape, self.tree)
        elif last:
            own = build_tree(last, self.shape, None)
            recent = Recent(len(last), own, np.searchsorted(tree.buckets, own.buckets))
        return replace(self, views=tuple(views), tree=tree, recent=recent, next_id=next_id)


def _entries(views: Sequence[View]) -> int:
    return sum(view.segment.n_entries for view in views)


def _same_buckets(tree: BucketTree, old: Sequence[View], new: Sequence[View]) -> BucketTree | None:
    """Return a tree for views that begin with the same segments; None if they do not."""
    pairs = list(zip(old, new, strict=False))
    if len(new) < len(old) or any(a.segment is not b.segment for a, b in pairs):
        return None
    live = tree.live
    for number, (before, after) in enumerate(pairs):
        if after is before:
            continue
        live = live.copy() if live is tree.live else live
        if after.last_change is not None and after.last_change[0] == before.removed_uid:
            buckets = after.segment.buckets[after.last_change[1]]
            np.subtract.at(live, np.searchsorted(tree.buckets, buckets), 1)
        else:  # a filter
            at = slice(None) if tree.rows is None else np.flatnonzero(tree.rows[number] >= 0)
            live[at] += after.live_per_bucket - before.live_per_bucket
    return tree if live is tree.live else replace(tree, live=live)


def empty_snapshot(
    shape: CodeShape, dim: int, with_labels: bool = False, unit_length: bool = False,
    first_pass: str | None = None, dtype: str = "float32",
) -> Snapshot:  # fmt: skip
    """Return an index without items."""
    tree = build_tree((), shape, None)
    return Snapshot((), tree, shape, dim, with_labels, 0, unit_length, None, first_pass, dtype)
