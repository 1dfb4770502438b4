"""What an index looks like from above: how full, how even, how pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.index._search import checked_request, make_plan
from hashcade.index._snapshot import Snapshot
from hashcade.index._table import Int64s

_SAMPLE = 2000


def live_table(
    snapshot: Snapshot,
) -> tuple[Int64s, Int64s, npt.NDArray[Any] | None]:
    """Return of all live entries the number of the bucket, the id, and the label."""
    numbers, ids, labels = [], [], []
    for view in snapshot.views:
        segment = view.segment
        if segment.check is not None:
            for name in ("ids", "labels"):
                if getattr(segment, name) is not None:
                    segment.check.section(segment, name)
        entries = view.live_entries()
        own = np.searchsorted(snapshot.directory.buckets, segment.buckets)
        numbers.append(np.repeat(own, np.diff(segment.offsets))[entries])
        ids.append(segment.ids[entries])
        if segment.labels is not None:
            labels.append(segment.labels[entries])
    if not numbers:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty if snapshot.with_labels else None
    joined = np.concatenate(labels) if snapshot.with_labels else None
    return np.concatenate(numbers), np.concatenate(ids), joined


def stats(snapshot: Snapshot) -> dict[str, Any]:
    """See ``HashIndex.stats``."""
    sizes = snapshot.directory.live[snapshot.directory.live > 0]
    n, n_entries, n_buckets = snapshot.n_items, int(sizes.sum()), snapshot.shape.n_buckets
    numbers, ids, labels = live_table(snapshot)
    candidates = _expected_candidates(snapshot, sizes, numbers, ids)
    memory = _memory(snapshot)
    result: dict[str, Any] = {
        "n_items": n,
        "n_entries": n_entries,
        "dim": snapshot.dim,
        "n_buckets": n_buckets,
        "n_occupied": len(sizes),
        "empty_share": 1.0 - len(sizes) / n_buckets,
        "largest_bucket": int(sizes.max(initial=0)),
        "mean_bucket": n_entries / len(sizes) if len(sizes) else 0.0,
        "gini": gini(sizes, n_buckets),
        "expected_candidates": candidates,
        "expected_speedup": n / candidates if candidates else 0.0,
        "n_segments": len(snapshot.views),
        "n_removed_entries": int(sum(view.dead.sum() for view in snapshot.views)),
        "bytes_vectors": memory[0],
        "bytes_other": memory[1],
    }
    if labels is not None:
        result.update(_classes(numbers, labels))
    return result


def gini(sizes: Int64s, n_buckets: int) -> float:
    """Return the Gini coefficient of bucket sizes, empty buckets included.

    0: all buckets are equally full. Near 1: everything lies in a few.
    """
    total = int(sizes.sum())
    if total == 0:
        return 0.0
    # With ranks 1..m in ascending order: G = 2 Σ rank·size / (m Σ size) - (m + 1) / m. The empty
    # buckets have the lowest ranks and add nothing to the sum.
    ordered = np.sort(sizes).astype(np.float64)
    ranks = np.arange(1, len(ordered) + 1) + float(n_buckets - len(ordered))
    return float(2 * (ranks * ordered).sum() / (n_buckets * total) - (n_buckets + 1) / n_buckets)


def _expected_candidates(snapshot: Snapshot, sizes: Int64s, numbers: Int64s, ids: Int64s) -> float:
    """Return the mean number of items in the buckets of an item."""
    if len(ids) == 0:
        return 0.0
    if not snapshot.any_several:
        return float((sizes.astype(np.float64) ** 2).sum() / sizes.sum())
    # Several buckets overlap, so items are counted, for a sample at regular distances.
    order = np.argsort(ids, kind="stable")
    unique, starts = np.unique(ids[order], return_index=True)
    chosen = np.unique(np.linspace(0, len(unique) - 1, _SAMPLE).astype(np.int64))
    ends = np.append(starts[1:], len(ids))
    width = int((ends - starts).max())
    rows = np.empty((len(chosen), width), dtype=np.int64)
    for row, k in enumerate(chosen):
        own = snapshot.directory.buckets[numbers[order[starts[k] : ends[k]]]]
        rows[row] = np.resize(own, width)  # a bucket that is named twice counts once
    request = checked_request(
        snapshot, np.zeros((len(rows), snapshot.dim), dtype=np.float32), bucket_ids=rows,
        scores=None, n_neighbors=1, n_probe=None, max_candidates=None, fill="none",
        filter_ids=None, exclude_self=False, metric="euclidean", threads=1,
    )  # fmt: skip
    return float(make_plan(snapshot, request)[1].mean())


def _memory(snapshot: Snapshot) -> tuple[int, int]:
    """Return the bytes of the vectors, and of everything else."""
    directory, tree = snapshot.directory, snapshot.directory.tree
    vectors = sum(view.segment.vectors.nbytes for view in snapshot.views)
    arrays: dict[int, int] = {}
    for view in snapshot.views:
        segment = view.segment
        kept = [segment.ids, segment.labels, segment.items, segment.buckets, segment.offsets]
        for array in [*kept, view.dead, segment._cache.get("order")]:
            if array is not None:
                arrays[array.__array_interface__["data"][0]] = array.nbytes
    for array in (directory.buckets, directory.live, tree.slots, tree.children):
        arrays[array.__array_interface__["data"][0]] = array.nbytes
    if len(snapshot.views) > 1:  # with one segment they are parts of its offsets
        for array in (directory.starts, directory.stops):
            arrays[array.__array_interface__["data"][0]] = array.nbytes
    return vectors, sum(arrays.values())


def _classes(numbers: Int64s, labels: npt.NDArray[Any]) -> dict[str, Any]:
    """Return purity, overall and per class."""
    if len(labels) == 0:
        return {"purity": 0.0, "classes": {}}
    names, codes = np.unique(labels, return_inverse=True)
    n_classes = len(names)
    # Pairs of bucket and class that occur, and how often.
    pairs, counts = np.unique(numbers.astype(np.int64) * n_classes + codes, return_counts=True)
    bucket, code = pairs // n_classes, pairs % n_classes
    size = np.bincount(bucket, weights=counts)[bucket]
    majority = np.zeros(int(bucket.max()) + 1)
    np.maximum.at(majority, bucket, counts)
    n_of = np.bincount(code, weights=counts, minlength=n_classes)
    purity = np.bincount(code, weights=counts * counts / size, minlength=n_classes) / n_of
    n_in = np.bincount(code, minlength=n_classes)
    return {
        "purity": float(majority.sum() / len(labels)),
        "classes": {
            int(name): {
                "n_entries": int(n_of[k]),
                "n_buckets": int(n_in[k]),
                "purity": float(purity[k]),
            }
            for k, name in enumerate(names)
        },
    }
