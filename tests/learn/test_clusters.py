"""Embeddings without labels: an inverted file, whose lists are buckets."""

import numpy as np
import pytest

from hashcade import Hasher, HashIndex
from hashcade.learn import encoder
from tests.learn.factories import blobs


@pytest.fixture(scope="module")
def items():
    return blobs(n_classes=20, per_class=30, noise=1.0)[0]


def nearest_centroids(X, centroids):
    return np.square(X[:, None].astype(np.float64) - centroids).sum(axis=2).argsort(axis=1)


def test_each_item_lies_in_the_bucket_of_its_nearest_centroid(items):
    hasher = Hasher().fit_clusters(items, n_codes=30)
    assert hasher.prototypes_.shape == (30, 8)
    assert len(np.unique(hasher.codebook_)) == 30  # a bucket for each list
    lists = nearest_centroids(items, hasher.prototypes_)[:, 0]
    np.testing.assert_array_equal(hasher.transform(items)[:, 0], hasher.codebook_[lists, 0])
    np.testing.assert_array_equal(hasher.embed(items), items)
    means = np.stack([items[lists == number].mean(axis=0) for number in range(30)])
    assert np.abs(means - hasher.prototypes_).max() < 0.5  # k-means has about converged


@pytest.mark.parametrize("n_probe", [1, 3])
def test_a_search_is_one_of_an_inverted_file(items, n_probe):
    hasher = Hasher().fit_clusters(items, n_codes=30)
    vectors, buckets = hasher.place_items(items, None)
    index = HashIndex.build(buckets, vectors, shape=hasher.shape_)
    queries = items[::11] + np.float32(0.3)
    where = hasher.encode(queries, n_probe=n_probe).where_to_look(n_probe)
    found = index.search(queries, **where, n_neighbors=5, fill="none")
    lists = nearest_centroids(items, hasher.prototypes_)[:, 0]
    probed = nearest_centroids(queries, hasher.prototypes_)[:, :n_probe]
    for row, query in enumerate(queries):
        candidates = np.flatnonzero(np.isin(lists, probed[row]))
        gaps = np.square(items[candidates].astype(np.float64) - query).sum(axis=1)
        assert found.candidates[row] == len(candidates)
        nearest = candidates[np.argsort(gaps)][:5]
        assert found.ids[row, : len(nearest)].tolist() == nearest.tolist()


def test_codes_propose_the_right_centroid_among_many(items, monkeypatch):
    monkeypatch.setattr(encoder, "FEW_PROTOTYPES", 0)  # in groups, as if there were many
    hasher = Hasher().fit_clusters(items, n_codes=100)
    best = hasher.codebook_[nearest_centroids(items, hasher.prototypes_)[:, 0]]
    np.testing.assert_array_equal(hasher.transform(items), best)  # all groups are near
    hasher.encoder._assign.shortlist = 2
    assert (hasher.transform(items) == best).mean() > 0.8  # of 16


def test_the_number_of_lists(items):
    assert Hasher().fit_clusters(items).config_.n_codes == 98  # 4 times the root of 600
    assert Hasher().fit_clusters(items[:5]).config_.n_codes == 5
    assert Hasher(width=4).fit_clusters(items).config_.n_codes == 16  # as many as buckets
    assert Hasher().fit_clusters(np.repeat(items[:3], 9, axis=0)).config_.n_codes == 3
    with pytest.raises(ValueError, match="n_codes=601 must be <= items in X = 600"):
        Hasher().fit_clusters(items, n_codes=601)
    with pytest.raises(ValueError, match="n_codes=17 must be <= n_buckets = 16"):
        Hasher(width=4).fit_clusters(items, n_codes=17)
    with pytest.raises(ValueError, match="n_codes=0 must be >= 1"):
        Hasher().fit_clusters(items, n_codes=0)


def test_equal_seeds_give_equal_clusters_and_files_keep_them(items, tmp_path):
    one, two = (Hasher(random_state=3).fit_clusters(items, n_codes=20) for _ in range(2))
    np.testing.assert_array_equal(one.prototypes_, two.prototypes_)
    one.save(tmp_path / "model")
    loaded = Hasher.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(items), one.transform(items))
    assert loaded.config_.codes_of == "clusters"
