"""One suite for every method: whatever hashes items keeps the contract of ``Hasher``."""

import inspect
import json

import numpy as np
import pytest
import torch

from hashcade import CodeShape, CorruptIndexError, Hasher, NotFittedError, StorageError
from hashcade.baselines import (
    DCH,
    LSH,
    VQ,
    Exhaustive,
    Threshold,
    flat,
    ours,
    ours_codebook,
    ours_without_remapping,
)
from hashcade.evaluate import evaluate_paper

QUICK = {"steps": 30, "hidden_size": 16, "verbose": False, "validation_fraction": 0.0}

MAKERS = {
    "metric": lambda sparsity, **seed: Exhaustive(),
    "lsh": lambda sparsity, **seed: LSH(n_bits=3, sparsity=sparsity, **seed),
    "dch": lambda sparsity, **seed: DCH(
        n_bits=3, sparsity=sparsity, steps=60, hidden_size=16, **seed
    ),
    "th": lambda sparsity, **seed: Threshold(sparsity=sparsity),
    "vq": lambda sparsity, **seed: VQ(n_centroids=6, sparsity=sparsity, **seed),
    "flat": lambda sparsity, **seed: flat(width=6, sparsity=sparsity, **QUICK, **seed),
    "ours": lambda sparsity, **seed: ours(width=4, sparsity=sparsity, **QUICK, **seed),
}
# What branches of the learner bring: their factories are tested as soon as it knows the setting.
if "remap" in inspect.signature(Hasher).parameters:
    MAKERS["ours-r"] = lambda sparsity, **seed: ours_without_remapping(
        width=4, sparsity=sparsity, **QUICK, **seed
    )
if "joint_steps" in inspect.signature(Hasher).parameters:
    MAKERS["ours+"] = lambda sparsity, **seed: ours_codebook(
        width=4, sparsity=sparsity, joint_steps=20, **QUICK, **seed
    )
SEEDED = sorted(MAKERS.keys() - {"metric", "th"})
SUPERVISED = sorted(MAKERS.keys() - {"metric", "th", "lsh", "vq"})


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
        _fitted[name, sparsity] = MAKERS[name](sparsity).fit(X, Y)
    return _fitted[name, sparsity]


@pytest.fixture(params=sorted(MAKERS))
def name(request):
    return request.param


# -- settings --------------------------------------------------------------------------------------


def test_settings_are_keyword_only_and_kept_as_given(name):
    hasher = MAKERS[name](1)
    parameters = inspect.signature(type(hasher)).parameters
    assert all(p.kind.name == "KEYWORD_ONLY" for p in parameters.values())
    settings = hasher.get_params()
    assert set(settings) == set(parameters)
    again = type(hasher)(**settings)
    assert again.get_params() == settings
    assert repr(hasher).startswith(type(hasher).__name__ + "(")


def test_settings_can_be_changed_and_unknown_ones_are_refused(name):
    hasher = MAKERS[name](1)
    with pytest.raises(ValueError, match="'nonsense' is no setting, must be one of"):
        hasher.set_params(nonsense=1)
    for setting in hasher.get_params():
        marker = object()
        assert hasher.set_params(**{setting: marker}) is hasher
        assert getattr(hasher, setting) is marker


@pytest.mark.parametrize("name", SEEDED)
def test_equal_seeds_give_equal_buckets_and_others_do_not(name):
    one, same, other = (MAKERS[name](1, random_state=seed).fit(X, Y) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.scores(X), same.scores(X))
    assert (one.scores(X) != other.scores(X)).any()
    for bad in (-1, 0.5, "x"):
        with pytest.raises(ValueError, match="random_state="):
            MAKERS[name](1, random_state=bad).fit(X, Y)


# -- fit -------------------------------------------------------------------------------------------


def test_nothing_works_before_fit(name):
    hasher = MAKERS[name](1)
    for use in (hasher.scores, hasher.transform, hasher.embed):
        with pytest.raises(NotFittedError, match="learned nothing yet"):
            use(X)
    with pytest.raises(NotFittedError):
        hasher.save("nowhere")


def test_fit_returns_self_and_leaves_its_input_alone(name):
    items, labels = X.copy(), Y.copy()
    hasher = MAKERS[name](1)
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
    hasher = MAKERS[name](1)
    with pytest.raises(ValueError, match=message):
        hasher.fit(items, labels)
    assert not hasattr(hasher, "shape_")


@pytest.mark.parametrize("name", SUPERVISED)
def test_labels_that_do_not_fit_are_refused(name):
    with pytest.raises(ValueError, match="y has 119 labels, X has 120 items"):
        MAKERS[name](1).fit(X, Y[:-1])
    with pytest.raises(ValueError, match="y has one class only"):
        MAKERS[name](1).fit(X, Y * 0)


@pytest.mark.parametrize("name", ["metric", "lsh", "th", "vq"])
def test_unsupervised_methods_do_not_look_at_labels(name):
    with_labels, without = fitted(name), MAKERS[name](1).fit(X)
    np.testing.assert_array_equal(with_labels.scores(X), without.scores(X))


@pytest.mark.parametrize("name", sorted(MAKERS.keys() - {"metric"}))
def test_too_many_buckets_per_item_are_refused(name):
    with pytest.raises(ValueError, match="sparsity=99 must be <= width="):
        MAKERS[name](99).fit(X, Y)


# -- use -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [1, 3])
def test_buckets_scores_and_vectors_fit_together(name, sparsity):
    hasher = fitted(name, sparsity)
    shape = hasher.shape_
    assert isinstance(shape, CodeShape)
    per_item = 1 if name == "metric" else sparsity
    assert shape.sparsity == per_item
    scores, buckets, vectors = hasher.scores(X), hasher.transform(X), hasher.embed(X)
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
    alone = np.concatenate([hasher.transform(X[i : i + 1]) for i in range(10)])
    np.testing.assert_array_equal(alone, hasher.transform(X[:10]))


def test_lists_arrays_and_tensors_are_the_same(name):
    hasher = fitted(name)
    expected = hasher.transform(X)
    for other in (X.tolist(), X.astype(np.float64), torch.from_numpy(X), X[::-1][::-1]):
        np.testing.assert_array_equal(hasher.transform(other), expected)


def test_items_of_another_size_are_refused(name):
    for use in (fitted(name).scores, fitted(name).transform, fitted(name).embed):
        with pytest.raises(ValueError, match=r"X has 7 (features|columns), .* 8"):
            use(X[:, :7])


def test_numbers_beyond_float32_are_refused(name):
    with pytest.raises(ValueError, match="NaN or infinite values in row 0"):
        fitted(name).transform(np.full((1, 8), 1e300))


# -- files -----------------------------------------------------------------------------------------


def test_what_was_saved_comes_back(name, tmp_path):
    hasher = fitted(name, 3)
    hasher.save(tmp_path / "model")
    again = type(hasher).load(tmp_path / "model")
    assert again.shape_ == hasher.shape_
    np.testing.assert_array_equal(again.scores(X), hasher.scores(X))
    np.testing.assert_array_equal(again.transform(X), hasher.transform(X))
    kept = ("n_bits", "n_centroids", "sparsity", "random_state", "width", "depth")
    for setting in kept:
        assert getattr(again, setting, None) == getattr(hasher, setting, None)


def test_damage_and_other_models_are_noticed(name, tmp_path):
    hasher = fitted(name)
    hasher.save(tmp_path / "model")
    other = VQ if not isinstance(hasher, VQ) else LSH
    with pytest.raises(StorageError, match="must be"):
        other.load(tmp_path / "model")
    blob = tmp_path / "model" / "model.safetensors"
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(CorruptIndexError, match="is damaged"):
        type(hasher).load(tmp_path / "model")
    with pytest.raises(StorageError):
        type(hasher).load(tmp_path / "nowhere")


def test_a_config_that_does_not_fit_is_damage(tmp_path):
    fitted("lsh").save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config["settings"]["unknown"] = 1
    path.write_text(json.dumps(config))
    with pytest.raises(CorruptIndexError, match="its parts do not fit"):
        LSH.load(tmp_path / "model")


# -- evaluation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [1, 3])
def test_every_method_is_evaluated_by_the_same_function(name, sparsity):
    hasher = fitted(name, sparsity)
    test, labels = data(60, seed=1)
    both = evaluate_paper(hasher, test, labels, X, Y, n_neighbors=(1, 4), recall=True)
    for figures, size in ((both["test"], 59), (both["train"], 120)):
        assert figures.n_items == size
        assert figures.precision[1] > 60.0  # chance is 20
        assert figures.speedup[4] <= figures.speedup[1]
        assert figures.speedup[1] >= 1.0
    assert both["test"].same_set
    assert not both["train"].same_set
    if name == "metric":
        assert both["train"].recall == {1: 100.0, 4: 100.0}
        assert both["train"].speedup == {1: 1.0, 4: 1.0}
    elif sparsity == 1:  # three of six buckets may well meet all others
        assert both["train"].speedup[1] > 1.5
