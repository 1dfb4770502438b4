"""Segments: entries sorted by bucket, and the snapshot that a search looks at.

An entry is one item in one bucket. A segment is an immutable batch of entries, bucket after
bucket, in the order in which they came within a bucket; with ``sparsity`` s an item has s
entries, each with a copy of the vector, so that a bucket is one block that is read in sequence
and can be kept, checked and moved by itself. It costs s times the memory of the vectors.

An index is a short list of segments, the oldest first. Adding appends a small one and merges
neighbours of similar size, so there are about log2(n) of them at most; removing marks entries
in a copy of a mask. Nothing that a running search looks at is ever written to.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.index import _kernel as kernel

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]


def aligned_empty(n: int, dim: int) -> Float32s:
    """Return an uninitialised float32[n, dim] that starts at a cache line."""
    raw = np.empty(n * dim + 16, dtype=np.float32)
    skip = (-raw.ctypes.data // 4) % 16
    return raw[skip : skip + n * dim].reshape(n, dim)


def new_uid() -> str:
    """Return a name that nothing else has, for a file that is written once."""
    return uuid.uuid4().hex


class BlockCheck:
    """What a stored segment asks before its blocks are used; memory needs no such thing.

    Attributes
    ----------
    checked : bool[n_buckets]
        Which blocks were found right. Always the same array.
    done : bool
        Whether all were.
    """

    checked: npt.NDArray[np.bool_]
    done: bool

    def buckets(self, segment: Segment, which: Int64s) -> None:
        """Raise ``CorruptIndexError`` unless these blocks are what was written."""

    def section(self, segment: Segment, name: str) -> None:
        """Raise ``CorruptIndexError`` unless this array is what was written."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Entries sorted by bucket.

    Attributes
    ----------
    buckets : int64[n_buckets]
        Ids of the occupied buckets, ascending.
    offsets : int64[n_buckets + 1]
        Entries of bucket number b are ``offsets[b]..offsets[b + 1] - 1``.
    ids : int64[n_entries]
    vectors : float32[n_entries, dim]
    labels : int32 or int64[n_entries], or None
    items : int32[n_entries], or None
        Number of the entry's item within the segment. None if every item has one entry.
    n_items : int
    max_norm : float
        The largest euclidean norm of a vector, which bounds the error of fast inner products.
    """

    buckets: Int64s
    offsets: Int64s
    ids: Int64s
    vectors: Float32s
    labels: npt.NDArray[Any] | None
    items: npt.NDArray[np.int32] | None
    n_items: int
    max_norm: float
    uid: str = field(default_factory=new_uid)
    check: BlockCheck | None = None
    _cache: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for array in (self.buckets, self.offsets, self.ids, self.vectors, self.labels, self.items):
            if array is not None:
                array.flags.writeable = False

    @property
    def n_entries(self) -> int:
        """Number of entries, removed ones included."""
        return len(self.ids)

    def entries_of(self, ids: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Entries of the items with these (unique) ids, and which ids are here at all."""
        if "order" not in self._cache:
            if self.check is not None:
                self.check.section(self, "ids")
            order = np.argsort(self.ids, kind="stable")
            small = self.n_entries < 2**31
            self._cache["order"] = order.astype(np.int32) if small else order
        order = self._cache["order"]
        low = np.searchsorted(self.ids, ids, side="left", sorter=order)
        high = np.searchsorted(self.ids, ids, side="right", sorter=order)
        found = high > low
        spans = [order[a:b] for a, b in zip(low[found], high[found], strict=True)]
        entries = np.concatenate(spans) if spans else np.empty(0, dtype=np.int64)
        return entries.astype(np.int64), found

    def buckets_of(self, entries: Int64s) -> Int64s:
        """Numbers of the buckets that entries lie in."""
        return np.searchsorted(self.offsets, entries, side="right") - 1


def build_segment(
    bucket_ids: Int64s, vectors: Float32s, ids: Int64s, labels: npt.NDArray[Any] | None
) -> Segment:
    """Sort items into a segment.

    Parameters
    ----------
    bucket_ids : int64[n, s]
        The buckets of each item. A bucket that is named twice for an item counts once.
    vectors : float32[n, dim]
    ids : int64[n]
    labels : int[n] or None
    """
    n, several = bucket_ids.shape
    entry_item = np.arange(n, dtype=np.int64)
    flat = bucket_ids[:, 0]
    if several > 1:
        ordered = np.sort(bucket_ids, axis=1)
        first = np.ones((n, several), dtype=np.bool_)
        first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        entry_item = np.repeat(entry_item, several).reshape(n, several)[first]
        flat = ordered[first]
    order = np.argsort(flat, kind="stable")
    rows = entry_item[order]
    return _assemble(flat[order], rows, n, several > 1, vectors, ids, labels)


def merge_segments(views: Iterable[View]) -> Segment:
    """Put the live entries of several segments into one, the order within a bucket kept."""
    parts = [(view, view.live_entries()) for view in views]
    for view, _ in parts:
        if view.segment.check is not None:
            view.segment.check.buckets(view.segment, np.arange(len(view.segment.buckets)))
    flat = np.concatenate(
        [v.segment.buckets[v.segment.buckets_of(entries)] for v, entries in parts]
    )
    order = np.argsort(flat, kind="stable")
    ids = np.concatenate([v.segment.ids[entries] for v, entries in parts])[order]
    with_labels = all(v.segment.labels is not None for v, _ in parts)
    labels = None
    if with_labels:
        labels = np.concatenate([_labels(v.segment)[entries] for v, entries in parts])[order]
    dim = parts[0][0].segment.vectors.shape[1]
    target = np.empty(len(order), dtype=np.int64)
    target[order] = np.arange(len(order))
    vectors = aligned_empty(len(order), dim)
    at = 0
    for view, entries in parts:  # one copy, straight to its place
        vectors[target[at : at + len(entries)]] = view.segment.vectors[entries]
        at += len(entries)
    several = any(v.segment.items is not None for v, _ in parts)
    items, n_items = None, len(ids)
    if several:
        unique, inverse = np.unique(ids, return_inverse=True)
        items, n_items = inverse.astype(np.int32), len(unique)
    buckets, offsets = _runs(flat[order])
    norm = max((v.segment.max_norm for v, _ in parts), default=0.0)
    return Segment(buckets, offsets, ids, vectors, labels, items, n_items, norm)


def _assemble(
    flat: Int64s, rows: Int64s, n: int, several: bool,
    vectors: Float32s, ids: Int64s, labels: npt.NDArray[Any] | None,
) -> Segment:  # fmt: skip
    buckets, offsets = _runs(flat)
    placed = aligned_empty(len(rows), vectors.shape[1])
    np.take(vectors, rows, axis=0, out=placed)
    if labels is not None:
        labels = _compact_labels(labels)[rows]
    items = rows.astype(np.int32) if several else None
    return Segment(buckets, offsets, ids[rows], placed, labels, items, n, largest_norm(vectors))


def _runs(flat: Int64s) -> tuple[Int64s, Int64s]:
    starts = np.flatnonzero(np.r_[True, flat[1:] != flat[:-1]]) if len(flat) else np.empty(0, int)
    return flat[starts], np.r_[starts, len(flat)].astype(np.int64)


def _labels(segment: Segment) -> npt.NDArray[Any]:
    assert segment.labels is not None
    return segment.labels


def _compact_labels(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    bound = np.iinfo(np.int32)
    if len(labels) == 0 or (labels.min() >= bound.min and labels.max() <= bound.max):
        return labels.astype(np.int32)
    return labels


def largest_norm(vectors: Float32s) -> float:
    """Return the largest norm, rounded up, chunk by chunk."""
    largest = 0.0
    for at in range(0, len(vectors), 65536):
        chunk = vectors[at : at + 65536]
        squares = np.einsum("ij,ij->i", chunk, chunk)
        if not np.isfinite(squares).all():  # beyond float32
            squares = np.einsum("ij,ij->i", chunk, chunk, dtype=np.float64)
        largest = max(largest, float(squares.max()))
    return float(np.sqrt(largest) * (1 + 1e-4))


@dataclass(frozen=True, eq=False)
class View:
    """A segment without what was removed from it.

    ``dead`` is uint8[n_entries], non-zero for removed entries, or empty if nothing was.
    """

    segment: Segment
    dead: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    n_dead_items: int = 0
    dead_uid: str = ""

    def __post_init__(self) -> None:
        self.dead.flags.writeable = False

    @property
    def n_items(self) -> int:
        """Number of items that are still there."""
        return self.segment.n_items - self.n_dead_items

    def live_entries(self) -> Int64s:
        """Positions of the entries that are still there."""
        if len(self.dead) == 0:
            return np.arange(self.segment.n_entries)
        return np.flatnonzero(self.dead == 0)

    @cached_property
    def live_per_bucket(self) -> Int64s:
        """Entries per bucket of the segment, removed ones not counted."""
        sizes = np.diff(self.segment.offsets)
        if len(self.dead) == 0:
            return sizes
        gone = np.add.reduceat(self.dead.astype(np.int64), self.segment.offsets[:-1])
        return np.asarray(sizes - gone)

    @cached_property
    def table(self) -> Int64s:
        """Where the entries are, for ``scan_segment`` in ``_kernel.py``."""
        segment, dead = self.segment, self.dead
        table = np.zeros(kernel.TABLE_LENGTH, dtype=np.int64)
        table[kernel.N_ENTRIES] = segment.n_entries
        table[kernel.VECTORS] = segment.vectors.ctypes.data
        table[kernel.IDS] = segment.ids.ctypes.data
        table[kernel.N_DEAD], table[kernel.DEAD] = len(dead), dead.ctypes.data
        return table

    def without(self, entries: Int64s, n_items: int) -> View:
        """Return the view with these entries, which belong to ``n_items`` items, removed."""
        dead = self.dead.copy() if len(self.dead) else np.zeros(self.segment.n_entries, np.uint8)
        dead[entries] = 1
        view = View(self.segment, dead, self.n_dead_items + n_items, new_uid())
        # Counted on from what is known: to count anew would read the whole mask.
        live = self.live_per_bucket.copy()
        np.subtract.at(live, self.segment.buckets_of(entries), 1)
        view.__dict__["live_per_bucket"] = live
        return view
