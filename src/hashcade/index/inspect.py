"""Statistics, items, tree nodes and explained searches of an index."""

from __future__ import annotations

from operator import getitem
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.index.search import Request, make_request, plan, run
from hashcade.index.segment import NO_LABEL, Int64s
from hashcade.index.snapshot import Snapshot

Scores = npt.NDArray[Any] | None
_SAMPLE = 2000


def stats(snapshot: Snapshot, quick: bool = False) -> dict[str, Any]:
    """See ``HashIndex.stats``."""
    tree, views = snapshot.tree, snapshot.views
    sizes = tree.live[tree.live > 0]
    n, n_entries, n_buckets = snapshot.n_items, int(sizes.sum()), snapshot.shape.n_buckets
    n_per_item = n_entries / max(n, 1)
    candidates = n_per_item * tree.mean_bucket_size if quick else _expected_candidates(snapshot)
    vectors = sum(view.segment.vectors.nbytes for view in views)
    arrays: list[Any] = [tree.buckets, tree.rows, tree.live, tree.slots, tree.children]
    for view in views:
        order = view.segment.__dict__.get("order_by_id")
        arrays += [*view.segment.arrays.values(), view.removed, order]
    n_bytes = {array.ctypes.data: array.nbytes for array in arrays if array is not None}
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
        "n_segments": len(views),
        "n_removed_entries": int(sum(view.removed.sum() for view in views)),
        "bytes_vectors": vectors,
        "bytes_other": sum(n_bytes.values()) - vectors,
    }
    counts = None if quick else snapshot.class_counts
    if counts is None:
        return result
    size = np.bincount(counts.number, weights=counts.count)[counts.number]
    in_class = np.bincount(counts.code, weights=counts.count)
    purity = np.bincount(counts.code, weights=counts.count**2 / size) / in_class
    columns = (counts.labels, in_class.astype(np.int64), np.bincount(counts.code), purity)
    result["purity"] = float(counts.majority.sum() / max(counts.count.sum(), 1))
    result["classes"] = {
        label: {"n_entries": n_entries, "n_buckets": n_buckets, "purity": share}
        for label, n_entries, n_buckets, share in zip(*(c.tolist() for c in columns), strict=True)
    }
    return result


def gini(sizes: npt.NDArray[Any], n_buckets: int) -> float:
    """Return the Gini coefficient of bucket sizes, empty buckets included."""
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
    if not snapshot.has_duplicates:
        return snapshot.tree.mean_bucket_size
    # An item may be in several of the buckets, so items are counted, for a regular sample.
    numbers, ids, _ = snapshot.entries()
    order = np.argsort(ids, kind="stable")
    unique, starts = np.unique(ids[order], return_index=True)
    sample = np.unique(np.linspace(0, len(unique) - 1, _SAMPLE).astype(np.int64))
    ends = np.append(starts[1:], len(ids))
    width = int((ends - starts).max())
    rows = np.empty((len(sample), width), dtype=np.int64)
    for row, k in enumerate(sample):
        item_buckets = snapshot.tree.buckets[numbers[order[starts[k] : ends[k]]]]
        rows[row] = np.resize(item_buckets, width)  # a duplicate bucket counts once
    queries = np.zeros((len(rows), snapshot.dim), dtype=np.float32)
    request = make_request(snapshot, queries, rows, n_neighbors=1, fill="none")
    return float(plan(snapshot, request)[1].mean())


def item(snapshot: Snapshot, item_id: int) -> dict[str, Any]:
    """See ``HashIndex.item``."""
    for view in snapshot.views:
        entries, _ = view.entries_of(np.array([item_id], dtype=np.int64))
        if len(entries) > 0:
            segment, rows = view.segment, view.segment.rows_of(entries)
            segment.check.first_pass(np.unique(rows))
            segment.check.vectors(entries[:1])
            label = NO_LABEL if segment.labels is None else int(segment.labels[entries[0]])
            return {
                "id": item_id,
                "label": None if label == NO_LABEL else label,
                "bucket_ids": np.sort(segment.buckets[rows]),
                "vector": segment.vectors[entries[0]].astype(np.float32),
            }
    raise ValueError(f"id {item_id} not in the index")


def bucket_items(snapshot: Snapshot, bucket_id: int) -> tuple[Int64s, Int64s | None]:
    """Return ids and labels of a bucket, in order of insertion."""
    ids: list[npt.NDArray[Any]] = [np.empty(0, dtype=np.int64)]
    labels: list[npt.NDArray[Any]] = [np.empty(0, dtype=np.int64)]
    for view in snapshot.views:
        segment = view.segment
        row = int(np.searchsorted(segment.buckets, bucket_id))
        if row < len(segment.buckets) and segment.buckets[row] == bucket_id:
            segment.check.first_pass(np.array([row]))
            live = view.live_entries(int(segment.offsets[row]), int(segment.offsets[row + 1]))
            ids.append(segment.ids[live])
            if segment.labels is not None:
                labels.append(segment.labels[live])
    return np.concatenate(ids), np.concatenate(labels) if snapshot.with_labels else None


def sample_ids(snapshot: Snapshot, n: int, seed: int) -> Int64s:
    """See ``HashIndex.sample``. Positions are drawn, so that not all ids are read."""
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *(view.segment.n_entries for view in snapshot.views)])
    n = min(n, snapshot.n_items)
    sample: dict[int, None] = {}
    for _ in range(64):
        if len(sample) >= n:
            break
        for position in rng.integers(0, starts[-1], size=4 * n).tolist():
            number = int(np.searchsorted(starts, position, side="right")) - 1
            view, entry = snapshot.views[number], position - int(starts[number])
            if len(view.removed) == 0 or not view.removed[entry]:
                view.segment.check.ids()
                sample[int(view.segment.ids[entry])] = None
    if len(sample) < n:  # nearly all items are drawn, or nearly all were removed
        all_ids = rng.permutation(np.unique(snapshot.entries()[1]))
        sample = dict.fromkeys(all_ids[:n].tolist())
    return np.array(list(sample)[:n], dtype=np.int64)


def node(snapshot: Snapshot, path: tuple[int, ...]) -> dict[str, Any]:
    """See ``HashIndex.node``."""
    slots = _slots_below(snapshot, path)
    children = [{"slot": slot, **_summary(snapshot, (*path, slot))} for slot in slots]
    return {"path": list(path), **_summary(snapshot, path), "children": children}


def tree(snapshot: Snapshot, path: tuple[int, ...] = ()) -> dict[str, Any]:
    """See ``HashIndex.tree``."""
    result = {"path": list(path), **_summary(snapshot, path)}
    if len(path) < snapshot.shape.depth:
        slots = _slots_below(snapshot, path)
        result["children"] = [tree(snapshot, (*path, slot)) for slot in slots]
    return result


def _slots_below(snapshot: Snapshot, path: tuple[int, ...]) -> list[int]:
    """Return the slots of a node that have live entries, ascending."""
    if len(path) == snapshot.shape.depth:
        return []
    low, high = snapshot.tree.below(path, snapshot.shape)
    buckets = snapshot.tree.buckets[low:high][snapshot.tree.live[low:high] > 0]
    slots: list[int] = np.unique(snapshot.shape.paths(buckets)[:, len(path)]).tolist()
    return slots


def _summary(snapshot: Snapshot, path: tuple[int, ...]) -> dict[str, Any]:
    """Summarise the buckets below a node."""
    low, high = snapshot.tree.below(path, snapshot.shape)
    counts = snapshot.class_counts
    purity, classes = None, None
    if counts is not None:
        first, last = np.searchsorted(counts.number, [low, high])
        classes = _by_size(counts.labels[counts.code[first:last]], counts.count[first:last])
        if classes:
            purity = int(counts.majority[low:high].sum()) / sum(classes.values())
    return {**_counts(snapshot, path), "purity": purity, "classes": classes}


def _counts(snapshot: Snapshot, path: tuple[int, ...]) -> dict[str, int]:
    low, high = snapshot.tree.below(path, snapshot.shape)
    live = snapshot.tree.live[low:high]
    return {"n_buckets": int((live > 0).sum()), "n_entries": int(live.sum())}


def _by_size(labels: Int64s, counts: Int64s) -> dict[int, int]:
    """Sum counts by label: largest first, then by label."""
    values, inverse = np.unique(labels, return_inverse=True)
    totals = np.bincount(inverse, weights=counts, minlength=len(values)).astype(np.int64)
    order = np.argsort(-totals, kind="stable")
    return dict(zip(values[order].tolist(), totals[order].tolist(), strict=True))


def explain(snapshot: Snapshot, request: Request, shown_scores: Scores) -> dict[str, Any]:
    """See ``HashIndex.explain``: ``shown_scores`` (depth, width) are for a query without scores."""
    searched = request.filtered or snapshot
    # No buckets are visited if all items that pass a filter are compared.
    visits = plan(snapshot, request)[0] if not request.all_passing else np.empty((0, 6), np.int64)
    result = run(snapshot, request)
    scores = request.scores[0] if len(request.scores) else shown_scores
    query_buckets = request.bucket_ids[0, : request.n_probe or None].tolist()
    if request.n_probe > 0 and len(request.scores):
        order = list(dict.fromkeys(visits[:, 4].tolist()))
        query_buckets = snapshot.tree.buckets[order[: request.n_probe]].tolist()
    ids = result.ids[0][result.ids[0] >= 0]
    sources: dict[int, list[int]] = {item: [] for item in ids.tolist()}
    buckets: dict[int, dict[str, Any]] = {}
    no_ids = np.empty(0, dtype=np.int64)
    items, item_buckets = [no_ids], [no_ids]
    for _, segment_number, start, stop, number, _ in visits.tolist():
        bucket = int(snapshot.tree.buckets[number])
        if bucket not in buckets:
            path = snapshot.shape.paths(bucket).tolist()
            members, labels = bucket_items(snapshot, bucket)
            labels = None if labels is None else labels[labels != NO_LABEL]
            buckets[bucket] = {
                "bucket": bucket,
                "path": path,
                "size": int(snapshot.tree.live[number]),
                "classes": None if labels is None else _by_size(labels, np.ones_like(labels)),
                "score": None if scores is None else sum(map(getitem, scores.tolist(), path)),
                "candidates": 0,
                "fill": bucket not in query_buckets,
            }
            for item in members[np.isin(members, ids)].tolist():
                sources[item].append(bucket)
        view = searched.views[segment_number]
        items.append(view.segment.ids[view.live_entries(start, stop)])
        item_buckets.append(np.full(len(items[-1]), bucket))
    # An item is counted once, in the first of its buckets.
    candidates, first = np.unique(np.concatenate(items), return_index=True)
    first = first[~np.isin(candidates, request.exclude)]
    counts = np.unique(np.concatenate(item_buckets)[first], return_counts=True)
    for bucket, count in zip(*map(np.ndarray.tolist, counts), strict=True):
        buckets[bucket]["candidates"] = count
    labels_or_none = [None if x == NO_LABEL else x for x in snapshot.labels_of(ids).tolist()]
    rows = zip(ids.tolist(), result.distances[0].tolist(), labels_or_none, strict=False)
    return {
        "levels": _levels(snapshot, query_buckets, scores),
        "buckets": list(buckets.values()),
        "results": [
            {"id": item, "distance": distance, "label": label, "buckets": sources[item]}
            for item, distance, label in rows
        ],
        "candidates": int(result.candidates[0]),
        "truncated": bool(result.truncated[0]),
        "exact": bool(result.exact[0]),
        "n_items": snapshot.n_items,
    }


def _levels(snapshot: Snapshot, query_buckets: list[int], scores: Scores) -> list[dict[str, Any]]:
    """Describe the query's paths level by level: the slot, its score, and what is below it."""
    levels = []
    paths = snapshot.shape.paths(np.array(query_buckets, dtype=np.int64)).tolist()
    for level in range(snapshot.shape.depth):
        nodes = []
        for path in dict.fromkeys(tuple(path[: level + 1]) for path in paths):
            slot, score, rank = path[-1], None, None
            if scores is not None:
                score = float(scores[level, slot])
                rank = np.argsort(-scores[level], kind="stable").tolist().index(slot)
            nodes.append({"slot": slot, "score": score, "rank": rank, **_counts(snapshot, path)})
        levels.append({"level": level + 1, "nodes": nodes})
    return levels
