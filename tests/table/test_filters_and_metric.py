"""A table with a filter, and with metric cosine: against brute force over its own vectors."""

import numpy as np
import pytest

from hashcade import HashTable
from hashcade.evaluate import exact_search


def data(n=6000, n_classes=12, dim=12, seed=0):
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(n_classes, dim))
    y = rng.integers(0, n_classes, n)
    X = means[y] + 0.5 * rng.normal(size=(n, dim))
    lengths = rng.uniform(0.1, 9.0, (n, 1))  # cosine does not see them
    return (X * lengths).astype(np.float32), y


@pytest.fixture(scope="module")
def table():
    X, y = data()
    return HashTable(steps=30, rerank="given", metric="cosine").fit(X[:5000], y[:5000])


def unit(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def test_few_items_that_pass_are_all_found(table):
    X, _ = data()
    Q, _ = data(40, seed=1)
    ids = np.random.default_rng(2).choice(5000, 50, replace=False)
    matches = table.search(Q, 10, filter_ids=ids)
    exact = exact_search(unit(Q), unit(X)[ids], n_neighbors=10)
    np.testing.assert_array_equal(np.sort(matches.ids), np.sort(ids[exact.ids]))
    np.testing.assert_allclose(matches.distances, exact.distances**2 / 2, atol=1e-5)
    assert (matches.candidates == 50).all()


def test_many_that_pass_are_found_as_well_as_without_a_filter(table):
    X, _ = data()
    Q, _ = data(200, seed=1)

    def recall(matches, ids):
        exact = ids[exact_search(unit(Q), unit(X)[ids], n_neighbors=10).ids]
        return np.mean([np.isin(e, m).mean() for e, m in zip(exact, matches.ids, strict=True)])

    ids = np.flatnonzero(np.random.default_rng(3).random(5000) < 0.5)
    assert len(ids) > 2000
    prepared = table.index.make_filter(ids)
    filtered = table.search(Q, filter_ids=prepared)
    np.testing.assert_array_equal(filtered.ids, table.search(Q, filter_ids=ids).ids)
    assert np.isin(filtered.ids, ids).all()
    assert recall(filtered, ids) >= recall(table.search(Q), np.arange(5000))


def test_cosine_holds_for_what_is_added_and_stored(table, tmp_path):
    X, y = data()
    table.save(tmp_path / "table")
    loaded = HashTable.load(tmp_path / "table")
    ids = loaded.add(X[5000:], labels=y[5000:])
    loaded.upsert([7], X[7:8] * 3, labels=y[7:8])
    np.testing.assert_allclose(loaded[7].vector, unit(X[7:8])[0], atol=1e-6)
    matches = loaded.search(X[5000:5020] * 5, 1, filter_ids=ids)
    np.testing.assert_array_equal(matches.ids[:, 0], ids[:20])
    assert (matches.distances < 1e-6).all()
    with pytest.raises(ValueError, match="only zeros in row 0"):
        loaded.add(np.zeros((1, 12)), labels=y[:1])
