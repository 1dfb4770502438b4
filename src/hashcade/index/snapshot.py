"""The state of an index at one moment: immutable, and replaced as a whole.

The segments hold the entries, and the tree finds their buckets, which are numbered by their rank
among the occupied ones. A change to a large index does not rebuild its main tree: the last
segments, as long as they are small, have a separate recent tree, and a search uses both. So the
time of a change depends on its size, not on the number of buckets.
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
# From _LARGE buckets on the last segments, up to _RECENT entries, have a separate tree.
_LARGE = 2048
_RECENT = 1024


@dataclass(frozen=True, eq=False)
class BucketTree:
    """All occupied buckets of a snapshot.

    Nodes of all levels are in one array, level by level without the root; the last are the buckets.
    Children of node i are ``children[i]..children[i + 1] - 1``. ``rows`` are the numbers of the
    buckets within each segment, -1 for none; None for a single segment with the same buckets.
    """

    buckets: Int64s  # (n_buckets,) ids of the occupied ones, ascending
    rows: Int32s | None  # (n_segments, n_buckets)
    live: Int32s  # (n_buckets,) live entries; may be 0
    level_starts: Int64s  # (depth + 1,) the first node of each level, and the end
    slots: Int32s  # (n_nodes,) the slot that leads to each
    children: Int64s  # (n_inner_nodes + 1,)

    @cached_property
    def mean_bucket_size(self) -> float:
        """Entries in the bucket of an entry, on average."""
        live = self.live.astype(np.float64)
        return float((live**2).sum() / max(live.sum(), 1.0))

    @cached_property
    def largest_bucket(self) -> int:
        """Entries in the fullest bucket."""
        return int(self.live.max(initial=0))

    @cached_property
    def row(self) -> list[int]:
        """Its part of the table of ``layout.describe``."""
        return describe_tree(self)

    def below(self, path: Sequence[int], shape: CodeShape) -> tuple[int, int]:
        """Return the range of the numbers of the buckets below a node: first, and last + 1."""
        prefix = 0
        for slot in path:
            prefix = prefix * shape.width + slot
        span = shape.width ** (shape.depth - len(path))
        low = int(np.searchsorted(self.buckets, prefix * span))
        # (prefix + 1) * span may overflow int64, the last bucket does not.
        return low, int(np.searchsorted(self.buckets, prefix * span + (span - 1), "right"))


@dataclass(frozen=True, eq=False)
class Recent:
    """Buckets of the last segments. One that is in the main tree too has its number there."""

    n_views: int
    tree: BucketTree
    positions: Int64s  # (n_buckets,) positions of their ids in the main tree

    @cached_property
    def marks(self) -> npt.NDArray[np.uint8]:
        """A Bloom filter of ``positions``, by their low bits: it rules out most buckets."""
        marks = np.zeros(N_MARKS, np.uint8)
        marks[self.positions & (N_MARKS - 1)] = 1
        return marks


def build_tree(views: Sequence[View], shape: CodeShape, previous: BucketTree | None) -> BucketTree:
    """Build the tree of the buckets of all segments; nodes are reused if the buckets are equal."""
    rows = None
    if len(views) == 1:
        buckets = views[0].segment.buckets
        live = views[0].live_per_bucket.astype(np.int32)
    else:
        empty = np.empty(0, dtype=np.int64)
        buckets = np.concatenate([empty, *(view.segment.buckets for view in views)])
        buckets.sort(kind="stable")  # fast: each segment is sorted already
        buckets = buckets[np.diff(buckets, prepend=-1) != 0]
        rows = np.full((len(views), len(buckets)), -1, dtype=np.int32)
        live = np.zeros(len(buckets), dtype=np.int32)
        for number, view in enumerate(views):
            positions = np.searchsorted(buckets, view.segment.buckets)
            rows[number, positions] = np.arange(len(positions), dtype=np.int32)
            live[positions] += view.live_per_bucket
    if previous is not None and np.array_equal(previous.buckets, buckets):
        return replace(previous, rows=rows, live=live)
    prefixes = [buckets]  # from the last level up
    for _ in range(shape.depth - 1):
        prefixes.append(np.unique(prefixes[-1] // shape.width))
    prefixes.reverse()
    level_starts = np.cumsum([0, *map(len, prefixes)], dtype=np.int64)
    slots = np.concatenate([p % shape.width for p in prefixes]).astype(np.int32)
    children = [
        level_starts[level + 1] + np.searchsorted(lower // shape.width, upper)
        for level, (upper, lower) in enumerate(pairwise(prefixes))
    ]
    ends = np.concatenate([*children, level_starts[-1:]]).astype(np.int64)
    return BucketTree(buckets, rows, live, level_starts, slots, ends)


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Number of entries per (bucket, class) that occurs; those without a label do not count."""

    labels: Int64s  # (n_classes,)
    number: Int64s  # (n_pairs,) number of the bucket, ascending
    code: Int64s  # (n_pairs,) position in labels
    count: Int64s  # (n_pairs,) number of entries
    majority: Int64s  # (n_buckets,) entries of the largest class


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Segments with their removed entries masked, and the tree of their buckets."""

    views: tuple[View, ...]  # the oldest first; an item is in exactly one of them
    tree: BucketTree
    shape: CodeShape
    dim: int
    with_labels: bool
    next_id: int  # larger than every id that was ever in the index
    unit_length: bool = False  # whether vectors are scaled to length 1 when they are added
    recent: Recent | None = None  # the last segments, if they are not in the tree
    first_pass: str | None = None  # "int8": every segment has codes
    dtype: str = "float32"  # of the vectors, or "float16"

    @cached_property
    def n_main_views(self) -> int:
        """Number of segments whose buckets are in the main tree."""
        return len(self.views) - (self.recent.n_views if self.recent else 0)

    @cached_property
    def with_one_tree(self) -> Snapshot:
        """The same with all buckets in one tree."""
        if self.recent is None:
            return self
        tree = build_tree(self.views, self.shape, self.tree)
        return replace(self, tree=tree, recent=None)

    @cached_property
    def n_items(self) -> int:
        """Number of items."""
        return sum(view.n_items for view in self.views)

    @property
    def largest_bucket(self) -> int:
        """At least as many entries as the fullest bucket has."""
        return self.tree.largest_bucket + (self.recent.tree.largest_bucket if self.recent else 0)

    @cached_property
    def n_numbers(self) -> int:
        """Numbers in the vectors of all items."""
        return self.n_items * self.dim

    @cached_property
    def has_duplicates(self) -> bool:
        """Whether an item may have several entries."""
        return any(view.segment.items is not None for view in self.views)

    @cached_property
    def max_norm(self) -> float:
        """A bound of the norms of all vectors, with a margin for underflow of float32 squares."""
        margin = 1e-18 * float(np.sqrt(self.dim))
        return max((view.segment.max_norm for view in self.views), default=0.0) + margin

    @cached_property
    def table(self) -> Int64s:
        """Counts and addresses for the kernels, see ``layout.py``."""
        return describe(self)

    def contains(self, ids: Int64s) -> npt.NDArray[np.bool_]:
        """Return for each id whether there is such an item."""
        present = np.zeros(len(ids), dtype=np.bool_)
        for view in self.views:
            present[view.entries_of(ids)[1]] = True
        return present

    def labels_of(self, ids: Int64s) -> Int64s:
        """Return the label of each item; -1 if it has none or does not exist."""
        labels = np.full(len(ids), NO_LABEL, dtype=np.int64)
        for view in self.views if self.with_labels else ():
            entries, position = view.entries_of(ids)
            if len(entries) and view.segment.labels is not None:
                view.segment.check.section("labels")
                labels[position] = view.segment.labels[entries]
        return labels

    def entries(self) -> tuple[Int64s, Int64s, npt.NDArray[Any] | None]:
        """Return bucket number, id and label of all live entries.

        Like :attr:`class_counts` only for a snapshot :attr:`with_one_tree`.
        """
        empty: npt.NDArray[Any] = np.empty(0, dtype=np.int64)
        numbers, ids, labels = [empty], [empty], [empty]
        for view in self.views:
            segment, live = view.segment, view.live_entries()
            segment.check.ids()
            segment.check.section("labels")
            bucket_numbers = np.searchsorted(self.tree.buckets, segment.buckets)
            numbers.append(np.repeat(bucket_numbers, np.diff(segment.offsets))[live])
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
        last = views[self.n_main_views :]
        if len(self.tree.buckets) >= _LARGE and _RECENT < _entries(last) <= 2 * _RECENT:
            # They are about to enter the main tree: as one segment, which is merged again, and the
            # tree rebuilt, only after as many more entries.
            views[self.n_main_views :] = [self._view(merge_segments(last))]
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
        """Remove items, which must exist."""
        views = []
        for view in self.views:
            entries, position = view.entries_of(ids)
            n_items = len(np.unique(position))
            views.append(view.without(entries, n_items) if n_items else view)
        return self.with_views([view for view in views if view.n_items > 0], self.next_id)

    def compacted(self) -> Snapshot:
        """Merge everything into one segment without removed entries; may return itself."""
        if len(self.views) == 0 or (len(self.views) == 1 and len(self.views[0].removed) == 0):
            return self
        return self.with_views([self._view(merge_segments(self.views))], self.next_id)

    def with_views(self, views: Sequence[View], next_id: int) -> Snapshot:
        """Return a snapshot with other segments."""
        main_views, last = self.views[: self.n_main_views], views[self.n_main_views :]
        tree, recent = None, None
        if len(self.tree.buckets) >= _LARGE and _entries(last) <= _RECENT:
            tree = _same_buckets(self.tree, main_views, views)
        if tree is None:
            tree = build_tree(views, self.shape, self.tree)
        elif last:
            recent_tree = build_tree(last, self.shape, None)
            positions = np.searchsorted(tree.buckets, recent_tree.buckets)
            recent = Recent(len(last), recent_tree, positions)
        return replace(self, views=tuple(views), tree=tree, recent=recent, next_id=next_id)


def _entries(views: Sequence[View]) -> int:
    return sum(view.segment.n_entries for view in views)


def _same_buckets(tree: BucketTree, old: Sequence[View], new: Sequence[View]) -> BucketTree | None:
    """Return the tree for views that start with the same segments; None if they do not."""
    pairs = list(zip(old, new, strict=False))
    if len(new) < len(old) or any(a.segment is not b.segment for a, b in pairs):
        return None
    live = tree.live
    for number, (old_view, new_view) in enumerate(pairs):
        if new_view is old_view:
            continue
        live = live.copy() if live is tree.live else live
        if new_view.last_change is not None and new_view.last_change[0] == old_view.removed_uid:
            buckets = new_view.segment.buckets[new_view.last_change[1]]
            np.subtract.at(live, np.searchsorted(tree.buckets, buckets), 1)
        else:  # by a filter
            columns = slice(None) if tree.rows is None else np.flatnonzero(tree.rows[number] >= 0)
            live[columns] += new_view.live_per_bucket - old_view.live_per_bucket
    return tree if live is tree.live else replace(tree, live=live)


def empty_snapshot(
    shape: CodeShape, dim: int, with_labels: bool = False, unit_length: bool = False,
    first_pass: str | None = None, dtype: str = "float32",
) -> Snapshot:  # fmt: skip
    """Return a snapshot without items."""
    tree = build_tree((), shape, None)
    return Snapshot((), tree, shape, dim, with_labels, 0, unit_length, None, first_pass, dtype)
