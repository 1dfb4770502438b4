"""Classes that come later: codes of their own, and a last layer that learns them."""

import copy

import numpy as np
import pytest

from hashcade import CorruptIndexError, Hasher
from hashcade.codes import CodeShape
from hashcade.learn import extension
from hashcade.learn.extension import new_codes
from tests.learn.factories import QUICK, blobs

NAMES = ["ape", "bat", "cow", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay"]
LATER = NAMES[1::4]  # bat, fox, jay
EARLIER = [name for name in NAMES if name not in LATER]
X, Y = blobs(n_classes=10, labels=NAMES)
OLD, NEW = ~np.isin(Y, LATER), np.isin(Y, LATER)


@pytest.fixture(scope="module", params=[1, 2], ids=["sparsity 1", "sparsity 2"])
def fitted(request):
    settings = {**QUICK, "width": 8, "steps": 100, "sparsity": request.param}
    return Hasher(**settings).fit(X[OLD], Y[OLD])


@pytest.fixture(scope="module")
def extended(fitted):
    return fitted.extend(X[NEW], Y[NEW])


def codes(hasher):
    return dict(zip(hasher.classes_.tolist(), map(tuple, hasher.codebook_.tolist()), strict=True))


def test_old_classes_keep_their_codes_and_prototypes(fitted, extended):
    assert extended.classes_.tolist() == sorted(NAMES)
    before, after = codes(fitted), codes(extended)
    assert {name: after[name] for name in before} == before
    places = np.searchsorted(extended.classes_, fitted.classes_)
    np.testing.assert_array_equal(extended.prototypes_[places], fitted.prototypes_)


def test_new_classes_get_codes_that_no_class_has(fitted, extended):
    all_codes = codes(extended)
    assert len(set(all_codes.values())) == len(NAMES)
    assert extended.codebook_.shape == (10, fitted.sparsity)
    if fitted.sparsity == 1:
        assert len(np.unique(extended.codebook_)) == 10


def test_items_of_new_classes_go_to_their_codes_and_old_points_hardly_move(fitted, extended):
    own = extended.codebook_[np.searchsorted(extended.classes_, Y)]
    right = (np.sort(extended.transform(X)) == np.sort(own)).all(axis=1)
    assert right[OLD].mean() > 0.9
    assert right[NEW].mean() > 0.9
    cosines = (extended.embed(X[OLD]) * fitted.embed(X[OLD])).sum(axis=1)
    assert cosines.mean() > 0.95  # a table has stored them
    np.testing.assert_array_equal(extended.scores(X), fitted.scores(X))


def test_classes_that_points_do_not_tell_apart_are_learned():
    """All learned classes differ along some axes, and the new ones along another."""
    rng = np.random.default_rng(0)
    centres = np.hstack([3.0 * np.eye(8)[np.r_[:8, 0, 1]], np.zeros((10, 1))])
    centres[8:, 8] = 3.0  # else as the classes 0 and 1
    y = np.repeat(np.arange(10), 40)
    items = centres[y] + 0.5 * rng.normal(size=(len(y), 9))
    old, few = y < 8, (y >= 8) & (np.arange(len(y)) % 40 < 10)
    hasher = Hasher(**{**QUICK, "steps": 200}).fit(items[old], y[old])
    extended = hasher.extend(items[few], y[few])
    right = (extended.transform(items) == extended.codebook_[y]).all(axis=1)
    assert right[old].mean() > 0.95
    assert right[~old & ~few].mean() > 0.95
    again = hasher.extend(items[few], y[few])
    np.testing.assert_array_equal(again.embed(items), extended.embed(items))  # by its seed


def test_without_means_of_classes_prototypes_are_means_of_points():
    hasher = Hasher(**{**QUICK, "width": 8}, backbone="mlp", rerank="learned").fit(X[OLD], Y[OLD])
    extended = hasher.extend(X[NEW], Y[NEW])
    points = hasher.embed(X) - hasher._weights["point_mean"]  # what all have in common is left out
    for name in LATER:
        mean = points[name == Y].mean(axis=0)
        row = extended.prototypes_[extended.classes_.tolist().index(name)]
        np.testing.assert_allclose(row, mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_array_equal(extended.embed(X), hasher.embed(X))


def test_the_model_keeps_means_and_noise_of_its_classes(fitted, extended):
    kept, n = fitted._weights, len(fitted.classes_)
    items = (X - kept["prepare.mean"]) / kept["prepare.scale"]
    means = np.stack([items[name == Y].mean(axis=0) for name in fitted.classes_])
    assert kept["class_means"].shape == (n, X.shape[1])
    np.testing.assert_allclose(kept["class_means"], means, atol=0.3)  # a tenth is held out
    assert kept["noise"].shape == (8 * X.shape[1], X.shape[1])
    deviations = items[OLD] - means[np.searchsorted(EARLIER, Y[OLD])]
    spread = np.linalg.norm(kept["noise"].astype(float), axis=1).mean()
    assert 0.7 < spread / np.linalg.norm(deviations, axis=1).mean() < 1.3
    row = extended.classes_.tolist().index("fox")
    mean = items[Y == "fox"].mean(axis=0)
    np.testing.assert_allclose(extended._weights["class_means"][row], mean, atol=0.01)


@pytest.mark.parametrize("name", ["class_means", "noise"])
def test_means_and_noise_of_a_file_must_fit(fitted, tmp_path, name):
    hasher = copy.copy(fitted)
    for wrong in (fitted._weights[name][1:], fitted._weights[name].astype(np.float32)):
        hasher._weights = {**fitted._weights, name: wrong}
        hasher.save(tmp_path / "model")
        with pytest.raises(CorruptIndexError, match=f"{name} is float"):
            Hasher.load(tmp_path / "model")


def test_of_many_classes_some_are_looked_at(fitted, monkeypatch):
    monkeypatch.setattr(extension, "_MOST_CLASSES", 4)
    extended = fitted.extend(X[NEW], Y[NEW])
    own = extended.codebook_[np.searchsorted(extended.classes_, Y)]
    right = (np.sort(extended.transform(X)) == np.sort(own)).all(axis=1)
    assert right[NEW].mean() > 0.9
    assert right[OLD].mean() > 0.8


def test_the_first_hasher_stays_and_a_second_step_is_possible(fitted, extended, tmp_path):
    before = fitted.codebook_.copy()
    one = fitted.extend(X[Y == "bat"], ["bat"] * 20)
    two = one.extend(X[Y == "fox"][:3], ["fox"] * 3)  # a few items are enough
    np.testing.assert_array_equal(fitted.codebook_, before)
    assert fitted.classes_.tolist() == EARLIER
    assert two.classes_.tolist() == sorted([*EARLIER, "bat", "fox"])
    assert codes(one).items() <= codes(two).items()
    assert two.get_params() == fitted.get_params()
    two.save(tmp_path / "model")
    loaded = Hasher.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(X), two.transform(X))
    assert loaded.classes_.tolist() == two.classes_.tolist()


def test_integers_come_in_their_order():
    X, y = blobs()
    hasher = Hasher(**QUICK).fit(X[y > 1], y[y > 1] * 10)
    extended = hasher.extend(X[y < 2], np.where(y[y < 2] == 0, 25, -3))
    assert extended.classes_.tolist() == [-3, 20, 25, 30, 40, 50]
    buckets = extended.transform(X[y == 0])
    assert (buckets == extended.codebook_[2]).mean() > 0.9


def test_what_cannot_be_added_is_refused(fitted):
    def message(hasher, items, labels):
        with pytest.raises(ValueError) as caught:  # noqa: PT011  (compared by the caller)
            hasher.extend(items, labels)
        return str(caught.value)

    learned = "learned before: labels must be new"
    assert message(fitted, X[:2], ["cow", "yak"]) == f"y has 'cow', {learned}"
    assert message(fitted, X[:2], ["cow", "ape"]) == f"y has 'ape' and 1 more, {learned}"
    assert message(fitted, X[:2], [7, 8]) == "y mixes integers and strings with those of classes_"
    assert message(fitted, X[:2], ["yak"]) == "y has 1 labels, X has 2 items"
    assert "X has 3 features" in message(fitted, np.zeros((1, 3)), ["yak"])
    full = blobs(n_classes=60, per_class=1)
    assert message(fitted, full[0], [f"n{label}" for label in full[1]]) == (
        "there would be 67 classes, must be <= n_buckets = 64"
    )
    by_book = Hasher(**QUICK, assignment="codebook").fit(X[OLD], Y[OLD])
    for hasher in (by_book, fitted.adapt(X)):
        assert message(hasher, X[NEW], Y[NEW]) == (
            "extend needs a hasher fitted with assignment='prototype' and labels"
        )


def test_classes_below_one_slot_part_as_long_as_there_is_room():
    X, y = blobs(n_classes=16, per_class=8)
    hasher = Hasher(**QUICK).fit(X[y < 3], y[y < 3])
    assert hasher.shape_.n_buckets == 16
    full = hasher.extend(X[y >= 3], y[y >= 3]).codebook_[:, 0]
    for slot in range(4):
        below = full[full // 4 == slot]
        assert len(set(below.tolist())) == min(4, len(below))


@pytest.mark.parametrize("n_new", [1, 5])
def test_new_codes_follow_the_scores_where_nothing_stands_in_the_way(n_new):
    shape = CodeShape(width=6, depth=2)
    book = np.array([[0], [7], [14]])
    wanted = np.array([21, 28, 35, 22, 29])[:n_new]
    scores = np.zeros((n_new, 2, 6))
    for row, path in enumerate(shape.paths(wanted)):
        scores[row, [0, 1], path] = 1.0
    found = new_codes(
        book, scores.reshape(n_new, -1), shape, sibling_penalty=50.0, collision_penalty=0.01
    )
    assert found.ravel().tolist() == wanted.tolist()
