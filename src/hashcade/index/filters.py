"""Filters: a snapshot of only the items that pass, so that a search needs no code for filters.

If few items pass, they are copied into one bucket, which is searched exhaustively. If many pass,
all others are marked as removed in views of the same segments, and the tree counts the live entries
of each bucket: buckets without are not visited. Scattered reads take several times as long as
sequential ones; so once a filter had as many candidates as items pass, the items are copied too,
bucket by bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from hashcade.codes import CodeShape
from hashcade.index.segment import Int64s, Items, View, as_float32, merge_segments
from hashcade.index.snapshot import Snapshot, empty_snapshot

# If this many items or fewer pass, all of them are compared.
EXACT_MATCHES = 2_000
# Up to this share of all entries those that pass are copied for later searches.
_COPIED_SHARE = 0.6
# Codes that are ranked for a query: the number needed if items pass at random, times this, because
# they do not.
_MARGIN = 2
_MOST_RANKED = 2048
# Ids are looked up one by one if there are this many entries per id; else all entries are tested.
_FEW_IDS = 32


class Filter:
    """Ids that a search may return, for any number of searches; see ``HashIndex.make_filter``.

    The index may change in between: only new segments are filtered again.
    """

    def __init__(self, ids: Int64s) -> None:
        self.ids = ids
        self._last: Passing | None = None

    def passing(self, snapshot: Snapshot) -> Passing:
        """The items of a snapshot that pass."""
        last, snapshot = self._last, snapshot.with_one_tree
        if last is None or last.snapshot is not snapshot:
            cached = {} if last is None else last.entries
            last = self._last = Passing(snapshot, self.ids, cached)
        return last

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Filter({len(self)} ids)"


class Passing:
    """The items of one snapshot that pass a filter; ``cached`` are entries of earlier views."""

    def __init__(self, snapshot: Snapshot, ids: Int64s, cached: Mapping[View, Int64s]) -> None:
        self.snapshot = snapshot
        self.entries = {
            view: cached[view] if view in cached else _entries(view, ids) for view in snapshot.views
        }
        self._counts = [_count_items(view, entries) for view, entries in self.entries.items()]
        self.n_items = sum(self._counts)
        self._n_candidates = 0

    @property
    def in_buckets(self) -> Snapshot:
        """The items in their buckets: a copy if it pays off, else a mask."""
        n_passing = sum(map(len, self.entries.values()))
        n_entries = sum(view.segment.n_entries for view in self.entries)
        pays_off = self._n_candidates > n_passing and n_passing <= _COPIED_SHARE * n_entries
        is_local = not any(view.segment.check.stays_apart for view in self.entries)
        return self.copied if pays_off and is_local else self.masked

    def count_candidates(self, n_candidates: int) -> None:
        """Count the candidates of a search; approximate with several threads, which is enough."""
        self._n_candidates += n_candidates

    def n_ranked(self, n_probe: int) -> int:
        """How many codes should be ranked for a search in the best ``n_probe``."""
        if self.n_items <= EXACT_MATCHES:
            return n_probe
        n_expected = _MARGIN * n_probe * self.snapshot.n_items // self.n_items
        return max(n_probe, min(n_expected, _MOST_RANKED))

    @cached_property
    def gathered(self) -> Snapshot:
        """Copies of the items, in a snapshot with one bucket."""
        ids, vectors = [np.empty(0, np.int64)], [np.empty((0, self.snapshot.dim), np.float32)]
        for view, entries in self.entries.items():
            segment = view.segment
            if segment.items is not None:  # one entry per item
                entries = entries[np.unique(segment.items[entries], return_index=True)[1]]
            entries = np.sort(entries)
            segment.check.first_pass(np.unique(segment.rows_of(entries)))
            segment.check.vectors(entries)
            ids.append(segment.ids[entries])
            vectors.append(as_float32(segment.vectors[entries]))
        all_ids = np.concatenate(ids)
        items = Items(all_ids, np.zeros((len(all_ids), 1), np.int64), np.concatenate(vectors), None)
        return empty_snapshot(CodeShape(width=1, depth=1), self.snapshot.dim).with_items(items)

    @cached_property
    def masked(self) -> Snapshot:
        """The snapshot with all other items removed."""
        views = []
        for (view, entries), n_items in zip(self.entries.items(), self._counts, strict=True):
            segment = view.segment
            removed = np.ones(segment.n_entries, np.uint8)
            removed[entries] = 0
            masked = View(segment, removed, segment.n_items - n_items)
            # Counted by the entries: counting in the mask would read all of it.
            masked.__dict__["live_per_bucket"] = np.diff(np.searchsorted(entries, segment.offsets))
            views.append(masked)
        return self.snapshot.with_views(views, self.snapshot.next_id)

    @cached_property
    def copied(self) -> Snapshot:
        """Copies of the items in the same buckets, under the same numbers."""
        masked = self.masked
        segment = merge_segments(masked.views)
        rows = np.full((1, len(masked.tree.buckets)), -1, np.int32)
        positions = np.searchsorted(masked.tree.buckets, segment.buckets)
        rows[0, positions] = np.arange(len(positions), dtype=np.int32)
        return replace(masked, views=(View(segment),), tree=replace(masked.tree, rows=rows))


def _entries(view: View, ids: Int64s) -> Int64s:
    """Return the live entries of these items, ascending."""
    view.segment.check.ids()  # also for kernels, which use item numbers as indices
    if _FEW_IDS * len(ids) < view.segment.n_entries:
        return np.sort(view.entries_of(np.unique(ids))[0])
    passes = np.isin(view.segment.ids, ids)
    if len(view.removed) > 0:
        passes &= view.removed == 0
    return np.flatnonzero(passes)


def _count_items(view: View, entries: Int64s) -> int:
    items = view.segment.items
    return len(entries) if items is None else len(np.unique(items[entries]))
