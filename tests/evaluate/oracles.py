"""The metrics and the protocol as double loops, written from the definitions alone."""

import itertools
import math


def precision(ids, query_labels, item_labels, k):
    right = 0
    for q, row in enumerate(ids):
        for i in row[:k]:
            if i >= 0 and item_labels[i] == query_labels[q]:
                right += 1
    return 100 * right / (len(ids) * k)


def average_precision(ids, query_labels, item_labels, k, same_set):
    total = 0.0
    for q, row in enumerate(ids):
        relevant = sum(1 for label in item_labels if label == query_labels[q]) - int(same_set)
        n_right, gained = 0, 0.0
        for place, i in enumerate(row[:k], start=1):
            if i >= 0 and item_labels[i] == query_labels[q]:
                n_right += 1
                gained += n_right / place
        total += gained / min(relevant, k) if relevant > 0 else 0.0
    return 100 * total / len(ids)


def recall(ids, exact, k):
    total = 0.0
    for row, truth in zip(ids, exact, strict=True):
        expected = [i for i in truth[:k] if i >= 0]
        total += sum(1 for i in expected if i in list(row[:k])) / max(len(expected), 1)
    return 100 * total / len(ids)


def nmi(one, two):
    n = len(one)

    def entropy(groups):
        return -sum(
            groups.count(g) / n * math.log(groups.count(g) / n) for g in sorted(set(groups))
        )

    mutual = 0.0
    for a, b in sorted(set(zip(one, two, strict=True))):
        both = sum(1 for x, y in zip(one, two, strict=True) if (x, y) == (a, b)) / n
        mutual += both * math.log(both / (one.count(a) / n * (two.count(b) / n)))
    mean = (entropy(one) + entropy(two)) / 2
    return 100.0 if mean == 0 else 100 * mutual / mean


def nearest(query, vectors, rows, k):
    """Rows by (distance, row): the distance as the search reports it, rounded to float32."""
    import numpy as np

    def distance(row):
        squares = [(float(a) - float(b)) ** 2 for a, b in zip(query, vectors[row], strict=True)]
        return float(np.float32(math.sqrt(sum(squares))))

    best = sorted(rows, key=lambda row: (distance(row), row))[:k]
    return best + [-1] * (k - len(best))


def sorted_slots(scores):
    """Slots of a level from the best score down; of equals the lower slot first."""
    return sorted(range(len(scores)), key=lambda slot: (-scores[slot], slot))


def bucket_of(path, width):
    number = 0
    for slot in path:
        number = number * width + slot
    return number


def own_buckets(scores, sparsity, width):
    """Best slot at all levels but the last, the ``sparsity`` best at the last (equation 1)."""
    above = [sorted_slots(level)[0] for level in scores[:-1]]
    return [bucket_of([*above, last], width) for last in sorted_slots(scores[-1])[:sparsity]]


def buckets_in_order(scores, width):
    """All buckets in lexicographic order of the query's sorted slots, the last level fastest."""
    for path in itertools.product(*(sorted_slots(level) for level in scores)):
        yield bucket_of(path, width)


def buckets_by_sum(scores, width, occupied):
    def total(bucket):
        path = [bucket // width**up % width for up in reversed(range(len(scores)))]
        return sum(scores[level][slot] for level, slot in enumerate(path))

    return sorted(occupied, key=lambda bucket: (-total(bucket), bucket))


def search(scores, query, own, buckets_of, vectors, k, *, shape, fill, n_probe):
    """One query: results, and the number of candidates."""
    occupied = {bucket for buckets in buckets_of for bucket in buckets}
    by_sum = buckets_by_sum(scores, shape.width, occupied)

    def members(buckets):
        return {i for i, b in enumerate(buckets_of) if set(buckets) & set(b) and i != own}

    first = by_sum[:n_probe] if n_probe > 1 else own_buckets(scores, shape.sparsity, shape.width)
    candidates = members(first)
    if fill == "path":
        for bucket in buckets_in_order(scores, shape.width):
            if len(candidates) >= k:
                break
            candidates |= members([bucket])
    if fill == "sum":
        start = n_probe + 1 if n_probe > 1 else min(shape.sparsity, len(occupied))
        for n in range(start, len(occupied) + 1):
            if len(candidates) >= k:
                break
            candidates = members(by_sum[:n])
    return nearest(query, vectors, sorted(candidates), k), len(candidates)


def protocol(
    scores, query_vectors, query_labels, buckets_of, vectors, labels, *, shape, numbers,
    same_set, fill, n_probe
):  # fmt: skip
    """SUF and precision for each number of neighbours, and all results."""
    speedup, share, results = {}, {}, {}
    for k in numbers:
        done = [
            search(
                scores[q], query_vectors[q], q if same_set else None, buckets_of, vectors, k,
                shape=shape, fill=fill, n_probe=n_probe,
            )
            for q in range(len(query_vectors))
        ]  # fmt: skip
        candidates = sum(count for _, count in done) / len(done)
        size = len(vectors) - 1 if same_set else len(vectors)
        speedup[k] = size / candidates if candidates else math.inf
        results[k] = [ids for ids, _ in done]
        share[k] = precision(results[k], query_labels, labels, k)
    return speedup, share, results
