"""The state of an index at one moment: never written to, only replaced as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape
from hashcade.index.bucket_tree import BucketTree, build_tree
from hashcade.index.layout import describe
from hashcade.index.segment import NO_LABEL, Int64s, Items, View, build_segment, merge_segments

# Neighbouring segments are merged while the older one is less than this many times as large.
_GROWTH = 2


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

    @cached_property
    def n_items(self) -> int:
        """Number of items."""
        return sum(view.n_items for view in self.views)

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
        return describe(self.views, self.tree, self.shape)

    @cached_property
    def work_per_bucket(self) -> float:
        """Numbers that a visit to a bucket reads, on average."""
        return self.tree.mean_bucket_size * self.dim

    # -- looking items up --------------------------------------------------------------------------

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
        """Return of all live entries the number of the bucket, the id, and the label."""
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

    # -- changes: each returns a new snapshot ------------------------------------------------------

    def with_items(self, items: Items) -> Snapshot:
        """Append a segment, and merge from the end while neighbours are of similar size."""
        if len(items.ids) == 0:
            return self
        views = [*self.views, View(build_segment(items))]
        while len(views) > 1 and views[-2].n_items < _GROWTH * views[-1].n_items:
            views[-2:] = [View(merge_segments(views[-2:]))]
        return self._replaced(views, max(self.next_id, int(items.ids.max()) + 1))

    def without(self, ids: Int64s) -> Snapshot:
        """Remove items, which must be here."""
        views = []
        for view in self.views:
            entries, position = view.entries_of(ids)
            n_items = len(np.unique(position))
            views.append(view.without(entries, n_items) if n_items else view)
        return self._replaced([view for view in views if view.n_items > 0], self.next_id)

    def compacted(self) -> Snapshot:
        """Put everything into one segment without removed entries; may return itself."""
        if len(self.views) == 0 or (len(self.views) == 1 and len(self.views[0].removed) == 0):
            return self
        return self._replaced([View(merge_segments(self.views))], self.next_id)

    def _replaced(self, views: list[View], next_id: int) -> Snapshot:
        tree = build_tree(views, self.shape, self.tree)
        return Snapshot(tuple(views), tree, self.shape, self.dim, self.with_labels, next_id)


def empty_snapshot(shape: CodeShape, dim: int, with_labels: bool) -> Snapshot:
    """Return an index without items."""
    return Snapshot((), build_tree((), shape), shape, dim, with_labels, 0)
