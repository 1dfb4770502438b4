"""One query alone goes through one compiled call, and comes out as it does in a batch."""

import numpy as np
import pytest

from hashcade import Hasher
from hashcade.learn.encoder import point_of


@pytest.mark.parametrize("beside", [False, True], ids=["hidden alone", "item beside"])
@pytest.mark.parametrize(("size", "units", "outputs"), [(1, 1, 1), (7, 5, 3), (130, 257, 66)])
def test_a_point_is_what_the_formula_says(size, units, outputs, beside):
    rng = np.random.default_rng(size + beside)
    hidden, bias = rng.normal(size=(units, size)), rng.normal(size=units)
    last, shift = rng.normal(size=(units + beside * size, outputs)), rng.normal(size=outputs)
    item = rng.normal(size=(1, size))
    values = np.maximum(item @ hidden.T + bias, 0.0)
    if beside:
        values = np.concatenate([values, item], axis=1)
    expected = values @ last + shift
    expected /= np.linalg.norm(expected)
    point = np.empty((1, outputs), np.float32)
    arrays = (item, hidden, bias, last, shift)
    point_of(*(array.astype(np.float32) for array in arrays), point)
    np.testing.assert_allclose(point, expected, atol=1e-5)


def test_a_point_of_zeros_stays_finite():
    zero = np.zeros((2, 2), np.float32)
    point = np.ones((1, 2), np.float32)
    point_of(zero[:1], zero, zero[0], zero, zero[0], point)
    assert point.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("rerank", ["given", "learned"])
def test_alone_and_in_a_batch(rerank):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(30), 20)
    X = (rng.normal(size=(30, 16))[y] + 0.3 * rng.normal(size=(600, 16))).astype(np.float32)
    hasher = Hasher(steps=60, rerank=rerank, random_state=0).fit(X, y)
    together = hasher.encode(X[:50], scores=False)
    for row in range(50):
        alone = hasher.encode(X[row : row + 1], scores=False)
        np.testing.assert_allclose(alone.vectors[0], together.vectors[row], atol=1e-5)
        assert alone.bucket_ids.tolist() == together.bucket_ids[row : row + 1].tolist()
        assert not np.shares_memory(alone.vectors, X)
