"""Metrics of results: by hand, by double loops, and by scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, normalized_mutual_info_score

from hashcade.evaluate import (
    bucket_nmi,
    mean_average_precision,
    per_class,
    precision_at,
    recall_at,
    speedup_factor,
)
from tests.evaluate import oracles


@st.composite
def results(draw):
    """Ids without repetition in a row, padded, with labels of queries and items."""
    n_items = draw(st.integers(1, 12))
    n_queries = draw(st.integers(1, 6))
    k = draw(st.integers(1, 6))
    classes = draw(st.sampled_from([[0, 1, 2], [7], ["ant", "bee", "cat"]]))
    items = draw(st.lists(st.sampled_from(classes), min_size=n_items, max_size=n_items))
    queries = draw(st.lists(st.sampled_from(classes), min_size=n_queries, max_size=n_queries))
    ids = []
    for _ in range(n_queries):
        found = draw(st.lists(st.integers(0, n_items - 1), unique=True, max_size=k))
        ids.append(found + [-1] * (k - len(found)))
    return ids, queries, items


# -- by hand -----------------------------------------------------------------------------------


def test_precision_counts_missing_results_as_wrong():
    ids = [[0, 1, 2, -1], [2, 3, -1, -1]]  # classes a a b: 2 of 4 right; b: one b, one b: 2 of 4
    assert precision_at(ids, ["a", "b"], ["a", "a", "b", "b"]) == 50.0
    assert precision_at(ids, ["a", "b"], ["a", "a", "b", "b"], n_neighbors=2) == 100.0


def test_speedup_is_database_size_over_mean_candidates():
    assert speedup_factor([1, 3], 100) == 50.0
    assert speedup_factor([0, 0], 100) == math.inf
    assert speedup_factor(np.array([5], dtype=np.uint8), 7) == 1.4


def test_mean_average_precision_by_hand():
    # right, wrong, right of 2 relevant: (1/1 + 2/3) / 2
    assert mean_average_precision([[0, 1, 2]], ["a"], ["a", "b", "a"]) == pytest.approx(250 / 3)
    # 5 relevant but only 2 asked for: both right is perfect
    assert mean_average_precision([[0, 1]], ["a"], ["a"] * 5) == 100.0
    # the query is one of the 3 items: 2 are left
    ids = [[1, 2], [0, 2], [0, 1]]
    assert mean_average_precision(ids, ["a"] * 3, ["a"] * 3, same_set=True) == 100.0
    assert mean_average_precision([[0]], ["b"], ["a"]) == 0.0


def test_recall_by_hand():
    assert recall_at([[3, 1]], [[1, 2]]) == 50.0
    assert recall_at([[3, 1]], [[3, 2]], n_neighbors=1) == 100.0
    assert recall_at([[-1, -1]], [[3, -1]]) == 0.0  # a missing result is no hit for a missing one
    assert recall_at([[3, -1]], [[3, -1]]) == 100.0


def test_nmi_by_hand():
    # Buckets {a a b} {b}: H(bucket) = .5623, H(class) = .6931, joint 1.0397, shared .2158
    assert bucket_nmi([0, 0, 0, 1], ["a", "a", "b", "b"]) == pytest.approx(34.3711, abs=1e-4)
    assert bucket_nmi([4, 4], [1, 1]) == 100.0
    assert bucket_nmi([4, 4], [1, 2]) == 0.0
    big = 2**62
    assert bucket_nmi([[big, 0], [big + 1, 0]], [1, 2]) == pytest.approx(100.0)  # first column


def test_per_class_by_hand():
    metrics = per_class([[0, 1], [2, -1], [0, 2]], [4, 2, 6], [5, 9, 5], [5, 7, 9])
    assert metrics.labels.tolist() == [5, 9]  # nobody asked for 7
    assert metrics.n_queries.tolist() == [2, 1]
    assert metrics.n_items.tolist() == [1, 1]
    assert metrics.precision.tolist() == [50.0, 50.0]
    assert metrics.candidates.tolist() == [5.0, 2.0]
    assert set(metrics.to_dict()) == {"labels", "n_queries", "n_items", "precision", "candidates"}


# -- by double loops ----------------------------------------------------------------------------


@given(results(), st.data())
def test_metrics_agree_with_double_loops(case, data):
    ids, queries, items = case
    k = data.draw(st.integers(1, len(ids[0])))
    assert precision_at(ids, queries, items, n_neighbors=k) == pytest.approx(
        oracles.precision(ids, queries, items, k)
    )
    assert mean_average_precision(ids, queries, items, n_neighbors=k) == pytest.approx(
        oracles.average_precision(ids, queries, items, k, same_set=False)
    )
    truth = [row[::-1] for row in ids]
    truth[0] = list(range(len(ids[0])))
    assert recall_at(ids, truth, n_neighbors=k) == pytest.approx(oracles.recall(ids, truth, k))


@given(results())
def test_classes_add_up_to_the_whole(case):
    ids, queries, items = case
    candidates = np.arange(len(ids))
    metrics = per_class(ids, candidates, queries, items)
    share = metrics.n_queries / len(ids)
    assert (share * metrics.precision).sum() == pytest.approx(precision_at(ids, queries, items))
    assert (share * metrics.candidates).sum() == pytest.approx(candidates.mean())
    for label, precision in zip(metrics.labels, metrics.precision, strict=True):
        rows = [q for q, name in enumerate(queries) if name == label]
        alone = oracles.precision([ids[q] for q in rows], [label] * len(rows), items, len(ids[0]))
        assert precision == pytest.approx(alone)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_nmi_agrees_with_scikit_learn_and_the_definition(pairs):
    buckets, labels = [b for b, _ in pairs], [c for _, c in pairs]
    ours = bucket_nmi(buckets, labels)
    assert ours == pytest.approx(oracles.nmi(buckets, labels), abs=1e-6)
    theirs = normalized_mutual_info_score(labels, buckets, average_method="arithmetic")
    if len(set(buckets)) > 1 or len(set(labels)) > 1:
        assert ours == pytest.approx(100 * theirs, abs=1e-6)


@given(st.integers(0, 2**32 - 1))
def test_full_rankings_have_the_average_precision_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    n, classes = rng.integers(2, 30), rng.integers(1, 4)
    items = rng.integers(0, classes, n)
    items[0] = 0
    scores = rng.permutation(n)  # no ties
    ranking = np.argsort(-scores)
    theirs = average_precision_score(items == 0, scores)
    ours = mean_average_precision([ranking], [0], items)
    assert ours == pytest.approx(100 * theirs)


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: precision_at([[5]], [0], [0, 1]), "< 2, the number of items, is not in row 0"),
        (lambda: precision_at([[-2]], [0], [0, 1]), ">= -1"),
        (lambda: precision_at([[0]], [0, 1], [0]), "query_labels has 2 entries, ids has 1 rows"),
        (lambda: precision_at([[0]], [0], ["a"]), "both must be integers or both strings"),
        (lambda: precision_at([[0.5]], [0], [0]), "dtype float64, must be integers"),
        (lambda: precision_at([0], [0], [0]), r"shape \(1,\), must be \(q, n\)"),
        (lambda: precision_at(np.empty((0, 2), int), [], [0]), "at least one query"),
        (lambda: precision_at([[0]], [0], [0], n_neighbors=2), "n_neighbors=2 must be <= 1"),
        (lambda: recall_at([[0]], [[0], [1]]), "ids has 1 rows, exact_ids has 2"),
        (lambda: speedup_factor([], 3), "candidates has shape"),
        (lambda: speedup_factor([-1], 3), "must be integers >= 0"),
        (lambda: speedup_factor([1], 0), "n_items=0 must be >= 1"),
        (lambda: bucket_nmi([], []), "bucket_ids has shape"),
        (lambda: bucket_nmi([0.5], [1]), "dtype float64"),
        (lambda: bucket_nmi([1, 2], [1]), "labels has 1 entries, bucket_ids has 2 rows"),
        (
            lambda: per_class([[0]], [1, 2], [0], [0]),
            r"candidates has shape \(2,\), must be \(1,\)",
        ),
        (
            lambda: mean_average_precision([[0]], [0], [0, 1], same_set=True),
            "1 queries, 2 items: must be equal",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
