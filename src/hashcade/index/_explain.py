"""Why a query found what it found: its path, its buckets, and what came from where."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.index._probe import BY_SCORES
from hashcade.index._search import Request, check_blocks, make_plan, run
from hashcade.index._snapshot import Snapshot


def explain(
    snapshot: Snapshot, request: Request, shown: npt.NDArray[Any] | None = None
) -> dict[str, Any]:
    """See ``HashIndex.explain``; the request has one query.

    ``shown`` are its slot scores, (1, depth, width), if it is the request that has none: what is
    known of a query whose buckets are not simply those of its best slots.
    """
    visits, candidates, truncated = make_plan(snapshot, request)
    check_blocks(snapshot, visits)
    result = run(snapshot, request)
    known = request.scores if request.mode == BY_SCORES else shown
    scores = None if known is None else known[0].astype(np.float64)
    own = _own_buckets(snapshot, request, visits)
    found = [int(i) for i in result.ids[0] if i >= 0]
    sources: dict[int, list[int]] = {i: [] for i in found}
    labels: dict[int, int] = {}
    buckets = []
    parts_of: dict[int, list[tuple[int, int, int]]] = {}  # of each bucket, in order of the visits
    for _, segment_number, start, stop, number in visits.tolist():
        parts_of.setdefault(number, []).append((segment_number, start, stop))
    asked_for = set(own)
    for number, parts in parts_of.items():
        bucket = int(snapshot.directory.buckets[number])
        looked_at = 0
        for segment_number, start, stop in parts:
            view = snapshot.views[segment_number]
            rows = np.arange(start, stop)
            if len(view.dead):
                rows = rows[view.dead[start:stop] == 0]
            looked_at += len(rows)
            ids = view.segment.ids[rows]
            for row in rows[np.isin(ids, found)].tolist():
                item = int(view.segment.ids[row])
                sources[item].append(bucket)
                if view.segment.labels is not None:
                    labels[item] = int(view.segment.labels[row])
        buckets.append(
            {
                **_bucket(snapshot, number, scores),
                "looked_at": looked_at,
                "fill": bucket not in asked_for,
            }
        )
    return {
        "levels": _levels(snapshot, own, scores),
        "buckets": buckets,
        "results": [
            {
                "id": item,
                "distance": float(distance),
                "label": labels.get(item),
                "buckets": sources[item],
            }
            for item, distance in zip(found, result.distances[0].tolist(), strict=False)
        ],
        "candidates": int(candidates[0]),
        "truncated": bool(truncated[0]),
        "n_items": snapshot.n_items,
    }


def _own_buckets(snapshot: Snapshot, request: Request, visits: npt.NDArray[np.int64]) -> list[int]:
    """Return the buckets that the query asked for, as opposed to those of the filling."""
    if request.n_probe == 0:
        return list(dict.fromkeys(request.bucket_ids[0].tolist()))
    order = list(dict.fromkeys(visits[:, 4].tolist()))[: request.n_probe]
    return [int(snapshot.directory.buckets[number]) for number in order]


def _bucket(
    snapshot: Snapshot, number: int, scores: npt.NDArray[np.float64] | None
) -> dict[str, Any]:
    """Describe one bucket: where it is in the tree, how large, and which classes it holds."""
    bucket = int(snapshot.directory.buckets[number])
    path = snapshot.shape.paths(bucket)
    classes: dict[int, int] | None = {} if snapshot.with_labels else None
    for segment_number, view in enumerate(snapshot.views):
        start = int(snapshot.directory.starts[segment_number, number])
        stop = int(snapshot.directory.stops[segment_number, number])
        if classes is None or start == stop:
            continue
        segment = view.segment
        if segment.check is not None:
            segment.check.buckets(segment, segment.buckets_of(np.array([start])))
        assert segment.labels is not None
        here = segment.labels[start:stop]
        if len(view.dead):
            here = here[view.dead[start:stop] == 0]
        for label, count in zip(*np.unique(here, return_counts=True), strict=True):
            classes[int(label)] = classes.get(int(label), 0) + int(count)
    if classes is not None:
        classes = dict(sorted(classes.items(), key=lambda pair: (-pair[1], pair[0])))
    total = None
    if scores is not None:
        total = float(sum(scores[level, slot] for level, slot in enumerate(path)))
    return {
        "bucket": bucket,
        "path": path.tolist(),
        "size": int(snapshot.directory.live[number]),
        "classes": classes,
        "score": total,
    }


def _levels(
    snapshot: Snapshot, own: list[int], scores: npt.NDArray[np.float64] | None
) -> list[dict[str, Any]]:
    """Walk down the query's own paths: at each level the slot, its score and what lies below it."""
    directory, shape = snapshot.directory, snapshot.shape
    levels = []
    for level in range(shape.depth):
        span = shape.width ** (shape.depth - 1 - level)
        nodes = []
        for prefix in dict.fromkeys(bucket // span for bucket in own):
            low = int(np.searchsorted(directory.buckets, prefix * span))
            high = int(np.searchsorted(directory.buckets, prefix * span + (span - 1), "right"))
            slot = prefix % shape.width
            node = {
                "slot": slot,
                "score": None,
                "rank": None,
                "n_buckets": int((directory.live[low:high] > 0).sum()),
                "n_entries": int(directory.live[low:high].sum()),
            }
            if scores is not None:
                node["score"] = float(scores[level, slot])
                better = scores[level] > scores[level, slot]
                node["rank"] = int(
                    better.sum() + (scores[level, :slot] == scores[level, slot]).sum()
                )
            nodes.append(node)
        levels.append({"level": level + 1, "nodes": nodes})
    return levels
