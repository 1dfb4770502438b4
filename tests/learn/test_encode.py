"""One pass of the network gives all that a search needs, and says where it looks."""

import numpy as np
import pytest

from hashcade import Hasher, HashIndex
from hashcade.learn import base_features
from tests.learn.factories import QUICK, blobs, images


@pytest.fixture(
    scope="module",
    params=[
        {"assignment": "path"},
        {"assignment": "codebook"},
        {"sparsity": 2},
        {"embedding_size": 3, "base_steps": 10},
        {"backbone": "mlp", "base_steps": 10, "base_learning_rate": 0.0},
    ],
    ids=lambda settings: "-".join(settings),
)
def fitted(request):
    X, y = blobs(noise=2.0, n_classes=12)
    return Hasher(**{**QUICK, **request.param}).fit(X, y), X, y


def test_encode_is_transform_embed_and_scores(fitted):
    hasher, X, _ = fitted
    encoded = hasher.encode(X)
    np.testing.assert_array_equal(encoded.bucket_ids, hasher.transform(X))
    np.testing.assert_array_equal(encoded.vectors, hasher.embed(X))
    np.testing.assert_array_equal(encoded.scores, hasher.scores(X))
    assert encoded.by_path == (hasher.assignment == "path") == (not hasher.config_.uses_codebook)
    assert encoded.vectors.shape == (len(X), hasher.config_.vector_size)


@pytest.mark.parametrize("n_probe", [1, 2, 3])
def test_a_search_looks_where_encode_says(fitted, n_probe):
    hasher, X, _ = fitted
    encoded = hasher.encode(X)
    index = HashIndex.build(encoded.bucket_ids, encoded.vectors, shape=hasher.shape_)
    queries = hasher.encode(X[::7] + np.float32(0.01))
    where = queries.where_to_look(n_probe)
    result = index.search(queries.vectors, **where, n_neighbors=3, fill="none")
    if n_probe == 1:  # in the buckets of the query, and nowhere else
        shares = queries.bucket_ids[:, None, :, None] == encoded.bucket_ids[None, :, None, :]
        np.testing.assert_array_equal(result.candidates, shares.any(axis=(2, 3)).sum(axis=1))
    else:
        occupied = np.unique(encoded.bucket_ids)
        paths = hasher.shape_.paths(occupied)
        sums = sum(queries.scores[:, k, paths[:, k]] for k in range(hasher.shape_.depth))
        best = occupied[np.argsort(-sums, axis=1, kind="stable")[:, :n_probe]]
        shares = (best[:, None, :, None] == encoded.bucket_ids[None, :, None, :]).any(axis=(2, 3))
        np.testing.assert_array_equal(result.candidates, shares.sum(axis=1))


def test_long_encodes_report_their_progress(fitted):
    hasher, X, _ = fitted
    calls = []
    many = np.tile(X, (10, 1))
    encoded = hasher.encode(many, progress=lambda done, total: calls.append((done, total)))
    assert len(encoded) == 2400
    assert calls == [(1024, 2400), (2048, 2400), (2400, 2400)]


def test_the_result_is_not_the_callers_array():
    X, y = blobs()
    hasher = Hasher(**QUICK).fit(X, y)
    given = X.copy()
    hasher.encode(given).vectors[:] = 0
    np.testing.assert_array_equal(given, X)


def test_what_items_look_like_is_public(fitted):
    hasher, X, _ = fitted
    config = hasher.config_
    assert hasher.item_shape == config.item_shape == (8,)
    assert (config.takes_images, config.image_size) == (False, None)
    assert config.vectors_are_items == (hasher.embedding_size is hasher.backbone is None)
    X, y = images()
    hasher = Hasher(width=4, steps=2, base_steps=2, backbone="stride").fit(X, y)
    assert hasher.item_shape == (8, 8, 3)
    assert (hasher.config_.takes_images, hasher.config_.image_size) == (True, (8, 8))
    assert base_features(hasher, X).shape == (30, 256)
