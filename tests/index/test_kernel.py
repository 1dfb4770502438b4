"""The kernel: exact distances bit for bit, fast ones within the error that is allowed for."""

import numpy as np
import pytest
from numba import njit
from oracles import reference_keys

from hashcade.index import distances, kernel

DIMS = [1, 2, 7, 8, 9, 15, 16, 31, 64, 100, 128, 129, 300]
METRICS = {
    "euclidean": distances.EUCLIDEAN,
    "inner_product": distances.INNER_PRODUCT,
    "cosine": distances.COSINE,
}


@njit
def exact_key(vectors, row, queries, q, metric, norm):
    return distances.exact_key(vectors, row, queries, q, metric, norm)


@njit
def fast_distances(vectors, removed, start, stop, queries, k, metric, out, nearest):
    query = queries.ctypes.data + 4 * k * queries.shape[1]
    distances.fast_distances(vectors, removed, start, stop, query, k, metric, out, nearest)


@njit
def fast_distances_of_four(vectors, removed, start, stop, queries, metric, out, nearest):
    q, size = queries.ctypes.data, 4 * queries.shape[1]
    distances.fast_distances_of_four(
        vectors, removed, start, stop, q, q + size, q + 2 * size, q + 3 * size, metric, out, nearest
    )


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
        norm = np.sqrt(np.sum(query.astype(np.float64) ** 2))
        ours = [
            exact_key(vectors, row, queries, q, METRICS[metric], norm)
            for row in range(len(vectors))
        ]
        np.testing.assert_array_equal(
            np.array(ours, np.float32), reference_keys(vectors, query, metric)
        )


@pytest.mark.parametrize("any_removed", [False, True])
@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
@pytest.mark.parametrize("dim", DIMS)
def test_fast_distances_are_off_by_half_of_what_is_allowed_at_most(dim, metric, any_removed):
    vectors, queries = data(dim)
    n = len(vectors)
    removed = np.zeros(n if any_removed else 0, np.uint8)
    if any_removed:
        removed[::3] = removed[40:80] = 1
    start, stop = 3, n - 2  # not whole chunks
    four = np.full((4, n), np.nan, np.float32)
    one = np.full((4, n), np.nan, np.float32)
    near_four = np.full((4, n // distances.CHUNK + 1), np.nan, np.float32)
    near_one = near_four.copy()
    code = METRICS[metric]
    fast_distances_of_four(vectors, removed, start, stop, queries, code, four, near_four)
    for k in range(4):
        fast_distances(vectors, removed, start, stop, queries, k, code, one, near_one)
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
            if any_removed:
                left_out = removed[start:stop] != 0
                assert np.isposinf(values[left_out]).all()
                assert (np.abs(values - exact) <= allowed / 2)[~left_out].all()
            else:
                assert (np.abs(values - exact) <= allowed / 2).all()
            assert np.isnan(fast[k, stop - start :]).all()  # nothing is written beyond
            chunks = np.array_split(values, range(distances.CHUNK, len(values), distances.CHUNK))
            np.testing.assert_array_equal(near[k, : len(chunks)], [c.min() for c in chunks])


def test_a_heap_becomes_a_row_best_first_and_padded():
    keys = np.array([[3.0, 2.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]], np.float32)
    names = np.array([[7, 6, 5, 0], [0, 0, 0, 0]])
    finish(keys, names, 0, 3, distances.EUCLIDEAN)
    finish(keys, names, 1, 0, distances.INNER_PRODUCT)
    assert keys.tolist() == [[1.0, 2.0, 3.0, np.inf], [-np.inf] * 4]
    assert names.tolist() == [[5, 6, 7, -1], [-1] * 4]
