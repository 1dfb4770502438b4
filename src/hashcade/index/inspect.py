"""What an index looks like: from above in numbers, and item by item and node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.index.search import make_request, plan
from hashcade.index.segment import NO_LABEL, Int64s
from hashcade.index.snapshot import ClassCounts, Snapshot

_SAMPLE = 2000


# -- from above ------------------------------------------------------------------------------------


def stats(snapshot: Snapshot) -> dict[str, Any]:
    """See ``HashIndex.stats``."""
    sizes = snapshot.tree.live[snapshot.tree.live > 0]
    n, n_entries, n_buckets = snapshot.n_items, int(sizes.sum()), snapshot.shape.n_buckets
    candidates = _expected_candidates(snapshot)
    vectors, other = _memory(snapshot)
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
        "n_removed_entries": int(sum(view.removed.sum() for view in snapshot.views)),
        "bytes_vectors": vectors,
        "bytes_other": other,
    }
    if snapshot.class_counts is not None:
        result.update(_class_stats(snapshot.class_counts))
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


def _expected_candidates(snapshot: Snapshot) -> float:
    """Return the mean number of items in the buckets of an item."""
    if snapshot.n_items == 0:
        return 0.0
    if not snapshot.any_several:
        return snapshot.tree.mean_bucket_size
    # Several buckets overlap, so items are counted, for a sample at regular distances.
    numbers, ids, _ = snapshot.entries()
    order = np.argsort(ids, kind="stable")
    unique, starts = np.unique(ids[order], return_index=True)
    sample = np.unique(np.linspace(0, len(unique) - 1, _SAMPLE).astype(np.int64))
    ends = np.append(starts[1:], len(ids))
    width = int((ends - starts).max())
    rows = np.empty((len(sample), width), dtype=np.int64)
    for row, k in enumerate(sample):
        own = snapshot.tree.buckets[numbers[order[starts[k] : ends[k]]]]
        rows[row] = np.resize(own, width)  # a bucket that is named twice counts once
    queries = np.zeros((len(rows), snapshot.dim), dtype=np.float32)
    request = make_request(
        snapshot, queries, rows, None, 1, None, None, "none", None, False, "euclidean", 1
    )
    return float(plan(snapshot, request)[1].mean())


def _memory(snapshot: Snapshot) -> tuple[int, int]:
    """Return the bytes of the vectors, and of everything else."""
    tree = snapshot.tree
    vectors = sum(view.segment.vectors.nbytes for view in snapshot.views)
    arrays: list[npt.NDArray[Any] | None] = [tree.buckets, tree.rows, tree.live]
    arrays += [tree.slots, tree.children]
    for view in snapshot.views:
        segment = view.segment
        arrays += [segment.ids, segment.labels, segment.items, segment.buckets, segment.offsets]
        arrays += [view.removed, segment.__dict__.get("order_by_id")]
    sizes = {array.ctypes.data: array.nbytes for array in arrays if array is not None}
    return vectors, sum(sizes.values())


def _class_stats(counts: ClassCounts) -> dict[str, Any]:
    """Return purity, overall and per class."""
    if len(counts.labels) == 0:
        return {"purity": 0.0, "classes": {}}
    size = np.bincount(counts.number, weights=counts.count)[counts.number]
    n_entries = np.bincount(counts.code, weights=counts.count)
    n_buckets = np.bincount(counts.code)
    purity = np.bincount(counts.code, weights=counts.count**2 / size) / n_entries
    return {
        "purity": float(counts.majority.sum() / counts.count.sum()),
        "classes": {
            int(label): {
                "n_entries": int(n_entries[k]),
                "n_buckets": int(n_buckets[k]),
                "purity": float(purity[k]),
            }
            for k, label in enumerate(counts.labels)
        },
    }


# -- items and buckets -----------------------------------------------------------------------------


def item(snapshot: Snapshot, item_id: int) -> dict[str, Any]:
    """See ``HashIndex.item``."""
    for view in snapshot.views:
        entries, _ = view.entries_of(np.array([item_id], dtype=np.int64))
        if len(entries) == 0:
            continue
        segment = view.segment
        rows = segment.rows_of(entries)
        segment.check.blocks(np.unique(rows))
        label = NO_LABEL if segment.labels is None else int(segment.labels[entries[0]])
        return {
            "id": item_id,
            "label": None if label == NO_LABEL else label,
            "bucket_ids": np.sort(segment.buckets[rows]),
            "vector": np.array(segment.vectors[entries[0]]),
        }
    raise ValueError(f"id {item_id} not in the index")


def bucket_items(
    snapshot: Snapshot, bucket_id: int, start: int, limit: int
) -> tuple[Int64s, Int64s | None]:
    """See ``HashIndex.bucket``."""
    ids: list[npt.NDArray[Any]] = [np.empty(0, dtype=np.int64)]
    labels: list[npt.NDArray[Any]] = [np.empty(0, dtype=np.int64)]
    number = int(np.searchsorted(snapshot.tree.buckets, bucket_id))
    if number < len(snapshot.tree.buckets) and snapshot.tree.buckets[number] == bucket_id:
        for own_ids, own_labels in _bucket_parts(snapshot, number):
            ids.append(own_ids)
            labels.append(own_labels)
    part = slice(start, start + limit)
    all_labels = np.concatenate(labels).astype(np.int64)[part]
    return np.concatenate(ids)[part], all_labels if snapshot.with_labels else None


def _bucket_parts(
    snapshot: Snapshot, number: int
) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Return ids and labels (or nothing) of a bucket, segment after segment, after a check."""
    parts = []
    for segment_number, view in enumerate(snapshot.views):
        segment, row = view.segment, snapshot.tree.row(segment_number, number)
        if row >= 0:
            segment.check.blocks(np.array([row]))
            live = view.live_entries(int(segment.offsets[row]), int(segment.offsets[row + 1]))
            labels = segment.ids[:0] if segment.labels is None else segment.labels[live]
            parts.append((segment.ids[live], labels))
    return parts


def bucket_classes(snapshot: Snapshot, number: int) -> dict[int, int] | None:
    """Return how many entries of each class a bucket has, largest first; None without labels."""
    if not snapshot.with_labels:
        return None
    labels = np.concatenate([labels for _, labels in _bucket_parts(snapshot, number)])
    values, counts = np.unique(labels[labels != NO_LABEL], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {int(values[k]): int(counts[k]) for k in order}


def sample_ids(snapshot: Snapshot, n: int, seed: int) -> Int64s:
    """See ``HashIndex.sample``. Positions are drawn, so that not everything need be read."""
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *(view.segment.n_entries for view in snapshot.views)])
    n = min(n, snapshot.n_items)
    drawn: dict[int, None] = {}
    for _ in range(64):
        if len(drawn) >= n:
            break
        for place in rng.integers(0, starts[-1], size=4 * n).tolist():
            number = int(np.searchsorted(starts, place, side="right")) - 1
            view, entry = snapshot.views[number], place - int(starts[number])
            if len(view.removed) and view.removed[entry]:
                continue
            view.segment.check.ids()
            drawn[int(view.segment.ids[entry])] = None
    if len(drawn) < n:  # nearly all items are asked for, or nearly all were removed
        every = rng.permutation(np.unique(snapshot.entries()[1]))
        drawn = dict.fromkeys(every[:n].tolist())
    return np.array(list(drawn)[:n], dtype=np.int64)


# -- the tree ------------------------------------------------------------------------------------


def largest_buckets(snapshot: Snapshot, path: tuple[int, ...], limit: int) -> Int64s:
    """See ``HashIndex.largest_buckets``."""
    low, high = snapshot.tree.below(path, snapshot.shape)
    live = snapshot.tree.live[low:high]
    order = np.argsort(-live, kind="stable")[: min(limit, int((live > 0).sum()))]
    return snapshot.tree.buckets[low + order]


def node(snapshot: Snapshot, path: tuple[int, ...]) -> dict[str, Any]:
    """See ``HashIndex.node``."""
    children = [
        {"slot": slot, **_summary(snapshot, (*path, slot))} for slot in _slots_below(snapshot, path)
    ]
    return {"path": list(path), **_summary(snapshot, path), "children": children}


def tree(snapshot: Snapshot, path: tuple[int, ...] = ()) -> dict[str, Any]:
    """See ``HashIndex.tree``."""
    result = {"path": list(path), **_summary(snapshot, path)}
    if len(path) < snapshot.shape.depth:
        result["children"] = [
            tree(snapshot, (*path, slot)) for slot in _slots_below(snapshot, path)
        ]
    return result


def _slots_below(snapshot: Snapshot, path: tuple[int, ...]) -> list[int]:
    """Return the slots of a node that lead to live entries, ascending."""
    shape = snapshot.shape
    if len(path) == shape.depth:
        return []
    low, high = snapshot.tree.below(path, shape)
    buckets = snapshot.tree.buckets[low:high][snapshot.tree.live[low:high] > 0]
    span = shape.width ** (shape.depth - len(path) - 1)
    slots: list[int] = np.unique(buckets // span % shape.width).tolist()
    return slots


def _summary(snapshot: Snapshot, path: tuple[int, ...]) -> dict[str, Any]:
    """Describe the buckets below a node together."""
    low, high = snapshot.tree.below(path, snapshot.shape)
    live = snapshot.tree.live[low:high]
    counts = snapshot.class_counts
    purity, classes = None, None
    if counts is not None:
        first, last = np.searchsorted(counts.number, [low, high])
        per_class = np.bincount(
            counts.code[first:last], weights=counts.count[first:last], minlength=len(counts.labels)
        ).astype(np.int64)
        order = np.argsort(-per_class, kind="stable")[: int((per_class > 0).sum())]
        classes = {int(counts.labels[k]): int(per_class[k]) for k in order}
        if classes:
            purity = int(counts.majority[low:high].sum()) / int(per_class.sum())
    return {
        "n_buckets": int((live > 0).sum()),
        "n_entries": int(live.sum()),
        "purity": purity,
        "classes": classes,
    }
