"""Precision, speed-up and NMI against loops that follow their definitions."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from hashcade import CodeShape
from hashcade.learn._figures import bucket_nmi, exhaustive_precision, search_figures


def naive_search(scores, vectors, labels, shape, n_neighbors, fill):
    """The paper's query, one bucket at a time, all paths enumerated."""
    n = len(scores)
    own = [set(row.tolist()) for row in shape.scores_to_bucket_ids(scores)]
    right = looked_at = 0
    for q in range(n):
        ranked = [sorted(range(shape.width), key=lambda s: -row[s]) for row in scores[q]]
        paths = [shape.bucket_ids([path]).item() for path in itertools.product(*ranked)]
        found = []
        for turn, bucket in enumerate(paths):
            if turn >= shape.sparsity and (not fill or len(found) >= n_neighbors):
                break
            found += [i for i in range(n) if i != q and bucket in own[i] and i not in found]
        looked_at += len(found)
        found.sort(key=lambda i: (((vectors[i] - vectors[q]) ** 2).sum(), i))
        right += sum(labels[i] == labels[q] for i in found[:n_neighbors])
    speedup = (n - 1) / (looked_at / n) if looked_at else np.inf
    return 100 * right / (n * n_neighbors), speedup


@given(
    n=st.integers(2, 14),
    width=st.integers(1, 4),
    depth=st.integers(1, 3),
    n_neighbors=st.integers(1, 6),
    fill=st.booleans(),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_search_equals_its_definition(n, width, depth, n_neighbors, fill, seed, data):
    shape = CodeShape(width=width, depth=depth, sparsity=data.draw(st.integers(1, width)))
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n, depth, width)).astype(np.float32)
    vectors = rng.integers(0, 3, size=(n, 2)).astype(np.float32)  # ties of distance
    labels = rng.integers(0, 3, size=n)
    figures = search_figures(scores, vectors, labels, shape, n_neighbors=n_neighbors, fill=fill)
    expected = naive_search(scores, vectors, labels, shape, n_neighbors, fill)
    assert (figures.precision, figures.speedup) == pytest.approx(expected)


@given(n=st.integers(2, 30), n_neighbors=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_exhaustive_precision_equals_its_definition(n, n_neighbors, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 3)).astype(np.float32)
    labels = rng.integers(0, 3, size=n)
    right = 0
    for q in range(n):
        others = sorted(set(range(n)) - {q}, key=lambda i: ((vectors[i] - vectors[q]) ** 2).sum())
        right += sum(labels[i] == labels[q] for i in others[:n_neighbors])
    got = exhaustive_precision(vectors, labels, n_neighbors=n_neighbors, chunk=7)
    assert got == pytest.approx(100 * right / (n * n_neighbors))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 2)), min_size=1, max_size=30))
def test_nmi_equals_scikit_learn(pairs):
    buckets, labels = np.array(pairs).T
    assert bucket_nmi(buckets, labels) == pytest.approx(
        100 * normalized_mutual_info_score(labels, buckets), abs=1e-9
    )
