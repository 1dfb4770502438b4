"""A hasher for classes that training never saw: clusters, codes for them, and who finds them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import nn

from hashcade import Hasher, NotFittedError
from hashcade.evaluate import bucket_nmi
from hashcade.learn import kmeans
from tests.learn import factories
from tests.learn.factories import by_codebook


def blobs(seed, n_classes=8, per_class=20, noise=0.4):
    return factories.blobs(n_classes, per_class, size=10, seed=seed, noise=noise, scale=2.0)


@pytest.fixture(scope="module", params=["prototype", "codebook"])
def fitted(request):
    settings = {"width": 4, "steps": 60, "hidden_size": 32, "verbose": False}
    return Hasher(**settings, assignment=request.param).fit(*blobs(0))


NEW, NEW_LABELS = blobs(1)  # other classes, of which the hasher knows nothing


@pytest.fixture(scope="module")
def adapted(fitted):
    return fitted.adapt(NEW)


# ------------------------------------------------------------------------------------ clusters


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 3), st.integers(0, 2**31))
def test_every_point_is_nearest_to_the_mean_of_its_own_cluster(n, n_clusters, size, seed):
    points = torch.randn(n, size, generator=torch.Generator().manual_seed(seed))
    centroids, labels = kmeans(points, min(n, n_clusters), random_state=seed, max_iter=200)
    assert sorted(set(labels.tolist())) == list(range(min(n, n_clusters)))  # without a gap
    means = np.stack([points.numpy()[labels == c].mean(axis=0) for c in range(labels.max() + 1)])
    assert (centroids.dtype, labels.dtype) == (np.float32, np.int64)
    np.testing.assert_allclose(centroids, means, atol=1e-6)
    gaps = np.linalg.norm(points.numpy()[:, None] - means[None], axis=2)
    assert (gaps[np.arange(n), labels] <= gaps.min(axis=1) + 1e-4).all()


def test_clusters_are_as_tight_as_those_of_scikit_learn():
    points, _ = blobs(5, n_classes=12, per_class=50, noise=1.5)
    centroids, labels = kmeans(points, 12)
    reference = KMeans(12, n_init=3, init="random", random_state=0).fit(points)
    assert np.square(points - centroids[labels]).sum() < 1.05 * reference.inertia_


def test_equal_points_make_fewer_clusters_and_equal_seeds_equal_ones():
    points = torch.tensor([[0.0], [0.0], [5.0], [5.0], [5.0]])
    centroids, _ = kmeans(points, 4)
    assert sorted(centroids.tolist()) == [[0.0], [5.0]]
    random = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    one, two = (kmeans(random, 7, random_state=3)[1] for _ in range(2))
    np.testing.assert_array_equal(one, two)
    with pytest.raises(ValueError, match="n_clusters=6 must be <= 5, the number of points"):
        kmeans(points, 6)


# ------------------------------------------------------------------------------------ adapting


def test_unseen_classes_get_buckets_of_their_own(fitted, adapted):
    before = bucket_nmi(fitted.transform(NEW)[:, 0], NEW_LABELS)
    after = bucket_nmi(adapted.transform(NEW)[:, 0], NEW_LABELS)
    assert after > 95.0
    assert after > before + 3.0
    others, labels = blobs(1, per_class=40)  # queries: the same classes, other items
    assert bucket_nmi(adapted.transform(others)[:, 0], labels) > 90.0


def test_an_adapted_hasher_keeps_the_contract(fitted, adapted, tmp_path):
    assert adapted.codebook_.shape == (8, 1)  # as many as classes in training
    if fitted.assignment == "codebook":
        expected = by_codebook(adapted.scores(NEW), adapted.codebook_, adapted.shape_)
        np.testing.assert_array_equal(adapted.embed(NEW), fitted.embed(NEW))
    else:  # points were learned for other classes: the given vectors count
        gaps = np.square(NEW[:, None] - adapted.prototypes_).sum(axis=2)
        expected = adapted.codebook_[gaps.argmin(axis=1)]
        np.testing.assert_array_equal(adapted.embed(NEW), NEW)
    np.testing.assert_array_equal(adapted.transform(NEW), expected)
    assert adapted.get_params() == fitted.get_params()
    assert adapted.validation_ == {}
    adapted.save(tmp_path / "model")
    loaded = Hasher.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(NEW), adapted.transform(NEW))
    np.testing.assert_array_equal(loaded.adapt(NEW).scores(NEW), adapted.adapt(NEW).scores(NEW))


def test_the_first_hasher_stays_and_equal_calls_give_equal_hashers(fitted):
    scores, state = fitted.scores(NEW), set(vars(fitted))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, two = (fitted.adapt(NEW, n_codes=5) for _ in range(2))
    torch.testing.assert_close(torch.rand(3), expected)
    np.testing.assert_array_equal(one.scores(NEW), two.scores(NEW))
    np.testing.assert_array_equal(one.codebook_, two.codebook_)
    np.testing.assert_array_equal(fitted.scores(NEW), scores)
    assert set(vars(fitted)) == state
    assert len(one.codebook_) == 5


@pytest.mark.parametrize("loss", ["npairs", pytest.param("triplet", marks=pytest.mark.slow)])
def test_several_buckets_and_both_losses(loss):
    settings = {"width": 4, "sparsity": 2, "steps": 30, "hidden_size": 32}
    hasher = Hasher(**settings, loss=loss, assignment="codebook", joint_steps=10, verbose=False)
    adapted = hasher.fit(*blobs(0)).adapt(NEW, n_codes=6)
    assert adapted.codebook_.shape == (6, 2)
    found = adapted.transform(NEW)
    assert found.shape == (len(NEW), 2)
    assert bucket_nmi(found.min(axis=1), NEW_LABELS) > 70.0


def test_images_are_adapted_by_their_features():
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3
    X = rng.integers(0, 60, size=(30, 8, 8, 3), dtype=np.uint8)
    X[np.arange(30), :, :, y] += 150
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    hasher = Hasher(width=4, steps=10, base_steps=10, backbone=network).fit(X, y)
    dark = X // 2
    adapted = hasher.adapt(np.concatenate([X, dark]), n_codes=6)
    assert adapted.transform(dark).shape == (30, 1)


def test_bad_calls_are_refused(fitted):
    with pytest.raises(NotFittedError):
        Hasher().adapt(NEW)
    with pytest.raises(ValueError, match="X has 3 features, but Hasher is expecting 10"):
        fitted.adapt(np.zeros((20, 3)))
    with pytest.raises(ValueError, match="n_codes=17 must be <= n_buckets = 16"):
        fitted.adapt(NEW, n_codes=17)
    with pytest.raises(ValueError, match="n_codes=8 must be <= items in X = 5"):
        fitted.adapt(NEW[:5])
    with pytest.raises(ValueError, match="n_codes=0 must be >= 1"):
        fitted.adapt(NEW, n_codes=0)
