"""One more level below the classes: smaller buckets, the same classes."""

import numpy as np
import pytest

from hashcade import Hasher
from tests.learn.factories import by_codebook

N_CLASSES, N_PARTS, PER_PART = 6, 3, 30


def blobs(seed):
    """Classes that lie far apart, each of three parts that lie less far apart."""
    rng = np.random.default_rng(0)
    centres = 6 * rng.normal(size=(N_CLASSES, 1, 8)) + 1.5 * rng.normal(size=(1, N_PARTS, 8))
    part = np.repeat(np.arange(N_CLASSES * N_PARTS), PER_PART)
    noise = 0.2 * np.random.default_rng(seed).normal(size=(len(part), 8))
    X = centres.reshape(-1, 8)[part] + noise
    return X.astype(np.float32), np.array([f"class {n}" for n in part // N_PARTS]), part


X, Y, _ = blobs(1)


@pytest.fixture(scope="module", params=["npairs", "triplet", "learned", "given"])
def fitted(request):
    settings = {"width": 8, "steps": 150, "joint_steps": 150, "hidden_size": 64, "verbose": False}
    if request.param in ("learned", "given"):
        return Hasher(**settings, rerank=request.param).fit(X, Y)
    return Hasher(**settings, loss=request.param, assignment="codebook").fit(X, Y)


@pytest.fixture(scope="module")
def refined(fitted):
    return fitted.refine(X, Y, n_codes=N_CLASSES * N_PARTS)


def test_items_stay_in_the_bucket_of_their_class_which_is_split(fitted, refined):
    queries, _, _ = blobs(2)
    before, after = fitted.transform(queries)[:, 0], refined.transform(queries)[:, 0]
    assert refined.shape_.depth == fitted.shape_.depth + 1
    assert (after // refined.shape_.width == before).mean() > 0.99  # the parent is where it was
    np.testing.assert_array_equal(refined.embed(queries), fitted.embed(queries))


def test_parts_of_a_class_have_buckets_of_their_own(refined):
    # Points of a class are drawn together, so prototypes tell its parts apart less well.
    share = 0.95
    queries, _, part = blobs(2)
    buckets = refined.transform(queries)[:, 0]
    assert len(np.unique(refined.codebook_)) == N_CLASSES * N_PARTS
    common = sum(np.unique(part[buckets == b], return_counts=True)[1].max() for b in set(buckets))
    assert common / len(part) > share
    if share > 0.9:
        assert len(set(buckets)) == N_CLASSES * N_PARTS


@pytest.mark.parametrize("rerank", ["given", "learned"])
def test_parts_of_a_class_are_near_in_the_vectors_that_rank(rerank):
    hasher = Hasher(width=8, steps=50, hidden_size=16, rerank=rerank, verbose=False).fit(X, Y)
    refined = hasher.refine(X, Y, n_codes=N_CLASSES * N_PARTS)
    vectors, buckets = refined.place_items(X, Y.astype(object))
    np.testing.assert_array_equal(vectors, X if rerank == "given" else refined.embed(X))
    book, centroids = refined.codebook_, refined.prototypes_
    for vector, bucket, label in zip(vectors, buckets, Y, strict=True):
        parent = hasher.codebook_[np.searchsorted(hasher.classes_, label)]
        gaps = np.square(centroids - vector).sum(axis=1)
        gaps[(book // refined.shape_.width != parent).any(axis=1)] = np.inf
        assert bucket == book[gaps.argmin()]
    encoded = refined.encode(X)
    again = refined.place(encoded, Y.astype(object))
    np.testing.assert_array_equal(again.bucket_ids, buckets)


def test_the_next_buckets_are_those_of_the_same_class(refined):
    encoded = refined.encode(X[:: PER_PART // 2])
    ranked = encoded.ranked
    if ranked is None:  # the code book has no other order than that of the sums
        book = np.unique(refined.codebook_)
        paths, depth = refined.shape_.paths(book), refined.shape_.depth
        sums = sum(encoded.scores[:, level, paths[:, level]] for level in range(depth))
        ranked = book[np.argsort(-sums, axis=1)]
    nearest = ranked[:, :N_PARTS] // refined.shape_.width
    assert (nearest == nearest[:, :1]).all(axis=1).mean() > 0.95


def test_a_refined_hasher_keeps_the_contract(fitted, refined, tmp_path):
    scores = fitted.scores(X)
    again = fitted.refine(X, Y, n_codes=N_CLASSES * N_PARTS)
    np.testing.assert_array_equal(again.scores(X), refined.scores(X))  # equal calls, equal hashers
    np.testing.assert_array_equal(fitted.scores(X), scores)  # and the first one stays
    if fitted.assignment == "codebook":
        expected = by_codebook(refined.scores(X), refined.codebook_, refined.shape_)
        np.testing.assert_array_equal(refined.transform(X), expected)
    assert refined.get_params() == {**fitted.get_params(), "depth": 3}
    refined.save(tmp_path / "model")
    np.testing.assert_array_equal(
        Hasher.load(tmp_path / "model").transform(X), refined.transform(X)
    )


def test_large_classes_get_more_parts(fitted):
    many = Y == "class 2"
    items = np.concatenate([X, X[many] + 0.3, X[many] - 0.3])
    labels = np.concatenate([Y, Y[many], Y[many]])
    book = fitted.refine(items, labels, n_codes=N_CLASSES + 2).codebook_
    parents, n_parts = np.unique(book // 8, return_counts=True)
    assert sorted(n_parts.tolist()) == [1, 1, 1, 1, 1, 3]
    assert parents[n_parts.argmax()] == fitted.codebook_[2, 0]


def test_what_cannot_be_refined_is_refused(fitted, refined):
    with pytest.raises(ValueError, match="refine needs sparsity=1, and another assignment"):
        Hasher(width=4, steps=2, assignment="path").fit(X, Y).refine(X, Y, n_codes=8)
    with pytest.raises(ValueError, match="adapted or refined already"):
        refined.refine(X, Y, n_codes=20)
    with pytest.raises(ValueError, match="y has 5 classes, must be those of classes_"):
        fitted.refine(X[PER_PART * N_PARTS :], Y[PER_PART * N_PARTS :], n_codes=8)
    with pytest.raises(ValueError, match=r"n_codes=5 must be >= 6"):
        fitted.refine(X, Y, n_codes=5)
    with pytest.raises(
        ValueError, match=r"n_codes=49 must be >= 6, the number of classes, and <= 4[28]"
    ):
        fitted.refine(X, Y, n_codes=49)
    with pytest.raises(ValueError, match="adapted or refined already"):
        fitted.adapt(X).refine(X, Y, n_codes=20)  # as many codes as classes, but of clusters


@pytest.mark.parametrize("small_first", [True, False])
def test_a_class_has_no_more_parts_than_items(small_first):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1] if small_first else [1, 0], [2, 100])
    items = (5.0 * y[:, None] + rng.normal(size=(102, 6))).astype(np.float32)
    hasher = Hasher(width=8, steps=20, joint_steps=20, assignment="codebook", verbose=False)
    hasher.fit(items, y)
    with pytest.raises(
        ValueError, match="n_codes=11 must be >= 2, the number of classes, and <= 1"
    ):
        hasher.refine(items, y, n_codes=11)
    assert len(np.unique(hasher.refine(items, y, n_codes=10).codebook_)) == 10


def test_parts_are_kept_apart_whatever_the_penalty_was():
    settings = {"width": 8, "steps": 20, "joint_steps": 20, "verbose": False}
    hasher = Hasher(**settings, assignment="codebook", sibling_penalty=0.001).fit(X, Y)
    assert len(np.unique(hasher.refine(X, Y, n_codes=40).codebook_)) == 40
