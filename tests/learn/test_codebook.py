"""Joint decoding: the book, who goes where, and the loss that trains it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hashcade import CodeShape, Hasher, HashIndex, solve_cascade
from hashcade.learn.codebook import CodebookLoss, solve_codebook
from tests.learn.factories import blobs, by_codebook
from tests.learn.oracles import bucket_sums

QUICK = {"width": 4, "steps": 60, "joint_steps": 60, "hidden_size": 16, "verbose": False}


@st.composite
def tables(draw):
    """A shape, a book that may hold a bucket more than once, and scores with many ties."""
    depth, width = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    shape = CodeShape(width=width, depth=depth, sparsity=draw(st.integers(1, width)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    upper = rng.integers(0, width ** (depth - 1), size=draw(st.integers(1, 6)))
    last = np.array([rng.permutation(width)[: shape.sparsity] for _ in upper])
    book = np.sort(upper[:, None] * width + last, axis=1)
    n_items = draw(st.integers(1, 7))
    scores = rng.integers(-2, 3, size=(n_items, depth, width)).astype(np.float32)
    return shape, book, scores / draw(st.sampled_from([1, 3]))


# ------------------------------------------------------------------------------ who goes where


def sum_of_code(sums, code):
    return sum(sums[bucket] for bucket in code) / len(code)


@given(tables())
def test_items_go_to_the_code_with_the_best_sum_and_of_equals_to_the_lower_ids(table):
    shape, book, scores = table
    found = by_codebook(scores, book, shape)
    assert (found.shape, found.dtype) == ((len(scores), shape.sparsity), np.int64)
    for item, buckets in zip(scores, found.tolist(), strict=True):
        sums = bucket_sums(item, shape, book)
        codes = sorted(tuple(row) for row in book.tolist())
        best = max(sum_of_code(sums, code) for code in codes)
        likely = [code for code in codes if sum_of_code(sums, code) >= best - 1e-9]
        if len(likely) == 1 or shape.sparsity == 1:  # else rounding may decide
            assert sorted(buckets) == list(likely[0])
        assert tuple(sorted(buckets)) in likely
        assert buckets == sorted(buckets, key=lambda b: (-sums[b], b))


@given(tables())
def test_an_index_probes_the_book_in_the_same_order(table):
    shape, book, scores = table
    shape = CodeShape(width=shape.width, depth=shape.depth)
    book = book[:, :1]
    buckets = np.unique(book)
    # One item in every bucket of the book; its id says which.
    index = HashIndex.build(buckets[:, None], np.zeros((len(buckets), 1)), shape=shape)
    found = index.search(
        np.zeros((len(scores), 1)), scores=scores, n_probe=1, n_neighbors=1, fill="none"
    )
    np.testing.assert_array_equal(buckets[found.ids], by_codebook(scores, book, shape))


def test_one_wrong_level_is_made_up_for_by_the_other():
    shape = CodeShape(width=3, depth=2)
    book = np.array([[0], [4]])  # the paths (0, 0) and (1, 1)
    scores = np.array([[[1.0, 1.1, 0.0], [5.0, 0.0, 0.0]]], np.float32)
    assert shape.scores_to_bucket_ids(scores).tolist() == [[3]]  # (1, 0): nobody lives there
    assert by_codebook(scores, book, shape).tolist() == [[0]]


@given(tables(), st.integers(0, 2**32))
def test_the_book_is_the_cascade_over_class_means(table, seed):
    shape, _, _ = table
    rng = np.random.default_rng(seed)
    n_classes = int(rng.integers(1, 5))
    labels = rng.permutation(np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, 9)]))
    scores = rng.normal(size=(len(labels), shape.depth, shape.width)).astype(np.float32)
    means = np.stack([scores[labels == c].mean(axis=0, dtype=float) for c in range(n_classes)])
    penalties = {"sibling_penalty": 2.0, "collision_penalty": 0.3}
    codes = solve_cascade(means.transpose(1, 0, 2), shape, **penalties)
    np.testing.assert_array_equal(
        solve_codebook(np.array_split(scores, 3), labels, n_classes, shape, **penalties),
        shape.codes_to_bucket_ids(codes),
    )


# ---------------------------------------------------------------------------------- the loss


def loss_by_loops(scores, labels, book, shape, sharpness):
    total = 0.0
    for item, label in zip(scores, labels, strict=True):
        sums = bucket_sums(item, shape, book)
        codes = {tuple(row): sum_of_code(sums, row) for row in book.tolist()}
        whole = math.log(sum(math.exp(sharpness * value) for value in codes.values()))
        total += whole - sharpness * codes[tuple(book[label].tolist())]
    return total / len(labels)


@given(tables(), st.sampled_from([0.5, 1.0, 8.0]), st.integers(0, 2**32))
def test_the_joint_loss_equals_its_definition_in_value_and_gradient(table, sharpness, seed):
    shape, book, scores = table
    labels = np.random.default_rng(seed).integers(0, len(book), size=len(scores))
    leaf = torch.from_numpy(scores.astype(np.float64)).requires_grad_()
    loss = CodebookLoss(book, shape, sharpness=sharpness, device=leaf.device)
    targets = torch.from_numpy(labels)
    assert loss(leaf, targets).item() == pytest.approx(
        loss_by_loops(scores, labels, book, shape, sharpness), abs=1e-6
    )
    torch.autograd.gradcheck(lambda s: loss(s, targets), leaf)


# ----------------------------------------------------------------------------- the estimator


@pytest.fixture(scope="module", params=[1, 2])
def fitted(request):
    X, y = blobs(noise=0.6)
    settings = {**QUICK, "steps": 100, "joint_steps": 150, "sparsity": request.param}
    return Hasher(**settings, assignment="codebook").fit(X, y), X, y


def test_every_class_has_its_buckets_and_items_go_nowhere_else(fitted):
    hasher, X, _ = fitted
    sparsity = hasher.sparsity
    assert hasher.codebook_.shape == (6, sparsity)
    assert hasher.codebook_.dtype == np.int64
    assert len(np.unique(hasher.codebook_)) == 6 * sparsity  # there is room: nothing is shared
    found = hasher.transform(X)
    assert found.shape == (len(X), sparsity)
    assert set(found.ravel().tolist()) <= set(hasher.codebook_.ravel().tolist())
    np.testing.assert_array_equal(
        found, by_codebook(hasher.scores(X), hasher.codebook_, hasher.shape_)
    )


def test_items_come_to_the_buckets_of_their_class(fitted):
    hasher, X, y = fitted
    own = hasher.codebook_[np.searchsorted(hasher.classes_, y)]
    right = (np.sort(hasher.transform(X), axis=1) == own).all(axis=1)
    assert right.mean() > 0.95
    assert hasher.validation_["precision_at_1"] == 100.0
    assert hasher.validation_["speedup_factor"] > 10.0 / hasher.sparsity


@pytest.mark.parametrize("loss", ["npairs", "triplet"])
def test_joint_training_helps_where_classes_overlap(loss):
    X, y = blobs(n_classes=16, per_class=40, noise=2.0)
    test, labels = blobs(n_classes=16, per_class=40, noise=2.0, seed=0)
    test = test + np.random.default_rng(1).normal(size=test.shape).astype(np.float32)
    right = {}
    for joint_steps in (0, 200):
        hasher = Hasher(**{**QUICK, "joint_steps": joint_steps}, loss=loss, assignment="codebook")
        hasher.set_params(validation_fraction=0.0).fit(X, y)
        own = hasher.codebook_[np.searchsorted(hasher.classes_, labels), 0]
        right[joint_steps] = (hasher.transform(test)[:, 0] == own).mean()
    assert right[200] > right[0] + 0.02


def test_no_joint_steps_leave_the_head_of_the_path(tmp_path):
    X, y = blobs()
    settings = {**QUICK, "joint_steps": 0, "run_dir": tmp_path}
    path = Hasher(**{**settings, "run_dir": None}, assignment="path").fit(X, y)
    book = Hasher(**settings, assignment="codebook").fit(X, y)
    np.testing.assert_array_equal(path.scores(X), book.scores(X))
    assert not hasattr(path, "codebook_")
    assert book.validation_.keys() == path.validation_.keys()
    again = Hasher(**settings, assignment="codebook").fit(X, y)  # from the checkpoint
    np.testing.assert_array_equal(again.codebook_, book.codebook_)
    assert again.validation_ == book.validation_


def test_a_new_fit_forgets_the_book_of_the_one_before():
    X, y = blobs()
    hasher = Hasher(**QUICK, assignment="codebook").fit(X, y)
    hasher.set_params(assignment="path").fit(X, y)
    assert not hasattr(hasher, "codebook_")
    np.testing.assert_array_equal(
        hasher.transform(X), hasher.shape_.scores_to_bucket_ids(hasher.scores(X))
    )


def test_bad_settings_of_the_joint_stage_are_refused():
    X, y = blobs()
    with pytest.raises(ValueError, match="joint_steps=-1 must be >= 1"):
        Hasher(**{**QUICK, "joint_steps": -1}, assignment="codebook").fit(X, y)
    with pytest.raises(
        ValueError, match="assignment='book' must be one of 'prototype', 'codebook'"
    ):
        Hasher(**QUICK, assignment="book").fit(X, y)


# --------------------------------------------------------------------------------------- files


def test_the_book_is_stored_with_the_model(fitted, tmp_path):
    hasher, X, _ = fitted
    hasher.save(tmp_path / "model")
    loaded = Hasher.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.codebook_, hasher.codebook_)
    np.testing.assert_array_equal(loaded.transform(X), hasher.transform(X))
    assert loaded.get_params() == hasher.get_params()
    assert loaded.validation_ == hasher.validation_
