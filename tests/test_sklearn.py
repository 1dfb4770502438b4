"""A learned table in the place of scikit-learn's neighbors."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsTransformer
from sklearn.pipeline import make_pipeline

from hashcade import Hasher, NotFittedError
from hashcade.sklearn import HashNeighborsTransformer


@pytest.fixture
def blobs():
    """Four classes that are easy to tell apart."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 120)
    return rng.normal(size=(4, 6))[y] * 3 + 0.2 * rng.normal(size=(120, 6)), y


def adapter(rerank=None, **settings):
    hasher = Hasher(width=4, steps=40, hidden_size=16, rerank=rerank, verbose=False)
    return HashNeighborsTransformer(hasher=hasher, **settings)


@pytest.mark.parametrize("mode", ["distance", "connectivity"])
def test_looking_into_all_buckets_gives_the_graph_of_scikit_learn(blobs, mode):
    X, y = blobs
    exact = KNeighborsTransformer(n_neighbors=4, mode=mode).fit(X.astype(np.float32))
    ours = adapter(rerank="given", n_neighbors=4, mode=mode, n_probe=16).fit(X, y)
    one, two = exact.transform(X.astype(np.float32)), ours.transform(X)
    assert one.shape == two.shape
    assert (one.indptr == two.indptr).all()
    assert (one.sorted_indices().indices == two.sorted_indices().indices).all()
    assert two.toarray() == pytest.approx(one.toarray(), abs=1e-3)


def test_it_stands_before_a_classifier_and_in_a_grid_search(blobs):
    X, y = blobs
    pipeline = make_pipeline(adapter(n_neighbors=5), KNeighborsClassifier(5, metric="precomputed"))
    grid = {"hashneighborstransformer__hasher__depth": [2, 3]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert search.best_score_ > 0.95


def test_few_items_give_short_rows():
    X = np.eye(4)
    few = adapter(n_neighbors=9).fit(X, [0, 0, 1, 1])
    distances, ids = few.kneighbors(X[:1])
    assert (ids[0] >= 0).sum() == 4
    assert np.isinf(distances[0, 4:]).all()
    assert few.transform(X[:1]).nnz == 4


def test_bad_settings_and_nothing_fitted(blobs):
    with pytest.raises(ValueError, match="mode='near' must be one of 'distance', 'connectivity'"):
        adapter(mode="near").fit(*blobs)
    with pytest.raises(NotFittedError):
        adapter().kneighbors(blobs[0])
