"""Finding the best buckets through the tree, against scoring all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from hashcade import CodeShape
from hashcade.index import NEVER, probe
from hashcade.index.segment import Items
from hashcade.index.snapshot import empty_snapshot

ADDRESS = NEVER.address  # of a flag that nobody sets


@njit
def best_buckets(scores, n_probe, table):
    return probe.best_buckets(scores, 0, n_probe, table, ADDRESS)


def snapshot_of(buckets, shape):
    buckets = np.asarray(buckets, dtype=np.int64)
    n = len(buckets)
    snapshot = empty_snapshot(shape, 1, with_labels=False)
    vectors = np.zeros((n, 1), np.float32)
    return snapshot.with_items(Items(np.arange(n), buckets[:, None], vectors, None))


def find(snapshot, scores, n_probe):
    best, n_scored = best_buckets(np.float64(scores[None]), n_probe, snapshot.table)
    return snapshot.tree.buckets[best], n_scored


def by_scoring_all(buckets, shape, scores, n_probe):
    occupied = np.unique(buckets)
    sums = np.zeros(len(occupied))
    for level, slots in enumerate(shape.paths(occupied).T):
        sums += scores[level, slots]
    return occupied[np.argsort(-sums, kind="stable")][:n_probe]


@given(
    st.integers(1, 9), st.integers(1, 4), st.integers(0, 200), st.integers(1, 40),
    st.booleans(), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_best_buckets_are_those_of_scoring_all(width, depth, n, n_probe, tied, seed):
    rng = np.random.default_rng(seed)
    shape = CodeShape(width=width, depth=depth)
    buckets = rng.integers(0, shape.n_buckets, n)
    size = (depth, width)
    scores = rng.integers(-2, 3, size) / 4 if tied else rng.normal(size=size)
    found, n_scored = find(snapshot_of(buckets, shape), scores, n_probe)
    np.testing.assert_array_equal(found, by_scoring_all(buckets, shape, scores, n_probe))
    assert len(found) <= n_scored <= len(np.unique(buckets))


@pytest.mark.parametrize(("width", "depth"), [(512, 2), (64, 3)])
def test_a_full_table_is_not_scored_in_full(width, depth):
    shape = CodeShape(width=width, depth=depth)
    buckets = np.arange(shape.n_buckets)
    snapshot = snapshot_of(buckets, shape)
    rng = np.random.default_rng(0)
    for _ in range(5):
        scores = rng.normal(size=(depth, width))
        found, n_scored = find(snapshot, scores, 16)
        np.testing.assert_array_equal(found, by_scoring_all(buckets, shape, scores, 16))
        assert n_scored < shape.n_buckets / 20


def test_buckets_that_were_emptied_are_passed_over():
    shape = CodeShape(width=4, depth=2)
    snapshot = snapshot_of([1, 2, 9], shape).without(np.array([1]))  # bucket 2 is empty now
    scores = np.zeros((2, 4))
    scores[1, 2] = 1.0
    assert find(snapshot, scores, 3)[0].tolist() == [1, 9]
