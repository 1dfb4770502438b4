"""The estimator: its contract, what it learns, what it refuses, its files."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from hashcade import (
    CodeShape,
    ConfigError,
    CorruptIndexError,
    Hasher,
    IncompatibleFormatError,
    NotFittedError,
    StorageError,
)
from hashcade.learn.config import default_items_per_class, default_width, resolve
from hashcade.learn.training_data import TrainingData, stratified_split
from tests.learn import factories
from tests.learn.factories import QUICK

ASSIGNMENTS = ["prototype", "codebook", "path"]
LABELS = [-20, -10, 0, 10, 20, 30]  # negative, and with gaps


def blobs(**settings):
    return factories.blobs(labels=LABELS, **settings)


@pytest.fixture(scope="module")
def fitted():
    X, y = blobs()
    return Hasher(**{**QUICK, "steps": 200}).fit(X, y), X, y


# ------------------------------------------------------------------------------- the contract


def test_results_have_the_shapes_and_dtypes_of_the_contract(fitted):
    hasher, X, _ = fitted
    scores, ids, vectors = hasher.scores(X), hasher.transform(X), hasher.embed(X)
    assert (scores.shape, scores.dtype) == ((len(X), 2, 4), np.float32)
    assert (ids.shape, ids.dtype) == ((len(X), 1), np.int64)
    assert (vectors.shape, vectors.dtype) == ((len(X), 128), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-6)  # learned points
    given = Hasher(**QUICK, rerank="given").fit(X, blobs()[1])
    np.testing.assert_array_equal(given.embed(X), X)
    assert hasher.shape_ == CodeShape(width=4, depth=2)
    assert hasher.classes_.tolist() == [-20, -10, 0, 10, 20, 30]


def test_classes_that_lie_apart_get_buckets_of_their_own(fitted):
    hasher, X, y = fitted
    buckets = hasher.transform(X).ravel().tolist()
    assert len(set(buckets)) == len(set(zip(y.tolist(), buckets, strict=True))) == 6
    assert hasher.validation_ == {
        "precision_at_1": 100.0,
        "speedup_factor": pytest.approx(
            11.0
        ),  # 12 items in the validation set: one of 11 others is looked at
        "bucket_nmi": pytest.approx(100.0),
    }


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@pytest.mark.parametrize("loss", ["npairs", "triplet"])
def test_both_losses_learn_and_several_buckets_are_given(loss, assignment):
    X, y = blobs()
    settings = {**QUICK, "steps": 150, "assignment": assignment}
    hasher = Hasher(**settings, loss=loss, sparsity=2).fit(X, y)
    assert hasher.transform(X).shape == (len(X), 2)
    assert hasher.validation_["precision_at_1"] == 100.0
    assert hasher.validation_["speedup_factor"] > 2.0  # of 6 at best, 1 without learning


def test_lists_tensors_and_arrays_give_the_same(fitted):
    hasher, X, y = fitted
    expected = hasher.transform(X)
    np.testing.assert_array_equal(hasher.transform(X.tolist()), expected)
    np.testing.assert_array_equal(hasher.transform(torch.from_numpy(X)), expected)
    named = np.array([f"class {label}" for label in y], dtype=object)
    other = Hasher(**QUICK).fit(torch.from_numpy(X), named.tolist())
    assert other.classes_[0] == "class -10"


def test_an_array_that_may_not_be_written_to_is_taken_without_a_warning(fitted):
    hasher, X, y = fitted
    locked = X.copy()
    locked.flags.writeable = False  # as a memory-mapped file is
    np.testing.assert_array_equal(hasher.transform(locked), hasher.transform(X))
    Hasher(**QUICK).fit(locked, y)


def test_settings_can_be_read_changed_and_shown():
    hasher = Hasher(width=16, loss="triplet")
    assert hasher.get_params()["width"] == 16
    assert hasher.set_params(depth=3) is hasher
    assert repr(hasher) == "Hasher(width=16, depth=3, loss='triplet')"
    assert Hasher(**hasher.get_params()).get_params() == hasher.get_params()
    with pytest.raises(ValueError, match="'breadth' is not a setting, must be one of"):
        hasher.set_params(depth=4, breadth=1)
    assert hasher.depth == 3
    with pytest.raises(TypeError):
        Hasher(16)


def test_scikit_learn_can_clone_it():
    from sklearn.base import clone

    assert clone(Hasher(width=16)).get_params() == Hasher(width=16).get_params()


def test_copies_and_pickles_work_like_the_first(fitted):
    hasher, X, _ = fitted
    for other in (copy.deepcopy(hasher), pickle.loads(pickle.dumps(hasher))):
        np.testing.assert_array_equal(other.transform(X), hasher.transform(X))
        assert other.get_params() == hasher.get_params()
    own = nn.Sequential(nn.Linear(8, 5), nn.ReLU())  # asked through torch, not numpy
    hasher = Hasher(**{**QUICK, "base_steps": 2}, backbone=own).fit(X, fitted[2])
    for other in (copy.deepcopy(hasher), pickle.loads(pickle.dumps(hasher))):
        np.testing.assert_array_equal(other.scores(X), hasher.scores(X))


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_equal_seeds_give_equal_models_and_other_seeds_others(assignment):
    X, y = blobs()
    one, same, other = (
        Hasher(**QUICK, assignment=assignment, random_state=seed).fit(X, y).scores(X)
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_the_global_generators_of_the_user_are_left_alone(assignment, tmp_path):
    X, y = blobs()
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    hasher = Hasher(**QUICK, assignment=assignment).fit(X, y)
    hasher.save(tmp_path / "model")
    Hasher.load(tmp_path / "model")._model()
    Hasher().fit_clusters(X)
    torch.testing.assert_close(torch.rand(3), expected[0])
    np.testing.assert_array_equal(np.random.rand(3), expected[1])  # noqa: NPY002


@pytest.mark.parametrize("assignment", ["prototype", "codebook"])
def test_a_learned_projection_has_the_size_that_is_asked_for(assignment):
    X, y = blobs()
    settings = {**QUICK, "embedding_size": 3, "base_steps": 20}
    hasher = Hasher(**settings, assignment=assignment).fit(X, y)
    assert hasher.embed(X).shape == (len(X), 3)


@pytest.mark.parametrize("backbone", ["mlp", "own"])
def test_vectors_may_have_a_network_too(backbone, tmp_path):
    X, y = blobs()
    given = nn.Sequential(nn.Linear(8, 12), nn.Tanh()) if backbone == "own" else backbone
    settings = {**QUICK, "base_steps": 20, "hidden_size": None if backbone == "own" else 12}
    hasher = Hasher(**settings, embedding_size=3, backbone=given).fit(X, y)
    assert hasher.embed(X).shape == (len(X), 3)
    assert hasher._model().head[0].in_features == 12  # the head stands on the hidden layer
    hasher.save(tmp_path / "model")
    loaded = Hasher.load(tmp_path / "model", backbone=given if backbone == "own" else None)
    np.testing.assert_array_equal(loaded.scores(X), hasher.scores(X))
    np.testing.assert_array_equal(loaded.embed(X), hasher.embed(X))


def test_of_several_views_training_takes_any_and_all_else_the_first():
    X, y = blobs()
    settings = {**QUICK, "embedding_size": 3, "base_steps": 20}
    views = np.stack([X, X + 0.5 * np.random.default_rng(1).normal(size=X.shape)], axis=1)
    hasher = Hasher(**settings).fit(views, y)
    single = Hasher(**settings).fit(views[:, :1], y)
    plain = Hasher(**settings).fit(X, y)
    np.testing.assert_array_equal(single.scores(X), plain.scores(X))
    assert (hasher.scores(X) != plain.scores(X)).any()  # it saw the other views
    torch.testing.assert_close(hasher._model().prepare.mean, plain._model().prepare.mean)
    data = TrainingData(torch.from_numpy(views), y, np.arange(120), np.arange(0))
    chosen = np.arange(100)
    torch.testing.assert_close(data.items_at(chosen), torch.from_numpy(views[:100, 0]))
    drawn = data.augmented(chosen, "none", seed=7).numpy()
    which = (drawn == views[:100, 1]).all(axis=1)
    assert ((drawn == views[:100, 0]).all(axis=1) ^ which).all()
    assert 30 < which.sum() < 70  # as a coin falls
    np.testing.assert_array_equal(drawn, data.augmented(chosen, "none", seed=7).numpy())


def test_dropout_hides_values_from_the_hash_network_while_it_is_trained_and_from_nothing_else():
    X, y = blobs()
    settings = {**QUICK, "hidden_size": 8, "backbone": "mlp", "embedding_size": 3, "base_steps": 20}
    plain, dropped, again = (
        Hasher(**settings, dropout=dropout).fit(X, y) for dropout in (0.0, 0.4, 0.4)
    )
    np.testing.assert_array_equal(dropped.embed(X), plain.embed(X))
    assert (dropped.scores(X) != plain.scores(X)).any()
    np.testing.assert_array_equal(dropped.scores(X), again.scores(X))
    model, items = dropped._model(), torch.from_numpy(X)
    model.hash_base, model.head = nn.Identity(), nn.Sequential(nn.Identity())  # to see what it sees
    whole = model.hidden(items)
    parts = torch.stack([model.hidden(items, dropout=0.4) for _ in range(400)])
    assert ((parts == 0) | torch.isclose(parts, whole / 0.6)).all()
    torch.testing.assert_close((parts == 0).float().mean(), torch.tensor(0.4), atol=0.01, rtol=0)


@pytest.mark.parametrize(
    ("backbone", "assignment"),
    [("stride", "prototype"), ("nin", "path"), ("own", "prototype"), ("own", "codebook")],
)
def test_images_are_trained_in_stages(backbone, assignment):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 10)
    X = rng.integers(0, 60, size=(30, 8, 8, 3), dtype=np.uint8)
    X[np.arange(30), :, :, y] += 150  # red, green and blue
    if backbone == "own":
        backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        before = backbone[0].weight.detach().clone()
    settings = {"width": 4, "steps": 12, "base_steps": 12, "embedding_size": 4}
    hasher = Hasher(**settings, backbone=backbone, assignment=assignment).fit(X, y)
    assert hasher.embed(X).shape == (30, 4)
    assert hasher.transform(X).shape == (30, 1)
    if isinstance(backbone, nn.Module):
        torch.testing.assert_close(backbone[0].weight.detach(), before)  # a copy was trained


@pytest.mark.parametrize(
    "settings",
    [{}, {"assignment": "path"}, {"assignment": "path", "embedding_size": 3, "base_steps": 20}],
)
def test_training_that_diverges_is_an_error_with_a_way_out(settings):
    X, y = blobs()
    hasher = Hasher(**QUICK, **settings, learning_rate=1e30)
    with pytest.raises(ConfigError, match="training diverged: the loss is") as caught:
        hasher.fit(X, y)
    assert caught.value.hint == "set a learning_rate below 1e+30"
    assert not hasattr(hasher, "shape_")


# ---------------------------------------------------------------------------------- bad input


def spoiled(X, row):
    X = X.copy()
    X[row, 1] = np.nan
    return X


X0, Y0 = blobs()
IMAGES = np.zeros((120, 8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("settings", "X", "y", "message"),
    [
        ({}, X0, Y0[:-1], "y has 119 labels, X has 120 items"),
        ({}, X0, np.full(120, 7), r"y has one class only \(7\), must have at least 2"),
        ({}, spoiled(X0, 17), Y0, "X has NaN or infinite values in row 17"),
        ({"width": 2}, X0, Y0, r"y has 6 classes, must be <= n_buckets = .* 2\*\*2 = 4"),
        ({}, X0, np.eye(6)[np.arange(120) % 6], r"y has shape \(120, 6\): several labels per item"),
        ({}, X0, Y0 + 0.5, "y has dtype float64, must be integers or strings"),
        ({}, X0[0], Y0, r"X has shape \(8,\), must be \(n, size\)"),
        ({}, np.zeros((120, 2, 0)), Y0, r"X has shape \(120, 2, 0\), must be"),
        ({}, np.stack([X0, spoiled(X0, 17)], axis=1), Y0, "NaN or infinite values in row 17"),
        ({"backbone": "mlp"}, IMAGES, Y0, r"X has shape \(120, 8, 8, 3\)"),
        ({"backbone": "mlp", "hidden_size": 0}, X0, Y0, "hidden_size=0 must be >= 1"),
        ({}, IMAGES, Y0, "looks like images: without a backbone X must be embeddings"),
        ({}, X0.astype(str), Y0, "must be real numbers"),
        ({"backbone": "nin"}, X0, Y0, r"X has shape \(120, 8\), images must be \(n, h"),
        ({"backbone": "nin"}, IMAGES / 255, Y0, "X has dtype float64, images must be uint8"),
        ({"loss": "softmax"}, X0, Y0, "loss='softmax' must be one of 'npairs', 'triplet'"),
        ({"assignment": "best"}, X0, Y0, "assignment='best' must be one of 'prototype', 'cod"),
        ({"items_per_class": 3}, X0, Y0, "items_per_class=3 must be >= 2 and even"),
        ({"sparsity": 5}, X0, Y0, "sparsity=5 must be <= width=4"),
        ({"steps": 0}, X0, Y0, "steps=0 must be >= 1"),
        ({"remap": "no"}, X0, Y0, "remap='no' must be True or False"),
        ({"learning_rate": 0}, X0, Y0, "learning_rate=0 must be > 0"),
        ({"schedule": "cosine"}, X0, Y0, "schedule='cosine' must be one of"),
        ({"validation_fraction": 1.0}, X0, Y0, "validation_fraction=1.0 must be >= 0 and < 1"),
        ({"validation_fraction": None}, X0, Y0, "validation_fraction=None must be a number"),
        ({"schedule": 0}, X0, Y0, "schedule=0 must be >= 1"),
        ({}, X0, np.where(Y0[0] == Y0, np.inf, 1.0), "y has dtype float64, must be integers"),
        ({"backbone": "stride"}, IMAGES[:, :6, :5], Y0, "backbone does not take items of shape"),
        ({"random_state": -1}, X0, Y0, "random_state=-1 must be >= 0"),
        ({"random_state": None}, X0, Y0, "random_state=None must be an integer"),
        ({"dropout": 1.0}, X0, Y0, "dropout=1.0 must be >= 0 and < 1"),
        ({"dropout": 0.1, "backbone": "nin"}, IMAGES, Y0, "dropout=0.1 must be 0 for images"),
        ({"device": "abacus"}, X0, Y0, "device='abacus' cannot be used"),
        ({"backbone": "vgg"}, IMAGES, Y0, "backbone='vgg' must be"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line_and_changes_nothing(fitted, tmp_path, settings, X, y, message):
    hasher = copy.deepcopy(fitted[0])
    before = hasher.scores(X0)
    hasher.set_params(run_dir=tmp_path / "run", **settings)
    with pytest.raises(ValueError, match=message) as caught:
        hasher.fit(X, y)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(hasher.scores(X0), before)
    assert not (tmp_path / "run").exists()  # nothing half-written


def test_results_before_learning_are_refused(tmp_path):
    for call in ("scores", "transform", "embed", "encode"):
        with pytest.raises(NotFittedError, match="not fitted yet") as caught:
            getattr(Hasher(), call)(X0)
        assert caught.value.hint == "call fit or Hasher.load first"
    with pytest.raises(NotFittedError):
        Hasher().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_items_of_another_size_are_refused_after_fit(fitted):
    with pytest.raises(ValueError, match="X has 3 features, but Hasher is expecting 8 features"):
        fitted[0].transform(np.zeros((2, 3)))


# --------------------------------------------------------------------------------------- files


def test_a_stored_hasher_gives_the_same_results(fitted, tmp_path):
    hasher, X, _ = fitted
    hasher.save(tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    loaded = Hasher.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.scores(X), hasher.scores(X))
    assert loaded.get_params() == hasher.get_params()
    assert loaded.shape_ == hasher.shape_
    assert loaded.classes_.tolist() == hasher.classes_.tolist()
    assert loaded.validation_ == hasher.validation_
    hasher.save(tmp_path / "model")  # again, in its place
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_truncated_or_changed_model_is_damaged(fitted, tmp_path):
    path = tmp_path / "model"
    fitted[0].save(path)
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(CorruptIndexError, match=r"is damaged: it has \d+ bytes, must have \d+"):
        Hasher.load(path)
    (path / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptIndexError, match="its checksum is wrong"):
        Hasher.load(path)
    (path / "model.safetensors").write_bytes(whole)
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text[: len(text) // 2])
    with pytest.raises(CorruptIndexError, match=r"config.json is damaged"):
        Hasher.load(path)
    config = json.loads(text)
    config["resolved"]["hidden_size"] = 17
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptIndexError, match="its parts do not fit") as caught:
        Hasher.load(path)
    assert "\n" not in str(caught.value)


def test_a_model_of_another_version_or_kind_is_refused(fitted, tmp_path):
    path = tmp_path / "model"
    fitted[0].save(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "format_version": 99}))
    with pytest.raises(IncompatibleFormatError, match=r"format version 99, .* reads version 7"):
        Hasher.load(path)
    (path / "config.json").write_text(json.dumps({**config, "kind": "toaster"}))
    with pytest.raises(StorageError, match="holds 'toaster', must be a hashcade model"):
        Hasher.load(path)
    (path / "config.json").unlink()
    with pytest.raises(StorageError, match="is not a hashcade model: config") as e:
        Hasher.load(path)
    assert e.value.hint == "make a model with: hashcade train DATA -o MODEL"
    with pytest.raises(StorageError, match="nowhere does not exist"):
        Hasher.load(tmp_path / "nowhere")


def test_saving_never_replaces_what_is_not_a_model(fitted, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(StorageError, match="exists and is not a hashcade model"):
        fitted[0].save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").exists()


def test_a_backbone_of_ones_own_has_to_be_given_again(tmp_path):
    def network():
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 5))

    X = np.random.default_rng(0).integers(0, 255, size=(12, 8, 8, 3), dtype=np.uint8)
    hasher = Hasher(width=4, steps=3, base_steps=3, backbone=network()).fit(X, [0, 1, 2] * 4)
    hasher.save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"backbone of your own \(Sequential\)"):
        Hasher.load(tmp_path / "model")
    loaded = Hasher.load(tmp_path / "model", backbone=network())
    np.testing.assert_array_equal(loaded.scores(X), hasher.scores(X))


# ---------------------------------------------------------------------------- split, defaults


def test_the_validation_set_has_the_same_share_of_every_class():
    labels = np.repeat([0, 1, 2, 3], [100, 20, 4, 3])
    np.random.default_rng(0).shuffle(labels)
    training, validation = stratified_split(labels, fraction=0.1, random_state=0)
    assert sorted([*training, *validation]) == list(range(127))
    assert np.bincount(labels[validation], minlength=4).tolist() == [10, 2, 2, 0]
    few = stratified_split(labels, fraction=0.1, random_state=0, max_items=5)[1]
    assert len(few) == 5  # whole shares of classes at random, as long as there is room
    other = stratified_split(labels, fraction=0.1, random_state=1)[1]
    assert set(other) != set(validation)
    assert len(stratified_split(labels, fraction=0.0, random_state=0)[1]) == 0


def test_without_a_validation_set_the_last_weights_are_kept():
    X, y = blobs(per_class=3)
    assert Hasher(**QUICK).fit(X, y).validation_ == {}


@pytest.mark.parametrize(
    ("n_classes", "depth", "width", "with_prototypes"),
    [(2, 2, 4, 4), (10, 2, 4, 4), (17, 2, 8, 8), (100, 2, 32, 16), (1000, 2, 256, 64),
     (100_000, 2, 32_768, 512), (100_000, 3, 32_768, 64), (100, 1, 128, 256)],
)  # fmt: skip
def test_default_width(n_classes, depth, width, with_prototypes):
    assert default_width(n_classes, depth) == width
    assert default_width(n_classes, depth, prototypes=True) == with_prototypes
    assert with_prototypes**depth >= 1.5 * n_classes


@pytest.mark.parametrize(
    ("classes", "class_size", "items"),
    [(64, 500, 2), (100, 500, 2), (10, 500, 12), (6, 120, 20), (3, 17, 16), (2, 1, 2), (2, 3, 2)],
)
def test_batches_of_few_classes_are_filled_with_their_items(classes, class_size, items):
    assert default_items_per_class(classes, class_size) == items


def test_networks_on_images_start_at_a_lower_rate():
    def rate(**settings):
        config = resolve(Hasher(**settings).get_params(), 5, 100, (8, 8, 3) if settings else (8,))
        return config.stages[0].learning_rate

    assert rate(backbone="nin") == 1e-3 < rate()


def test_numbers_of_numpy_are_settings_like_others(tmp_path):
    settings = {
        "width": np.int64(4),
        "learning_rate": np.float32(1e-3),
        "random_state": np.int64(1),
    }
    hasher = Hasher(**settings, steps=2, device=torch.device("cpu"), verbose=False).fit(X0, Y0)
    hasher.save(tmp_path / "model")
    again = Hasher.load(tmp_path / "model")
    np.testing.assert_array_equal(again.transform(X0), hasher.transform(X0))
    assert (again.width, again.random_state, again.device) == (4, 1, "cpu")
