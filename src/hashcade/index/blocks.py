"""The entries of an index bucket by bucket, as of one segment, for other stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hashcade.index.segment import CHECK_BATCH, Float32s, Int64s, Labels, View, as_float32


class Block(NamedTuple):
    """The entries of one bucket."""

    bucket: int
    ids: Int64s  # (n,)
    items: npt.NDArray[np.int32] | None  # (n,) numbers, None: every item has one entry
    labels: Labels | None  # (n,)
    vectors: Float32s  # (n, dim)

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays by their names, in the order of the checksum."""
        names = ("ids", "items", "labels", "vectors")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def blocks_of(views: Sequence[View]) -> Iterator[Block]:
    """See ``HashIndex.blocks``; ordered and numbered as by ``merge_segments``."""
    if not views:
        return
    numbers = None
    if any(view.segment.items is not None for view in views):
        for view in views:
            view.segment.check.ids()
        numbers = np.unique(np.concatenate([v.segment.ids[v.live_entries()] for v in views]))
    dtypes = [view.segment.labels.dtype for view in views if view.segment.labels is not None]
    dtype = np.result_type(*dtypes) if dtypes else None
    buckets = np.unique(np.concatenate([view.segment.buckets for view in views]))
    for start in range(0, len(buckets), CHECK_BATCH):
        batch = buckets[start : start + CHECK_BATCH]
        for view in views:
            low = np.searchsorted(view.segment.buckets, batch[0])
            high = np.searchsorted(view.segment.buckets, batch[-1], "right")
            view.segment.check.blocks(np.arange(low, high))
        for bucket in batch.tolist():
            block = _block(views, bucket, numbers, dtype)
            if len(block.ids):
                yield block


def _block(views: Sequence[View], bucket: int, numbers: Int64s | None, dtype: Any) -> Block:
    parts = []
    for view in views:
        segment = view.segment
        row = int(np.searchsorted(segment.buckets, bucket))
        if row < len(segment.buckets) and segment.buckets[row] == bucket:
            start, stop = segment.offsets[row : row + 2].tolist()
            parts.append((segment, view.live_entries(start, stop)))
    ids = np.concatenate([segment.ids[live] for segment, live in parts])
    items = None if numbers is None else np.searchsorted(numbers, ids).astype(np.int32)
    labels: Labels | None = None
    if dtype is not None:
        label_parts = [s.labels[e] for s, e in parts if s.labels is not None]
        labels = np.concatenate(label_parts, dtype=dtype)
    vectors = np.concatenate([as_float32(segment.vectors[live]) for segment, live in parts])
    return Block(bucket, ids, items, labels, vectors)
