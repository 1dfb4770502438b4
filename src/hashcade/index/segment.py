"""Segments: entries sorted by bucket.

An entry is one item in one bucket. A segment is an immutable batch of entries, sorted by bucket and
then by order of insertion; an item has an entry, with a copy of its vector, in each of its buckets,
so that a bucket is one contiguous block that is read in sequence and has its own checksum. Adding
appends a small segment and merges neighbours of similar size; removing marks entries in a copy of a
mask. Nothing that a running search reads is ever modified.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from hashcade.index.layout import describe_view
from hashcade.index.quantised import encode_int8

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Vectors = Float32s | npt.NDArray[np.float16]
Codes = npt.NDArray[np.int8]
Labels = npt.NDArray[np.int32] | npt.NDArray[np.int64]

NO_LABEL = -1
CHECK_BATCH = 256  # blocks that are checked at a time
_FEW_BUCKETS = 64  # with fewer than one bucket per so many entries, counts are cheap to copy


class Items(NamedTuple):
    """Items in the form in which an index stores them."""

    ids: Int64s  # (n,)
    bucket_ids: Int64s  # (n, sparsity)
    vectors: Float32s  # (n, dim)
    labels: Int64s | None  # (n,)


def aligned_empty(n: int, dim: int, dtype: npt.DTypeLike) -> Vectors:
    """Return an uninitialised array [n, dim] that is aligned to a cache line."""
    size = n * dim * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, dtype=np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + size].view(dtype).reshape(n, dim)


class NoCheck:
    """Checks before a segment is read: none for one in memory, see ``checksums.StoredCheck``."""

    checked: npt.NDArray[np.bool_] | None = None
    mapped = False  # whether arrays are in a mapped file without read-ahead
    stays_apart = False  # True: it is remote, and must not be merged into another segment
    # Which entries have local vectors; None: all. Otherwise a search finds by codes which it needs.
    vectors_here: npt.NDArray[np.bool_] | None = None

    def blocks(self, rows: Int64s | None = None) -> None:
        """Raise ``CorruptIndexError`` if a block of these buckets, or any, is damaged."""

    def first_pass(self, rows: Int64s) -> None:
        """The same for what a search reads first: these blocks, possibly without the vectors."""
        self.blocks(rows)

    def vectors(self, entries: Int64s) -> None:
        """Ensure that the vectors of these entries, ascending, are local; blocks were checked."""

    def ids(self) -> None:
        """Raise ``CorruptIndexError`` if ids or item numbers are damaged."""

    def section(self, name: str) -> None:
        """Raise ``CorruptIndexError`` if an array as a whole is damaged."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Entries sorted by bucket: bucket number b has entries ``offsets[b]..offsets[b + 1] - 1``."""

    vectors: Vectors  # (n_entries, dim)
    ids: Int64s  # (n_entries,)
    labels: Labels | None  # (n_entries,)
    items: npt.NDArray[np.int32] | None  # (n_entries,) numbers, None: every item has one entry
    buckets: Int64s  # (n_buckets,) ids of the occupied ones, ascending
    offsets: Int64s  # (n_buckets + 1,)
    n_items: int
    max_norm: float  # of the vectors: bounds the error of fast inner products
    uid: str = field(default_factory=lambda: uuid4().hex)
    check: NoCheck = field(default_factory=NoCheck)
    codes: Codes | None = None  # (n_entries, dim) for a first pass, see quantised.py
    code_bounds: Float32s | None = None  # (n_entries, 3)

    def __post_init__(self) -> None:
        for array in self.arrays.values():
            array.flags.writeable = False

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays by their names, in the order in which they are stored."""
        names = ("vectors", "codes", "code_bounds", "ids", "labels", "items", "buckets", "offsets")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def with_first_pass(self, first_pass: str | None) -> Segment:
        """Return the same entries with int8 codes for a first pass, or without."""
        codes = bounds = None
        if first_pass:
            parts = [encode_int8(as_float32(part)) for part in in_chunks(self.vectors)]
            codes, bounds = map(np.concatenate, zip(*parts, strict=True))
        return replace(self, codes=codes, code_bounds=bounds, uid=uuid4().hex)

    @property
    def n_entries(self) -> int:
        """Number of entries, removed ones included."""
        return len(self.ids)

    @cached_property
    def order_by_id(self) -> npt.NDArray[Any]:
        """Entries in ascending order of their ids; computed when an id is first looked up."""
        self.check.ids()
        order = np.argsort(self.ids, kind="stable")
        return order.astype(np.int32) if self.n_entries < 2**31 else order

    @cached_property
    def first_of_range(self) -> int | None:
        """The lowest id if the ids are a range, with one entry each, else None."""
        n, order = self.n_entries, self.order_by_id
        if n == 0 or n != self.n_items or self.ids[order[-1]] - self.ids[order[0]] != n - 1:
            return None
        return int(self.ids[order[0]])

    def rows_of(self, entries: Int64s) -> Int64s:
        """Return the numbers of the buckets of entries."""
        return np.searchsorted(self.offsets, entries, side="right") - 1


@dataclass(frozen=True, eq=False)
class View:
    """A segment and a mask of its ``removed`` entries, empty if there are none."""

    segment: Segment
    removed: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    n_removed_items: int = 0
    removed_uid: str = ""
    # Set by `without`: the removed_uid of the previous view, and the buckets of removed entries.
    last_change: tuple[str, Int64s] | None = None

    @property
    def n_items(self) -> int:
        """Number of live items."""
        return self.segment.n_items - self.n_removed_items

    @cached_property
    def row(self) -> list[int]:
        """Its row for ``layout.describe``: computed once, not after every change."""
        return describe_view(self)

    def live_entries(self, start: int = 0, stop: int | None = None) -> Int64s:
        """Return the live entries from ``start`` to ``stop - 1``."""
        stop = self.segment.n_entries if stop is None else stop
        if len(self.removed) == 0:
            return np.arange(start, stop)
        return start + np.flatnonzero(self.removed[start:stop] == 0)

    def entries_of(self, ids: Int64s) -> tuple[Int64s, Int64s]:
        """Return the live entries of these items, and for each its position in ``ids``."""
        order, all_ids = self.segment.order_by_id, self.segment.ids
        first = self.segment.first_of_range
        if first is not None:  # no search needed
            offsets = ids - first
            position = np.flatnonzero(offsets.view(np.uint64) < len(order))  # -1 is a large one
            entries = order[offsets[position]].astype(np.int64)
        else:
            low = np.searchsorted(all_ids, ids, "left", order)
            counts = np.searchsorted(all_ids, ids, "right", order) - low
            position = np.repeat(np.arange(len(ids)), counts)
            nth_entry = np.arange(len(position)) - np.repeat(np.cumsum(counts) - counts, counts)
            entries = order[low[position] + nth_entry].astype(np.int64)
        if len(self.removed) == 0:
            return entries, position
        live = self.removed[entries] == 0
        return entries[live], position[live]

    @cached_property
    def live_per_bucket(self) -> Int64s:
        """Entries per bucket of the segment, removed ones not counted."""
        sizes = np.diff(self.segment.offsets)
        if len(self.removed) == 0:
            return sizes
        n_removed = np.add.reduceat(self.removed.astype(np.int64), self.segment.offsets[:-1])
        return np.asarray(sizes - n_removed)

    def without(self, entries: Int64s, n_items: int) -> View:
        """Return the view with these entries, which belong to ``n_items`` items, removed."""
        is_empty = len(self.removed) == 0
        removed = np.zeros(self.segment.n_entries, np.uint8) if is_empty else self.removed.copy()
        removed[entries] = 1
        rows = self.segment.rows_of(entries)
        n_removed, change = self.n_removed_items + n_items, (self.removed_uid, rows)
        view = View(self.segment, removed, n_removed, uuid4().hex, change)
        if len(self.segment.buckets) < self.segment.n_entries // _FEW_BUCKETS:
            # Update the counts: counting again would read the whole mask.
            live = self.live_per_bucket.copy()
            np.subtract.at(live, rows, 1)
            view.__dict__["live_per_bucket"] = live
        return view


def build_segment(items: Items, dtype: npt.DTypeLike = np.float32) -> Segment:
    """Sort items into a segment. A duplicate bucket of an item counts once."""
    ids, bucket_ids, vectors, labels = items
    n, sparsity = bucket_ids.shape
    item_of_entry = np.arange(n, dtype=np.int64)
    bucket_of_entry = bucket_ids[:, 0]
    if sparsity > 1:
        ordered = np.sort(bucket_ids, axis=1)
        is_first = np.ones((n, sparsity), dtype=np.bool_)
        is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        item_of_entry = np.repeat(item_of_entry, sparsity).reshape(n, sparsity)[is_first]
        bucket_of_entry = ordered[is_first]
    order = np.argsort(bucket_of_entry, kind="stable")
    item_of_entry = item_of_entry[order]
    buckets, offsets = _group_bounds(bucket_of_entry[order])
    sorted_vectors = aligned_empty(len(item_of_entry), vectors.shape[1], dtype)
    np.take(vectors.astype(dtype, copy=False), item_of_entry, axis=0, out=sorted_vectors)
    classes: Any = None
    if labels is not None:
        fits_int32 = labels.max(initial=0) <= np.iinfo(np.int32).max  # they are never below -1
        classes = labels.astype(np.int32 if fits_int32 else np.int64)[item_of_entry]
    numbers = item_of_entry.astype(np.int32) if sparsity > 1 else None
    norm = largest_norm(vectors)
    return Segment(sorted_vectors, ids[item_of_entry], classes, numbers, buckets, offsets, n, norm)


def merge_segments(views: Sequence[View]) -> Segment:
    """Merge the live entries of several segments; the order within a bucket is kept."""
    for view in views:
        view.segment.check.blocks()
    parts = [(view.segment, view.live_entries()) for view in views]
    bucket_of_entry = np.concatenate([s.buckets[s.rows_of(entries)] for s, entries in parts])
    order = np.argsort(bucket_of_entry, kind="stable")
    ids = np.concatenate([s.ids[entries] for s, entries in parts])[order]
    labels: Labels | None = None
    if parts[0][0].labels is not None:
        labels = np.concatenate([s.labels[e] for s, e in parts if s.labels is not None])[order]
    target = np.empty(len(order), dtype=np.int64)
    target[order] = np.arange(len(order))
    old = parts[0][0].vectors
    vectors = aligned_empty(len(order), old.shape[1], old.dtype)
    start = 0
    for segment, entries in parts:  # copied once, straight to their place
        vectors[target[start : start + len(entries)]] = segment.vectors[entries]
        start += len(entries)
    items, n_items = None, len(ids)
    if any(segment.items is not None for segment, _ in parts):
        unique, inverse = np.unique(ids, return_inverse=True)
        items, n_items = inverse.astype(np.int32), len(unique)
    buckets, offsets = _group_bounds(bucket_of_entry[order])
    norm = max(segment.max_norm for segment, _ in parts)
    return Segment(vectors, ids, labels, items, buckets, offsets, n_items, norm)


def _group_bounds(buckets: Int64s) -> tuple[Int64s, Int64s]:
    """Return the unique ids of sorted bucket ids, and the bounds of their runs."""
    starts = np.flatnonzero(np.diff(buckets, prepend=-1))
    return buckets[starts], np.append(starts, len(buckets)).astype(np.int64)


def in_chunks(vectors: Vectors) -> Iterator[Vectors]:
    """Yield chunks of vectors that can be copied with little memory."""
    return (vectors[start : start + 65536] for start in range(0, max(len(vectors), 1), 65536))


def as_float32(vectors: Vectors) -> Float32s:
    """Return the same numbers as float32; a copy only if they are float16."""
    return vectors.astype(np.float32, copy=False)


def largest_norm(vectors: Float32s) -> float:
    """Return the largest norm, rounded up, chunk by chunk."""
    if len(vectors) == 0:
        return 0.0
    return max(range_of_norms(as_float32(part))[1] for part in in_chunks(vectors)) * (1 + 1e-4)


def range_of_norms(vectors: Float32s, *, exact: bool = False) -> tuple[float, float]:
    """Return the least and the largest norm; NaN if a value is."""
    squares: npt.NDArray[Any] = np.einsum("ij,ij->i", vectors, vectors)
    if exact or not np.isfinite(squares).all():  # beyond float32
        squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    least, largest = np.sqrt([squares.min(), squares.max()], dtype=np.float64).tolist()
    return least, largest
