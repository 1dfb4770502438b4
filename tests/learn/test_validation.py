"""The metrics that pick the weights, against loops that follow their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade import CodeShape, Hasher
from hashcade.index import Encoded
from hashcade.learn.stages import search_metrics
from hashcade.learn.training_data import stratified_split
from tests.learn.factories import QUICK, blobs, by_codebook
from tests.learn.oracles import search_precision_and_speedup


@given(
    n=st.integers(2, 14),
    width=st.integers(1, 4),
    depth=st.integers(1, 3),
    by_path=st.booleans(),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_search_metrics_equal_their_definition(n, width, depth, by_path, seed, data):
    shape = CodeShape(width=width, depth=depth, sparsity=data.draw(st.integers(1, width)))
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n, depth, width)).astype(np.float32)
    vectors = rng.integers(0, 3, size=(n, 2)).astype(np.float32)  # ties of distance
    labels = rng.integers(0, 3, size=n)
    buckets = shape.scores_to_bucket_ids(scores)
    if not by_path:
        parents = rng.integers(0, width ** (depth - 1), size=3)
        last = np.array([rng.permutation(width)[: shape.sparsity] for _ in parents])
        buckets = by_codebook(scores, np.sort(parents[:, None] * width + last), shape)
    metrics = search_metrics(Encoded(vectors, buckets, scores, by_path), labels, shape)
    expected = search_precision_and_speedup(
        scores, buckets, vectors, labels, shape, by_path=by_path
    )
    assert (metrics["precision_at_1"], metrics["speedup_factor"]) == pytest.approx(expected)


def test_with_a_code_book_a_lonely_query_continues_by_sums():
    # Three items alone in their buckets: each has to continue to the next best sum.
    shape = CodeShape(width=3, depth=2)
    scores = np.array(
        [
            [[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]],  # bucket 0, then 4
            [[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]],  # bucket 4, then 8
            [[1.0, 0.0, 3.0], [0.0, 1.1, 3.0]],  # bucket 8, then 4 by 1.1, though slot 0 is next
        ],
        np.float32,
    )
    buckets = np.array([[0], [4], [8]])
    encoded = Encoded(np.zeros((3, 1), np.float32), buckets, scores, by_path=False)
    metrics = search_metrics(encoded, np.array([5, 5, 6]), shape)
    assert metrics["precision_at_1"] == pytest.approx(100 / 3)  # 0 finds 1; 1 finds 2; 2 finds 1
    assert metrics["speedup_factor"] == 2.0  # each looks at one of two others


@pytest.mark.parametrize("assignment", ["path", "codebook", "prototype"])
def test_validation_is_what_a_search_of_the_validation_set_finds(assignment):
    X, y = blobs(noise=2.0)
    hasher = Hasher(**QUICK, assignment=assignment, validation_fraction=0.5).fit(X, y)
    _, rows = stratified_split(y, fraction=0.5, random_state=0)
    encoded = hasher.encode(X[rows])
    metrics = search_metrics(encoded, y[rows], hasher.shape_)
    assert metrics == pytest.approx(hasher.validation_)
