"""The state of an index at one moment: never written to, only replaced as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hashcade.codes._shape import CodeShape
from hashcade.index import _kernel as kernel
from hashcade.index._directory import Directory, build_directory
from hashcade.index._table import Int64s, Segment, View, merge_segments


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Segments without what was removed, and the directory of their buckets.

    Attributes
    ----------
    views
        The oldest first. An item lies in exactly one of them.
    directory
    shape, dim, with_labels
        What was fixed when the index was built.
    next_id
        Larger than every id that was ever here: where ids that nobody chose go on.
    """

    views: tuple[View, ...]
    directory: Directory
    shape: CodeShape
    dim: int
    with_labels: bool
    next_id: int

    @cached_property
    def n_items(self) -> int:
        """Number of items."""
        return sum(view.n_items for view in self.views)

    @cached_property
    def any_dead(self) -> bool:
        """Whether anything was removed and is still in the way."""
        return any(len(view.dead) > 0 for view in self.views)

    @cached_property
    def any_several(self) -> bool:
        """Whether an item may have several entries."""
        return any(view.segment.items is not None for view in self.views)

    @cached_property
    def item_starts(self) -> Int64s:
        """First number of each segment's items when all are counted through."""
        return np.cumsum([0, *(view.segment.n_items for view in self.views)], dtype=np.int64)

    @cached_property
    def addresses(self) -> tuple[Int64s, Int64s]:
        """Addresses and lengths of ids, item numbers and removal masks, for the probing kernel."""
        where = np.zeros((len(self.views), 3), dtype=np.int64)
        lengths = np.zeros_like(where)
        for number, view in enumerate(self.views):
            for column, array in enumerate((view.segment.ids, view.segment.items, view.dead)):
                if array is not None and len(array) > 0:
                    where[number, column] = array.ctypes.data
                    lengths[number, column] = len(array)
        return where, lengths

    @cached_property
    def max_norm(self) -> float:
        """A bound of the norms of all vectors.

        Never below what underflow may have hidden when squares were summed in float32.
        """
        hidden = 1e-18 * float(np.sqrt(self.dim))
        return max((view.segment.max_norm for view in self.views), default=0.0) + hidden

    @cached_property
    def table(self) -> Int64s | None:
        """Where everything is that ``answer`` in ``_kernel.py`` needs; None if it cannot answer."""
        if len(self.views) != 1 or self.any_several:
            return None
        view, live = self.views[0], self.directory.live
        segment = view.segment
        checked = segment.check.checked if segment.check is not None else np.empty(0, np.bool_)
        table = view.table.copy()
        table[kernel.MAX_BUCKET_ID] = self.shape.n_buckets - 1
        table[kernel.N_BUCKETS] = len(segment.buckets)
        table[kernel.BUCKETS] = segment.buckets.ctypes.data
        table[kernel.OFFSETS] = segment.offsets.ctypes.data
        table[kernel.LIVE] = live.ctypes.data
        table[kernel.N_CHECKED], table[kernel.CHECKED] = len(checked), checked.ctypes.data
        return table

    # -- change: each returns a new snapshot ------------------------------------------------------

    def with_segment(self, segment: Segment, next_id: int) -> Snapshot:
        """Append a segment, and merge from the end while neighbours are of similar size."""
        views = [*self.views, View(segment)]
        while len(views) > 1 and _live(views[-2]) < 2 * _live(views[-1]):
            merged = merge_segments(views[-2:])
            views[-2:] = [View(merged)]
        return self._replaced(tuple(views), next_id)

    def with_views(self, views: tuple[View, ...]) -> Snapshot:
        """Put other views in place; those without any item are left out."""
        return self._replaced(tuple(view for view in views if view.n_items > 0), self.next_id)

    def compacted(self) -> Snapshot:
        """Put everything into one segment without removed entries; may return itself."""
        if len(self.views) == 0 or (len(self.views) == 1 and not self.any_dead):
            return self
        return self._replaced((View(merge_segments(self.views)),), self.next_id)

    def _replaced(self, views: tuple[View, ...], next_id: int) -> Snapshot:
        directory = build_directory(views, self.shape, self.directory)
        return Snapshot(views, directory, self.shape, self.dim, self.with_labels, next_id)


def _live(view: View) -> int:
    return view.n_items


def empty_snapshot(shape: CodeShape, dim: int, with_labels: bool) -> Snapshot:
    """Return an index without items."""
    return Snapshot((), build_directory((), shape), shape, dim, with_labels, 0)
