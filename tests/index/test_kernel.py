"""The kernel: exact distances bit for bit, fast ones within the error that is allowed for."""

import numpy as np
import pytest
from numba import njit
from oracles import reference_keys

from hashcade.index import kernel

DIMS = [1, 2, 7, 8, 9, 15, 16, 31, 64, 100, 128, 129, 300]
METRICS = {"euclidean": kernel.EUCLIDEAN, "inner_product": kernel.INNER_PRODUCT}


@njit
def exact_key(vectors, row, queries, q, metric):
    return kernel.exact_key(vectors, row, queries, q, metric)


@njit
def fast_distances(vectors, start, stop, queries, q, k, metric, out, nearest):
    kernel.fast_distances(vectors, start, stop, queries, q, k, metric, out, nearest)


@njit
def fast_distances_of_four(vectors, start, stop, queries, metric, out, nearest):
    kernel.fast_distances_of_four(vectors, start, stop, queries, 0, 1, 2, 3, metric, out, nearest)


@njit
def finish(keys, names, q, size, metric):
    kernel.finish(keys, names, q, size, metric)


def data(dim, n=200, n_queries=4):
    rng = np.random.default_rng(dim)
    vectors = rng.normal(size=(n, dim)).astype(np.float32) * rng.choice([1e-3, 1, 1e3], (n, 1))
    vectors = (vectors + rng.choice([0, 100], (n, 1))).astype(np.float32)
    return vectors, rng.normal(size=(n_queries, dim)).astype(np.float32)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dim", DIMS)
def test_exact_keys_are_those_of_the_twin_bit_for_bit(dim, metric):
    vectors, queries = data(dim)
    for q, query in enumerate(queries):
        ours = [exact_key(vectors, row, queries, q, METRICS[metric]) for row in range(len(vectors))]
        np.testing.assert_array_equal(
            np.array(ours, np.float32), reference_keys(vectors, query, metric)
        )


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dim", DIMS)
def test_fast_distances_are_off_by_half_of_what_is_allowed_at_most(dim, metric):
    vectors, queries = data(dim)
    n = len(vectors)
    start, stop = 3, n - 2  # not whole chunks
    four = np.full((4, n), np.nan, np.float32)
    one = np.full((4, n), np.nan, np.float32)
    near_four = np.full((4, n // kernel.CHUNK + 1), np.nan, np.float32)
    near_one = near_four.copy()
    fast_distances_of_four(vectors, start, stop, queries, METRICS[metric], four, near_four)
    for k in range(4):
        fast_distances(vectors, start, stop, queries, k, k, METRICS[metric], one, near_one)
    x, q = vectors[start:stop].astype(np.float64), queries.astype(np.float64)
    for k in range(4):
        if metric == "euclidean":
            exact = ((x - q[k]) ** 2).sum(axis=1)
            allowed = (dim + 8) * 2.0**-23 * exact
        else:
            exact = -(x @ q[k])
            allowed = (dim + 8) * 2.0**-23 * np.linalg.norm(x, axis=1) * np.linalg.norm(q[k])
        for fast, near in ((four, near_four), (one, near_one)):
            values = fast[k, : stop - start]
            assert (np.abs(values - exact) <= allowed / 2).all()
            assert np.isnan(fast[k, stop - start :]).all()  # nothing is written beyond
            chunks = np.array_split(values, range(kernel.CHUNK, len(values), kernel.CHUNK))
            np.testing.assert_array_equal(near[k, : len(chunks)], [c.min() for c in chunks])


def test_a_heap_becomes_a_row_best_first_and_padded():
    keys = np.array([[3.0, 2.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]], np.float32)
    names = np.array([[7, 6, 5, 0], [0, 0, 0, 0]])
    finish(keys, names, 0, 3, kernel.EUCLIDEAN)
    finish(keys, names, 1, 0, kernel.INNER_PRODUCT)
    assert keys.tolist() == [[1.0, 2.0, 3.0, np.inf], [-np.inf] * 4]
    assert names.tolist() == [[5, 6, 7, -1], [-1] * 4]
