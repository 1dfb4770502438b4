"""The search in plain numpy and Python: slow, short, and what the kernels are held against.

Nothing here is shared with the fast path. It takes items as they were given, in the order in
which they came, and does what the documentation says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade import CodeShape


def reference_keys(
    vectors: npt.NDArray[np.float32], query: npt.NDArray[np.float32], metric: str
) -> npt.NDArray[np.float32]:
    """Return distances, or minus inner products: eight float64 sums, added up in order.

    For ``"cosine"`` vectors, not queries, are of unit length, as they are in the index.
    """
    x, q = vectors.astype(np.float64), query.astype(np.float64)
    total = _in_eight_sums((x - q) * (x - q) if metric == "euclidean" else x * q)
    with np.errstate(over="ignore"):
        if metric == "cosine":
            norm = np.sqrt(_in_eight_sums(q[None] * q))  # that of the others is 1
            return np.maximum(1.0 - total / norm, 0.0).astype(np.float32)
        keys = np.sqrt(total) if metric == "euclidean" else -total
        return keys.astype(np.float32)


def _in_eight_sums(terms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    terms = np.pad(terms, ((0, 0), (0, -terms.shape[1] % 8)))
    sums = np.zeros((len(terms), 8))
    for at in range(0, terms.shape[1], 8):
        sums += terms[:, at : at + 8]
    total = sums[:, 0]
    for lane in range(1, 8):
        total = total + sums[:, lane]
    return total


def reference_search(
    ids: Sequence[int],
    buckets_of: Sequence[Sequence[int]],
    vectors: npt.NDArray[np.float32],
    shape: CodeShape,
    query: npt.NDArray[np.float32],
    *,
    bucket_ids: Sequence[int] | None = None,
    scores: npt.NDArray[Any] | None = None,
    n_neighbors: int = 10,
    n_probe: int | None = None,
    max_candidates: int | None = None,
    fill: str = "path",
    allowed: set[int] | None = None,
    exact_matches: int = 2000,
    filter_budget: int = 1_000_000,
    own: int = -1,
    metric: str = "euclidean",
) -> tuple[list[float], list[int], int, bool, list[int]]:
    """Answer one query: distances, ids, candidates, truncated, and the buckets in order."""
    contents: dict[int, list[int]] = {}
    sizes: Counter[int] = Counter()
    for row, buckets in enumerate(buckets_of):
        for bucket in sorted({int(b) for b in buckets}):
            sizes[bucket] += 1
            if allowed is None or int(ids[row]) in allowed:
                contents.setdefault(bucket, []).append(row)
    passing = sorted({row for rows in contents.values() for row in rows})

    seen: list[int] = []
    looked_in: list[int] = []
    truncated = False
    order = _order(contents, shape, bucket_ids, scores, n_probe, allowed is not None)
    target, budget = n_neighbors, math.inf
    if allowed is not None:
        unfiltered = reference_search(
            ids, buckets_of, vectors, shape, query, bucket_ids=bucket_ids, scores=scores,
            n_neighbors=n_neighbors, n_probe=n_probe, max_candidates=max_candidates, fill=fill,
            own=own, metric=metric,
        )  # fmt: skip
        target, budget = max(n_neighbors, unfiltered[2]), filter_budget
        if fill != "none" and len(passing) <= min(exact_matches, max_candidates or math.inf):
            seen = [row for row in passing if int(ids[row]) != own]
            order = iter(())
    n_looked_at = 0
    for bucket, is_fill in order:
        if is_fill and (fill == "none" or len(seen) >= target):
            break
        if bucket in looked_in or bucket not in contents:
            continue
        if is_fill and n_looked_at >= budget:
            truncated = True
            break
        before = len(seen)
        for row in contents[bucket]:
            if row in seen or int(ids[row]) == own:
                continue
            if max_candidates is not None and len(seen) == max_candidates:
                truncated = True
                break
            seen.append(row)
        if len(seen) > before:
            looked_in.append(bucket)
            n_looked_at += sizes[bucket]
        if truncated:
            break

    keys = reference_keys(vectors[seen], query, metric) if seen else np.empty(0, np.float32)
    best = sorted(zip(keys.tolist(), (int(ids[row]) for row in seen), strict=True))[:n_neighbors]
    missing = n_neighbors - len(best)
    sign = -1.0 if metric == "inner_product" else 1.0
    distances = [sign * key + 0.0 for key, _ in best] + [sign * float("inf")] * missing
    found = [item for _, item in best] + [-1] * missing
    return distances, found, len(seen), truncated, looked_in


def _order(
    contents: dict[int, list[int]],
    shape: CodeShape,
    bucket_ids: Sequence[int] | None,
    scores: npt.NDArray[Any] | None,
    n_probe: int | None,
    filtered: bool,
) -> Iterator[tuple[int, bool]]:
    """Yield buckets in the order of visiting, each with whether it belongs to the filling."""
    occupied = sorted(contents)
    if scores is None:
        assert bucket_ids is not None
        own = [int(b) for b in bucket_ids]
        n_always = len(own) if n_probe is None else n_probe
        yield from ((b, at >= n_always) for at, b in enumerate(own))
        for up in range(1, shape.depth + 1):
            span = shape.width**up
            for own_bucket in own if up < shape.depth else own[:1]:  # everything comes once
                yield from ((b, True) for b in occupied if b // span == own_bucket // span)
        return
    values = np.asarray(scores, dtype=np.float64)
    paths = {b: [b // shape.width**k % shape.width for k in range(shape.depth)][::-1]
             for b in occupied}  # fmt: skip
    if n_probe is None:
        yield from ((int(b), False) for b in shape.scores_to_bucket_ids(values[None])[0])
    if n_probe is not None or filtered:
        sums = {b: _sum(values[level, slot] for level, slot in enumerate(paths[b]))
                for b in occupied}  # fmt: skip
        best = sorted(occupied, key=lambda b: (-sums[b], b))
        yield from ((b, at >= (n_probe or 0)) for at, b in enumerate(best))
        return
    # Lexicographic in the ranks of the slots, best first, the lower slot first of equals.
    rank = np.empty(values.shape, dtype=np.int64)
    for level in range(shape.depth):
        rank[level, np.argsort(-values[level], kind="stable")] = np.arange(shape.width)
    yield from (
        (b, True)
        for b in sorted(occupied, key=lambda b: [int(rank[k, s]) for k, s in enumerate(paths[b])])
    )


def _sum(terms: Iterator[float]) -> float:
    total = 0.0
    for term in terms:
        total += term
    return total
