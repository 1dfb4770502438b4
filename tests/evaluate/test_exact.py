"""Exhaustive search by matrix products gives exactly what measuring every pair gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade import CodeShape, HashIndex
from hashcade.evaluate import exact as module
from hashcade.evaluate import exact_search
from tests.evaluate import oracles


def index_search(queries, items, k, same_set):
    index = HashIndex.build(np.zeros(len(items), int), items, shape=CodeShape(width=1, depth=1))
    return index.search(
        queries, bucket_ids=np.zeros(len(queries), int), n_neighbors=k, exclude_self=same_set
    )


@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, 8))
def test_small_cases_with_many_ties(seed, same_set, k):
    rng = np.random.default_rng(seed)
    items = rng.integers(-2, 3, (rng.integers(1, 12), 2)).astype(np.float32)
    queries = items if same_set else rng.integers(-2, 3, (5, 2)).astype(np.float32)
    found = exact_search(queries, items, n_neighbors=k, same_set=same_set)
    for q, query in enumerate(queries):
        rows = [i for i in range(len(items)) if not (same_set and i == q)]
        assert found.ids[q].tolist() == oracles.nearest(query, items, rows, k)
    assert (found.candidates == len(items) - same_set).all()
    assert np.isinf(found.distances[found.ids < 0]).all()


@pytest.mark.parametrize("same_set", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1000.0])  # far from the origin products lose everything
def test_equals_the_index_bit_for_bit(monkeypatch, same_set, offset):
    monkeypatch.setattr(module, "_PRODUCTS", 1 << 16)  # several chunks
    monkeypatch.setattr(module, "_PAIRS", 500)
    rng = np.random.default_rng(1)
    items = (rng.normal(size=(3000, 24)) + offset).astype(np.float32)
    items[100:200] = items[:100]  # doubles
    queries = items if same_set else (rng.normal(size=(300, 24)) + offset).astype(np.float32)
    for k in (1, 16):
        ours = exact_search(queries, items, n_neighbors=k, same_set=same_set)
        theirs = index_search(queries, items, k, same_set)
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_array_equal(ours.distances, theirs.distances)


def test_some_of_the_items_leave_themselves_out():
    items = np.arange(6, dtype=np.float32)[:, None]
    found = exact_search(items[[4, 1]], items, n_neighbors=2, exclude=[4, 1])
    assert found.ids.tolist() == [[3, 5], [0, 2]]


@pytest.mark.parametrize("scale", [1e-30, 1e18, 1e30])
def test_tiny_and_huge_vectors(scale):
    items = (np.random.default_rng(0).normal(size=(300, 3)) * scale).astype(np.float32)
    ours = exact_search(items, items, n_neighbors=3, same_set=True)
    np.testing.assert_array_equal(ours.ids, index_search(items, items, 3, True).ids)


def test_all_items_in_one_place():
    items = np.ones((200, 4), dtype=np.float32)
    assert exact_search(items[:3], items, n_neighbors=4).ids.tolist() == [[0, 1, 2, 3]] * 3


def test_nothing_to_find():
    found = exact_search([[1.0]], [[1.0]], n_neighbors=2, same_set=True)
    assert found.ids.tolist() == [[-1, -1]]
    assert found.candidates.tolist() == [0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact_search([[1.0]], [[1.0, 2.0]]), "dim 1, item_vectors has dim 2"),
        (lambda: exact_search([[1.0]], [[1.0], [2.0]], same_set=True), "must be equal"),
        (lambda: exact_search([[1.0]], [[np.nan]]), "NaN"),
        (lambda: exact_search([[1.0]], [[1.0]], exclude=[3]), "exclude must be >= 0 and < 1"),
        (lambda: exact_search([[1.0]], [[1.0]], exclude=[0, 1]), "exclude has shape"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
