"""One pass of the network gives all that a search needs, and says where it looks."""

import numpy as np
import pytest

from hashcade import Hasher, HashIndex
from hashcade.learn import base_features, base_vectors
from tests.learn.factories import QUICK, blobs, images


@pytest.fixture(
    scope="module",
    params=[
        {"assignment": "path"},
        {"assignment": "codebook"},
        {"assignment": "codebook", "sparsity": 2},
        {"assignment": "codebook", "embedding_size": 3, "base_steps": 10},
        {"assignment": "prototype"},
        {"assignment": "prototype", "sparsity": 2},
        {"assignment": "prototype", "embedding_size": 3},
        {"assignment": "prototype", "rerank": "given"},
        {"assignment": "prototype", "backbone": "mlp", "base_steps": 10, "rerank": "learned"},
        {"assignment": "prototype", "backbone": "mlp", "base_steps": 10, "base_learning_rate": 0.0},
    ],
    ids=lambda settings: "-".join([settings["assignment"], *list(settings)[1:]]),
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
    items = X[::7] + np.float32(0.01)
    queries = hasher.encode(items)
    where = queries.where_to_look(n_probe)
    result = index.search(queries.vectors, **where, n_neighbors=3, fill="none")
    if n_probe == 1:  # in the buckets of the query, and nowhere else
        buckets = queries.bucket_ids
    elif hasher.assignment == "prototype":  # in those of the classes with the nearest prototypes
        points = hasher.encoder.outputs(items).points
        gaps = np.square(points[:, None].astype(float) - hasher.prototypes_).sum(axis=2)
        buckets = hasher.codebook_[np.argsort(gaps, axis=1)[:, :n_probe]].reshape(len(items), -1)
    else:  # in those of all occupied ones with the best sums
        occupied = np.unique(encoded.bucket_ids)
        paths = hasher.shape_.paths(occupied)
        sums = sum(queries.scores[:, k, paths[:, k]] for k in range(hasher.shape_.depth))
        buckets = occupied[np.argsort(-sums, axis=1, kind="stable")[:, :n_probe]]
    shares = (buckets[:, None, :, None] == encoded.bucket_ids[None, :, None, :]).any(axis=(2, 3))
    np.testing.assert_array_equal(result.candidates, shares.sum(axis=1))


def test_more_probes_than_were_ranked_are_an_error_but_more_than_there_are_is_everywhere():
    X, y = blobs(n_classes=20, per_class=6)
    hasher = Hasher(**{**QUICK, "width": 8, "steps": 5}).fit(X, y)
    with pytest.raises(ValueError, match="n_probe=17, but the first 16 codes were ranked") as e:
        hasher.encode(X).where_to_look(17)
    assert e.value.hint == "encode the queries with n_probe=17"
    encoded = hasher.encode(X, n_probe=17)
    for n_probe in (20, 1000):
        where = encoded[:7].where_to_look(n_probe)
        assert np.array_equal(
            np.sort(where["bucket_ids"]), np.tile(np.unique(where["bucket_ids"]), (7, 1))
        )
        assert set(where["bucket_ids"][0]) == set(hasher.codebook_.ravel())
        assert where["n_probe"] >= 20


def test_long_encodes_report_their_progress(fitted):
    hasher, X, _ = fitted
    calls = []
    many = np.tile(X, (10, 1))
    encoded = hasher.encode(many, progress=lambda done, total: calls.append((done, total)))
    assert len(encoded) == 2400
    assert calls == [(1024, 2400), (2048, 2400), (2400, 2400)]


@pytest.mark.parametrize("rerank", ["learned", "given"])
@pytest.mark.parametrize("n", [1, 20, 120])
def test_the_result_is_not_the_callers_array(rerank, n):
    X, y = blobs()
    hasher = Hasher(**QUICK, rerank=rerank).fit(X, y)
    given = X[:n].copy()
    hasher.encode(given).vectors[:] = 0
    hasher.embed(given)[:] = 0
    np.testing.assert_array_equal(given, X[:n])


def test_what_items_look_like_is_public(fitted):
    hasher, X, _ = fitted
    config = hasher.config_
    assert hasher.item_shape == config.item_shape == (8,)
    assert (config.takes_images, config.image_size) == (False, None)
    np.testing.assert_array_equal(
        config.vectors_are_items, hasher.embed(X).shape == X.shape and (hasher.embed(X) == X).all()
    )
    X, y = images()
    hasher = Hasher(width=4, steps=2, base_steps=2, backbone="stride").fit(X, y)
    assert hasher.item_shape == (8, 8, 3)
    assert (hasher.config_.takes_images, hasher.config_.image_size) == (True, (8, 8))
    features = base_features(hasher, X)
    assert features.shape == (30, 256)
    np.testing.assert_allclose(base_vectors(hasher, features), hasher.embed(X), rtol=1e-5)
