import numpy as np
import pytest

from experiments import rivals
from experiments.rivals import FlatPrototypes, HnswPrototypes, fit_kmeans, fit_means, fit_softmax
from hashcade import Hasher


@pytest.fixture(scope="module")
def rings():
    """Three rings around one centre: no line and no mean tells them apart."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 200)
    angles, radii = rng.uniform(0, 2 * np.pi, len(y)), 1.0 + y + rng.normal(0, 0.1, len(y))
    X = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1).astype(np.float32)
    return X, y


@pytest.fixture(scope="module")
def heaps():
    rng = np.random.default_rng(1)
    y = np.repeat(np.arange(6), 30)
    X = 5 * rng.normal(size=(6, 8))[y] + rng.normal(size=(len(y), 8))
    return X.astype(np.float32), y


@pytest.fixture
def few_steps(monkeypatch):
    monkeypatch.setattr(rivals, "MIN_STEPS", 10)


def share_right(rival, X, y):
    return (rival.encode(X).bucket_ids[:, 0] == y).mean()


def test_class_means_are_ranked_by_distance(heaps):
    X, y = heaps
    queries = np.random.default_rng(2).normal(size=(10, 8)).astype(np.float32)
    encoded = fit_means(X, y, 0).encode(queries, n_probe=4)
    means = np.array([X[y == c].mean(axis=0) for c in range(6)])
    for query, ranked in zip(queries, encoded.ranked, strict=True):
        nearest = sorted(range(6), key=lambda c: np.square(query - means[c]).sum())
        assert ranked.tolist() == nearest[:4]
    np.testing.assert_array_equal(encoded.bucket_ids, encoded.ranked[:, :1])
    assert encoded.vectors is queries


def test_there_are_never_more_ranked_than_classes_and_parts_do_not_matter(heaps, monkeypatch):
    X, y = heaps
    rival = fit_means(X, y, 0)
    whole = rival.encode(X, n_probe=32).ranked
    assert whole.shape == (180, 6)
    monkeypatch.setattr(rivals, "_SCORES", 6 * 7)
    np.testing.assert_array_equal(rival.encode(X, n_probe=32).ranked, whole)


def test_items_are_placed_by_their_labels_if_buckets_are_classes(heaps):
    X, y = heaps
    rival = fit_means(X, y, 0)
    placed = rival.place(rival.encode(X, n_probe=2), y[::-1])
    assert placed.bucket_ids[:, 0].tolist() == y[::-1].tolist()
    centroids = fit_kmeans(X, y, 0)
    with pytest.raises(ValueError, match="Centroids has no buckets of classes"):
        centroids.place(centroids.encode(X), y)


def test_kmeans_has_as_many_centroids_as_classes(heaps):
    X, y = heaps
    first, again = fit_kmeans(X, y, 0), fit_kmeans(X, y, 0)
    assert first.state["centres"].shape == (6, 8)
    np.testing.assert_array_equal(first.state["centres"], again.state["centres"])
    buckets = first.encode(X).bucket_ids[:, 0]
    for centre, bucket in zip(first.state["centres"], range(6), strict=True):
        np.testing.assert_allclose(centre, X[buckets == bucket].mean(axis=0), atol=1e-4)


def test_the_classifier_learns_what_class_means_cannot(rings, monkeypatch):
    monkeypatch.setattr(rivals, "REGULARIZATIONS", ((1e-4, 0.0),))
    monkeypatch.setattr(rivals, "MIN_STEPS", 300)
    X, y = rings
    assert share_right(fit_means(X, y, 0), X, y) < 0.7
    softmax = fit_softmax(X, y, 0, hidden_size=32)
    assert share_right(softmax, X, y) > 0.95
    # Items are brought to mean 0 and spread 1 inside.
    moved = fit_softmax(50 + 20 * X, y, 0, hidden_size=32)
    np.testing.assert_array_equal(moved.rank(50 + 20 * X, 1), softmax.rank(X, 1))
    again = rivals.Softmax(softmax.state)
    np.testing.assert_array_equal(again.rank(X, 3), softmax.rank(X, 3))


def test_the_regularization_is_the_best_on_items_held_out(rings, monkeypatch):
    monkeypatch.setattr(rivals, "MIN_STEPS", 100)
    monkeypatch.setattr(rivals, "REGULARIZATIONS", ((100.0, 0.0), (1e-4, 0.0), (100.0, 0.5)))
    X, y = rings
    assert fit_softmax(X, y, 0, hidden_size=32).state["weight_decay"] == 1e-4


def test_of_many_classes_some_are_enough_to_choose(heaps, monkeypatch, few_steps):
    monkeypatch.setattr(rivals, "MOST_CLASSES", 2)
    n_classes = []
    train = rivals._train

    def counted(X, y, *others, **options):
        n_classes.append(int(y.max() + 1))
        return train(X, y, *others, **options)

    monkeypatch.setattr(rivals, "_train", counted)
    fit_softmax(*heaps, 0, hidden_size=8)
    assert n_classes == [2] * (len(rivals.REGULARIZATIONS) + len(rivals.MIXUPS)) + [6]


def test_training_ends_with_its_time(heaps, few_steps):
    state = fit_softmax(*heaps, 0, hidden_size=8, budget=1e-9).state
    assert state["epochs"] == 0
    assert fit_softmax(*heaps, 0, hidden_size=8).state["epochs"] >= rivals.EPOCHS


@pytest.fixture(scope="module")
def hasher(heaps):
    return Hasher(rerank="learned", hidden_size=16, steps=60, width=4).fit(*heaps)


def test_flat_prototypes_are_compared_with_the_hashers_points(hasher, heaps):
    X, _ = heaps
    cosines = hasher.embed(X) @ hasher.prototypes_.T
    flat = FlatPrototypes(hasher)
    ranked = flat.encode(X, n_probe=3).ranked
    found = np.take_along_axis(cosines, ranked, axis=1)
    np.testing.assert_allclose(found, -np.sort(-cosines, axis=1)[:, :3], atol=1e-5)


def test_the_graph_finds_what_flat_search_finds(hasher, heaps):
    pytest.importorskip("hnswlib")
    X, _ = heaps
    graph = HnswPrototypes(hasher, X, 1.0)
    assert graph.agreement == 1.0
    np.testing.assert_array_equal(graph.rank(X, 2), FlatPrototypes(hasher).rank(X, 2))
