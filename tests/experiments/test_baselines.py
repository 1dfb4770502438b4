"""One suite for every method: whatever hashes items keeps the contract of ``Hasher``."""

import numpy as np
import pytest
import torch

from experiments.baselines import METHODS, make_method
from hashcade import CodeShape, NotFittedError
from hashcade.evaluate import evaluate_hasher
from hashcade.index import Encoded

QUICK = {"steps": 30, "hidden_size": 16}
HASHER = {**QUICK, "verbose": False, "validation_fraction": 0.0}
SETTINGS = {
    "lsh": {"n_bits": 3},
    "dch": {"n_bits": 3, "steps": 60, "hidden_size": 16},
    "vq": {"n_centroids": 6},
    "flat": HASHER,
    "ours-r": HASHER,
    "ours": HASHER,
    "ours+": {**HASHER, "joint_steps": 20},
}
SEEDED = sorted(set(METHODS) - {"metric", "th"})
SUPERVISED = sorted(set(METHODS) - {"metric", "th", "lsh", "vq"})


def make(name, sparsity, **seed):
    width = 3 if name == "flat" else 4
    return make_method(name, width=width, sparsity=sparsity, **SETTINGS.get(name, {}), **seed)


def data(n=120, seed=0):
    """Five classes in eight dimensions, well apart."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 5
    means = 3.0 * np.random.default_rng(9).normal(size=(5, 8))
    return (means[y] + rng.normal(size=(n, 8))).astype(np.float32), y


X, Y = data()
_fitted = {}


def fitted(name, sparsity=1):
    if (name, sparsity) not in _fitted:
        _fitted[name, sparsity] = make(name, sparsity).fit(X, Y)
    return _fitted[name, sparsity]


@pytest.fixture(params=METHODS)
def name(request):
    return request.param


@pytest.mark.parametrize("name", SEEDED)
def test_equal_seeds_give_equal_buckets_and_others_do_not(name):
    one, same, other = (make(name, 1, random_state=seed).fit(X, Y) for seed in (3, 3, 4))
    one, same, other = (hasher.encode(X).scores for hasher in (one, same, other))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


# -- fit -------------------------------------------------------------------------------------------


def test_nothing_works_before_fit(name):
    hasher = make(name, 1)
    with pytest.raises(NotFittedError):
        hasher.encode(X)


def test_fit_returns_self_and_leaves_its_input_alone(name):
    items, labels = X.copy(), Y.copy()
    hasher = make(name, 1)
    assert hasher.fit(items, labels) is hasher
    np.testing.assert_array_equal(items, X)
    np.testing.assert_array_equal(labels, Y)


@pytest.mark.parametrize(
    ("items", "labels", "message"),
    [
        (X[0], Y, "X has shape"),
        (np.where(np.arange(120)[:, None] == 7, np.nan, X), Y, "NaN or infinite values in row 7"),
        (np.empty((0, 8)), Y[:0], r"X has (0|shape)"),
        ([["a"]], [1], "X has dtype"),
    ],
)
def test_bad_items_are_refused_and_change_nothing(name, items, labels, message):
    hasher = make(name, 1)
    with pytest.raises(ValueError, match=message):
        hasher.fit(items, labels)
    assert not hasattr(hasher, "shape_")


@pytest.mark.parametrize("name", SUPERVISED)
def test_labels_that_do_not_fit_are_refused(name):
    with pytest.raises(ValueError, match="y has 119 labels, X has 120 items"):
        make(name, 1).fit(X, Y[:-1])
    with pytest.raises(ValueError, match="y has one class only"):
        make(name, 1).fit(X, Y * 0)


@pytest.mark.parametrize("name", ["metric", "lsh", "th", "vq"])
def test_unsupervised_methods_do_not_look_at_labels(name):
    with_labels, without = fitted(name), make(name, 1).fit(X)
    np.testing.assert_array_equal(with_labels.encode(X).scores, without.encode(X).scores)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"metric"}))
def test_too_many_buckets_per_item_are_refused(name):
    with pytest.raises(ValueError, match="sparsity=99 must be <= width="):
        make(name, 99).fit(X, Y)


# -- use -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [1, 3])
def test_buckets_scores_and_vectors_fit_together(name, sparsity):
    hasher = fitted(name, sparsity)
    shape = hasher.shape_
    assert isinstance(shape, CodeShape)
    per_item = 1 if name == "metric" else sparsity
    assert shape.sparsity == per_item
    encoded = hasher.encode(X)
    assert isinstance(encoded, Encoded)
    assert encoded.by_path == (name != "ours+")
    scores, buckets, vectors = encoded.scores, encoded.bucket_ids, encoded.vectors
    assert scores.dtype == np.float32
    assert scores.shape == (len(X), shape.depth, shape.width)
    assert buckets.dtype == np.int64
    assert buckets.shape == (len(X), per_item)
    assert ((buckets >= 0) & (buckets < shape.n_buckets)).all()
    assert (np.diff(np.sort(buckets, axis=1), axis=1) > 0).all()  # no bucket twice
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, X)
    if name != "ours+":  # its buckets are those of the largest sums
        np.testing.assert_array_equal(buckets, shape.scores_to_bucket_ids(scores))


@pytest.mark.parametrize("sparsity", [1, 3])
def test_items_are_hashed_one_by_one_as_together(name, sparsity):
    hasher = fitted(name, sparsity)
    alone = np.concatenate([hasher.encode(X[i : i + 1]).bucket_ids for i in range(10)])
    np.testing.assert_array_equal(alone, hasher.encode(X[:10]).bucket_ids)


def test_lists_arrays_and_tensors_are_the_same(name):
    hasher = fitted(name)
    expected = hasher.encode(X).bucket_ids
    for other in (X.tolist(), X.astype(np.float64), torch.from_numpy(X), X[::-1][::-1]):
        np.testing.assert_array_equal(hasher.encode(other).bucket_ids, expected)


def test_items_of_another_size_are_refused(name):
    with pytest.raises(ValueError, match=r"X has 7 (features|columns), .* 8"):
        fitted(name).encode(X[:, :7])


def test_numbers_beyond_float32_are_refused(name):
    with pytest.raises(ValueError, match="NaN or infinite values in row 0"):
        fitted(name).encode(np.full((1, 8), 1e300))


# -- evaluation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [1, 3])
def test_every_method_is_evaluated_by_the_same_function(name, sparsity):
    hasher = fitted(name, sparsity)
    test, labels = data(60, seed=1)
    settings = {"n_neighbors": (1, 4), "recall": True}
    among = evaluate_hasher(hasher, test, labels, **settings)
    other = evaluate_hasher(hasher, test, labels, X, Y, **settings)
    for result, size in ((among, 59), (other, 120)):
        assert result.n_items == size
        assert result.precision[1] > 60.0  # chance is 20
        assert result.speedup[4] <= result.speedup[1]
        assert result.speedup[1] >= 1.0
    assert among.same_set
    assert not other.same_set
    if name == "metric":
        assert other.recall == {1: 100.0, 4: 100.0}
        assert other.speedup == {1: 1.0, 4: 1.0}
    elif sparsity == 1:  # three of six buckets may well meet all others
        assert other.speedup[1] > 1.5
