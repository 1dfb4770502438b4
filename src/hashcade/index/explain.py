"""Why a query found what it found: its path, its buckets, and what came from where."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.index.inspect import bucket_classes
from hashcade.index.search import Request, plan, run
from hashcade.index.segment import NO_LABEL
from hashcade.index.snapshot import Snapshot


def explain(
    snapshot: Snapshot, request: Request, shown_scores: npt.NDArray[Any] | None = None
) -> dict[str, Any]:
    """See ``HashIndex.explain``; the request has one query.

    ``shown_scores`` are its slot scores, (depth, width), if the request has none.
    """
    visits, candidates, truncated = plan(snapshot, request)
    result = run(snapshot, request)
    scores = request.scores[0] if len(request.scores) else shown_scores
    own = _own_buckets(snapshot, request, visits)
    ids = result.ids[0][result.ids[0] >= 0]
    sources: dict[int, list[int]] = {item: [] for item in ids.tolist()}
    parts_of: dict[int, list[tuple[int, int, int]]] = {}  # of each bucket, in order of the visits
    for _, segment_number, start, stop, number in visits.tolist():
        parts_of.setdefault(number, []).append((segment_number, start, stop))
    buckets = []
    for number, parts in parts_of.items():
        bucket = int(snapshot.tree.buckets[number])
        n_candidates = 0
        for segment_number, start, stop in parts:
            view = snapshot.views[segment_number]
            here = view.segment.ids[view.live_entries(start, stop)]
            n_candidates += len(here)
            for item in here[np.isin(here, ids)].tolist():
                sources[item].append(bucket)
        path = snapshot.shape.paths(bucket).tolist()
        total = None
        if scores is not None:
            total = float(sum(float(scores[level, slot]) for level, slot in enumerate(path)))
        buckets.append(
            {
                "bucket": bucket,
                "path": path,
                "size": int(snapshot.tree.live[number]),
                "classes": bucket_classes(snapshot, number),
                "score": total,
                "candidates": n_candidates,
                "fill": bucket not in own,
            }
        )
    labels = snapshot.labels_of(ids).tolist()
    return {
        "levels": _levels(snapshot, own, scores),
        "buckets": buckets,
        "results": [
            {
                "id": item,
                "distance": distance,
                "label": None if label == NO_LABEL else label,
                "buckets": sources[item],
            }
            for item, distance, label in zip(
                ids.tolist(), result.distances[0].tolist(), labels, strict=False
            )
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
    return [int(snapshot.tree.buckets[number]) for number in order]


def _levels(
    snapshot: Snapshot, own: list[int], scores: npt.NDArray[Any] | None
) -> list[dict[str, Any]]:
    """Walk down the query's own paths: at each level the slot, its score and what lies below it."""
    levels = []
    paths = snapshot.shape.paths(np.array(own, dtype=np.int64)).tolist()
    for level in range(snapshot.shape.depth):
        nodes = []
        for path in dict.fromkeys(tuple(path[: level + 1]) for path in paths):
            low, high = snapshot.tree.below(path, snapshot.shape)
            live, slot = snapshot.tree.live[low:high], path[-1]
            score = rank = None
            if scores is not None:
                score = float(scores[level, slot])
                equal_before = (scores[level, :slot] == scores[level, slot]).sum()
                rank = int((scores[level] > scores[level, slot]).sum() + equal_before)
            nodes.append(
                {
                    "slot": slot,
                    "score": score,
                    "rank": rank,
                    "n_buckets": int((live > 0).sum()),
                    "n_entries": int(live.sum()),
                }
            )
        levels.append({"level": level + 1, "nodes": nodes})
    return levels
