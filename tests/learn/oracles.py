"""Slow versions that follow the definitions word by word."""

import itertools

import numpy as np


def bucket_sums(scores, shape, buckets):
    """For one item the sum of its slot scores, by bucket."""
    sums = {}
    for bucket in {int(b) for b in np.ravel(buckets)}:
        rest, path = bucket, []
        for _ in range(shape.depth):
            rest, slot = divmod(rest, shape.width)
            path.insert(0, slot)
        sums[bucket] = sum(float(scores[level, slot]) for level, slot in enumerate(path))
    return sums


def search_precision_and_speedup(scores, buckets, vectors, labels, shape, *, by_path):
    """Every item searched among all others, one bucket at a time, until it finds one.

    First come the query's own buckets, then the others: by path in the lexicographic order of
    its sorted slots, else by the sum of its slot scores.
    """
    n = len(scores)
    right = n_candidates = 0
    for query in range(n):
        order = buckets[query].tolist()
        if by_path:
            ranked = [sorted(range(shape.width), key=lambda s: -row[s]) for row in scores[query]]
            order += [shape.bucket_ids([path]).item() for path in itertools.product(*ranked)]
        else:
            sums = bucket_sums(scores[query], shape, buckets)
            order += sorted(sums, key=lambda b: (-sums[b], b))
        candidates = set()
        for turn, bucket in enumerate(order):
            if turn >= buckets.shape[1] and candidates:
                break
            candidates |= {i for i in range(n) if i != query and bucket in buckets[i]}
        n_candidates += len(candidates)
        distance = {i: ((vectors[i] - vectors[query]) ** 2).sum() for i in candidates}
        right += labels[min(candidates, key=lambda i: (distance[i], i))] == labels[query]
    return 100 * right / n, (n - 1) * n / n_candidates
