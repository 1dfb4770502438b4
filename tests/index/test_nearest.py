"""The nearest vectors of the nearest groups."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade._kernels import kernel
from hashcade.index import GroupedVectors, nearest_to_one
from hashcade.index.nearest import padded


@kernel()
def find_alone(points, means, groups, starts, vectors, row_ids, n_groups, rows):
    nearest_to_one(points, means, groups, starts, vectors, row_ids, n_groups, rows)


@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32))
def test_of_the_nearest_groups_the_nearest_vectors_in_order(n, n_groups, n_neighbors, seed):
    rng = np.random.default_rng(seed)
    groups = np.unique(rng.integers(0, n_groups, n), return_inverse=True)[1]
    vectors = rng.integers(-2, 3, size=(n, 2)).astype(np.float32)  # with many ties
    points = rng.integers(-2, 3, size=(3, 2)).astype(np.float32)
    sums = [vectors[groups == group].sum(axis=0) for group in range(groups.max() + 1)]
    means = (np.array(sums) / np.bincount(groups)[:, None]).astype(np.float32)
    n_near = int(rng.integers(1, 8))
    grouped = GroupedVectors(vectors, groups)
    found = grouped.nearest(points, n_neighbors, n_near)
    for point, rows in zip(points, found, strict=True):
        alone = np.empty((1, n_neighbors), np.int64)
        find_alone(padded(point[None]), *grouped.arrays, n_near, alone)
        assert alone[0].tolist() == rows.tolist()
        near = np.argsort(np.square(means - point).sum(axis=1), kind="stable")[:n_near]
        compared = np.flatnonzero(np.isin(groups, near))
        gaps = np.square(vectors[compared] - point).sum(axis=1)
        expected = compared[np.argsort(gaps, kind="stable")][:n_neighbors].tolist()
        assert rows.tolist() == expected + expected[-1:] * (n_neighbors - len(expected))


@pytest.mark.parametrize("n", [1, 3, 4, 5, 6, 7, 8])
def test_of_equal_vectors_the_lower_row_comes_first(n):
    rng = np.random.default_rng(n)
    vectors = np.repeat(rng.normal(size=(1, 50)).astype(np.float32), n, axis=0)
    for point in rng.normal(size=(20, 1, 50)).astype(np.float32):
        found = GroupedVectors(vectors, np.zeros(n, np.int64)).nearest(point, 3, 1)[0]
        assert found.tolist() == [min(row, n - 1) for row in range(3)]


@pytest.mark.parametrize("dim", [1, 7, 64, 100])
def test_a_point_finds_the_same_alone_and_in_a_batch(dim):
    rng = np.random.default_rng(dim)
    vectors = rng.normal(size=(500, dim)).astype(np.float32)
    grouped = GroupedVectors(vectors, np.arange(500) % 20)
    points = rng.normal(size=(50, dim)).astype(np.float32)
    together = grouped.nearest(points, 9, 5)
    alone = [grouped.nearest(points[row : row + 1], 9, 5)[0] for row in range(50)]
    np.testing.assert_array_equal(together, alone)
