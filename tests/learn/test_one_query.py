"""One query alone goes through one compiled call, and comes out as it does in a batch."""

import numpy as np
import pytest

from hashcade import Hasher
from hashcade.index import GroupedVectors
from hashcade.learn.one_query import OneQuery, rounded_to_half


def halves(rng, *shape):
    return rng.normal(size=shape).astype(np.float16)


@pytest.mark.parametrize(("size", "units", "outputs"), [(1, 1, 1), (7, 5, 3), (130, 257, 66)])
def test_point_and_buckets_are_what_the_formula_says(size, units, outputs):
    rng = np.random.default_rng(size)
    item, mean = rng.normal(size=(2, 1, size)).astype(np.float32)
    hidden, bias = halves(rng, units, size), halves(rng, units).astype(np.float32)
    last, shift = halves(rng, units + size, outputs), halves(rng, outputs).astype(np.float32)
    prototypes = rng.normal(size=(9, outputs)).astype(np.float32)
    codebook = rng.integers(0, 100, size=(9, 2))
    scale = np.array(2.0, np.float32)
    prepared = (item.astype(np.float64) - mean) / 2.0
    values = np.maximum(prepared @ hidden.astype(np.float64).T + bias, 0.0)
    expected = np.concatenate([values, prepared], axis=1) @ last.astype(np.float64) + shift
    expected /= np.linalg.norm(expected)
    nearest = np.argsort(np.square(prototypes - expected).sum(axis=1), kind="stable")[:4]

    grouped = GroupedVectors(prototypes, np.zeros(9, np.int64))
    one = OneQuery(mean[0], scale, hidden, bias, last, shift).with_prototypes(grouped, codebook)
    point, buckets = one(item, 4, 1)
    np.testing.assert_allclose(point, expected, atol=1e-5)
    if outputs > 1:  # unit vectors of one number are all at the same distances
        assert buckets.tolist() == [codebook[nearest].ravel().tolist()]


def test_a_point_of_zeros_stays_finite():
    zero, half = np.zeros((1, 2), np.float32), np.zeros((4, 2), np.float16)
    one = OneQuery(zero[0], np.ones((), np.float32), half[:2], zero[0], half, zero[0])
    point, buckets = one(zero, 0, 1)
    assert point.tolist() == [[0.0, 0.0]]
    assert buckets.shape == (1, 0)


def test_weights_beyond_float16_are_not_rounded():
    values = np.array([[1.0, 1e-3], [7e4, 0.1]], np.float32)
    assert rounded_to_half(values) is values
    rounded = rounded_to_half(values[:1])
    np.testing.assert_allclose(rounded, values[:1], rtol=1e-3)
    np.testing.assert_array_equal(rounded, rounded_to_half(rounded))


def items_of(n_classes, per_class=20):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(n_classes), per_class)
    X = rng.normal(size=(n_classes, 16))[y] + 0.3 * rng.normal(size=(len(y), 16))
    return X.astype(np.float32), y


@pytest.fixture(scope="module")
def fitted():
    return Hasher(steps=60).fit(*items_of(30))


@pytest.mark.parametrize("rerank", ["given", "learned"])
@pytest.mark.parametrize("sparsity", [1, 2])
def test_alone_and_in_a_batch(rerank, sparsity):
    X, y = items_of(30)
    hasher = Hasher(steps=60, rerank=rerank, sparsity=sparsity).fit(X, y)
    together = hasher.encode(X[:50], scores=False, n_probe=3)
    for row in range(50):
        alone = hasher.encode(X[row : row + 1], scores=False, n_probe=3)
        np.testing.assert_allclose(alone.vectors[0], together.vectors[row], atol=1e-5)
        assert alone.bucket_ids.tolist() == together.bucket_ids[row : row + 1].tolist()
        assert alone.ranked.tolist() == together.ranked[row : row + 1].tolist()
        assert alone.all_ranked == together.all_ranked
        assert not np.shares_memory(alone.vectors, X)


def test_alone_and_in_a_batch_with_groups_of_prototypes():
    X, y = items_of(2500, 4)
    hasher = Hasher(steps=20, validation_fraction=0).fit(X, y)
    together = hasher.encode(X[:50], scores=False)
    alone = [hasher.encode(X[row : row + 1], scores=False).ranked[0] for row in range(50)]
    np.testing.assert_array_equal(alone, together.ranked)


def test_other_arrays_of_the_same_numbers_give_the_same(fitted):
    X, _ = items_of(30)
    plain = X[:1].copy()
    read_only, strided = plain.copy(), np.repeat(plain, 2, axis=1)[:, ::2]
    read_only.flags.writeable = False
    expected = fitted.encode(plain, scores=False)
    for other in (plain.astype(np.float64), read_only, strided, plain.tolist()):
        encoded = fitted.encode(other, scores=False)
        np.testing.assert_allclose(encoded.vectors, expected.vectors, atol=1e-6)
        assert encoded.ranked.tolist() == expected.ranked.tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_an_error_alone_too(fitted, value):
    item = np.zeros((1, 16), np.float32)
    item[0, 3] = value
    with pytest.raises(ValueError, match="NaN or infinite values in row 0"):
        fitted.encode(item, scores=False)


def test_an_item_whose_square_is_too_large_is_encoded(fitted):
    item = np.full((1, 16), 1e30, np.float32)
    encoded = fitted.encode(item, scores=False)
    assert np.isfinite(encoded.vectors).all()


def test_training_and_extending_leave_weights_that_float16_has(fitted):
    X, _ = items_of(30)
    extended = fitted.extend(X[:40] + 5.0, np.repeat([100, 101], 20))
    for hasher in (fitted, extended):
        assert hasher.encoder._one_query is not None
        # What is rounded already stays as it is; other weights take the path of a batch.
        weights = {
            **hasher._weights,
            "vector_head.weight": hasher._weights["vector_head.weight"] * 1.1,
        }
        assert OneQuery.of(weights) is None
