"""Looking at an index item by item and node by node: what a person does, not what a search does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.index._snapshot import Snapshot
from hashcade.index._stats import live_table
from hashcade.index._table import Int64s, View


def find_item(snapshot: Snapshot, item_id: int) -> dict[str, Any]:
    """See ``HashIndex.item``."""
    name = np.array([item_id], dtype=np.int64)
    for view in snapshot.views:
        entries, _ = view.segment.entries_of(name)
        if len(view.dead):
            entries = entries[view.dead[entries] == 0]
        if len(entries) == 0:
            continue
        segment = view.segment
        numbers = segment.buckets_of(entries)
        if segment.check is not None:
            segment.check.buckets(segment, np.unique(numbers))
        label = None if segment.labels is None else int(segment.labels[entries[0]])
        return {
            "id": item_id,
            "label": label,
            "bucket_ids": np.sort(segment.buckets[numbers]),
            "vector": np.array(segment.vectors[entries[0]]),
        }
    raise ValueError(f"id {item_id} not in the index")


def bucket_items(
    snapshot: Snapshot, bucket_id: int, start: int, limit: int
) -> tuple[Int64s, Int64s | None]:
    """See ``HashIndex.bucket``."""
    number = int(np.searchsorted(snapshot.directory.buckets, bucket_id))
    ids: list[npt.NDArray[Any]] = [np.empty(0, dtype=np.int64)]
    labels: list[npt.NDArray[Any]] = [np.empty(0, dtype=np.int64)]
    known = number < len(snapshot.directory.buckets)
    if known and snapshot.directory.buckets[number] == bucket_id:
        for segment_number, view in enumerate(snapshot.views):
            first = int(snapshot.directory.starts[segment_number, number])
            last = int(snapshot.directory.stops[segment_number, number])
            if first == last:
                continue
            entries = _checked_entries(view, first, last)
            ids.append(view.segment.ids[entries])
            if view.segment.labels is not None:
                labels.append(view.segment.labels[entries])
    chosen = slice(start, start + limit)
    all_labels = np.concatenate(labels).astype(np.int64)[chosen]
    return np.concatenate(ids)[chosen], all_labels if snapshot.with_labels else None


def _checked_entries(view: View, first: int, last: int) -> Int64s:
    """Return the live entries of one block, after it was checked."""
    segment = view.segment
    if segment.check is not None:
        segment.check.buckets(segment, segment.buckets_of(np.array([first])))
    entries = np.arange(first, last)
    return entries[view.dead[first:last] == 0] if len(view.dead) else entries


def sample_ids(snapshot: Snapshot, n: int, seed: int) -> Int64s:
    """See ``HashIndex.sample``. Positions are drawn, so that not everything need be read."""
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *(view.segment.n_entries for view in snapshot.views)])
    wanted = min(n, snapshot.n_items)
    found: dict[int, None] = {}
    for _ in range(64):
        if len(found) >= wanted:
            break
        for place in rng.integers(0, starts[-1], size=4 * wanted).tolist():
            number = int(np.searchsorted(starts, place, side="right")) - 1
            view, entry = snapshot.views[number], place - int(starts[number])
            if len(view.dead) and view.dead[entry]:
                continue
            if view.segment.check is not None:
                view.segment.check.section(view.segment, "ids")
            found[int(view.segment.ids[entry])] = None
    if len(found) < wanted:  # nearly everything is wanted, or nearly everything was removed
        every = rng.permutation(np.unique(live_table(snapshot)[1]))
        found = dict.fromkeys(every[:wanted].tolist())
    return np.array(list(found)[:wanted], dtype=np.int64)


# -- the tree ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Outline:
    """How many entries of which class lie in which bucket, for one snapshot.

    Attributes
    ----------
    labels : int64[n_classes]
    number, label, count : int64[n_pairs]
        Pairs of bucket number and position in ``labels`` that occur, by bucket, and how often.
    majority : int64[n_buckets]
        Entries of the largest class of each bucket.
    """

    labels: Int64s
    number: Int64s
    label: Int64s
    count: Int64s
    majority: Int64s


def _outline(snapshot: Snapshot) -> Outline | None:
    """Return the outline, made once per snapshot; None without labels."""
    if not snapshot.with_labels:
        return None
    made: Outline | None = snapshot.__dict__.get("outline")
    if made is None:
        numbers, _, labels = live_table(snapshot)
        assert labels is not None
        names, codes = np.unique(labels, return_inverse=True)
        n_classes = max(len(names), 1)
        pairs, counts = np.unique(numbers * n_classes + codes, return_counts=True)
        majority = np.zeros(len(snapshot.directory.buckets), dtype=np.int64)
        np.maximum.at(majority, pairs // n_classes, counts)
        made = Outline(
            names.astype(np.int64), pairs // n_classes, pairs % n_classes, counts, majority
        )
        snapshot.__dict__["outline"] = made
    return made


def node(snapshot: Snapshot, path: tuple[int, ...]) -> dict[str, Any]:
    """See ``HashIndex.node``."""
    directory, shape = snapshot.directory, snapshot.shape
    outline = _outline(snapshot)
    prefix = 0
    for slot in path:
        prefix = prefix * shape.width + slot
    span = shape.width ** (shape.depth - len(path))
    low = int(np.searchsorted(directory.buckets, prefix * span))
    high = int(np.searchsorted(directory.buckets, prefix * span + (span - 1), "right"))
    described = {"path": list(path), **_described(snapshot, outline, low, high)}
    described["children"] = []
    if len(path) < shape.depth:
        below = span // shape.width
        slots = (directory.buckets[low:high] - prefix * span) // below
        cuts: list[int] = []
        if high > low:
            cuts = np.flatnonzero(np.r_[True, slots[1:] != slots[:-1]]).tolist()
        for first, last in zip(cuts, [*cuts[1:], high - low], strict=True):
            child = _described(snapshot, outline, low + first, low + last)
            if child["n_entries"] > 0:
                described["children"].append({"slot": int(slots[first]), **child})
    return described


def _described(snapshot: Snapshot, outline: Outline | None, low: int, high: int) -> dict[str, Any]:
    """Describe the buckets with numbers from ``low`` to before ``high`` together."""
    live = snapshot.directory.live[low:high]
    n_entries = int(live.sum())
    described: dict[str, Any] = {
        "n_buckets": int((live > 0).sum()),
        "n_entries": n_entries,
        "purity": None,
        "classes": None,
    }
    if outline is not None:
        first, last = np.searchsorted(outline.number, [low, high])
        counts = np.bincount(
            outline.label[first:last], weights=outline.count[first:last],
            minlength=len(outline.labels),
        ).astype(np.int64)  # fmt: skip
        order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())]
        described["classes"] = {int(outline.labels[k]): int(counts[k]) for k in order}
        majority = int(outline.majority[low:high].sum())
        described["purity"] = majority / n_entries if n_entries else None
    return described
