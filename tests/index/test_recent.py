"""The last segments of a large index have a tree of their own: nothing else is different.

Here every index counts as large, so the properties are tried with two trees as well.
"""

import numpy as np
import pytest
from test_change import TestAgainstADictionary
from test_filters import test_prepared_filters_agree_with_the_plain_twin_through_changes
from test_insight import (
    test_an_explanation_joins_the_segments_of_a_bucket,
    test_explain_agrees_with_search_and_refuses_what_it_does_not_know,
)
from test_labels import test_entries_and_sizes, test_no_search_sees_an_item_twice_or_not_at_all
from test_search import (
    test_buckets_agree_with_the_plain_twin,
    test_many_items_many_queries,
    test_scores_agree_with_the_plain_twin,
)
from test_threads import test_every_division_of_the_queries_gives_the_same

from hashcade import CodeShape, HashIndex
from hashcade.index import snapshot as snapshots

__all__ = [
    "TestAgainstADictionary",
    "test_an_explanation_joins_the_segments_of_a_bucket",
    "test_buckets_agree_with_the_plain_twin",
    "test_entries_and_sizes",
    "test_every_division_of_the_queries_gives_the_same",
    "test_explain_agrees_with_search_and_refuses_what_it_does_not_know",
    "test_many_items_many_queries",
    "test_no_search_sees_an_item_twice_or_not_at_all",
    "test_prepared_filters_agree_with_the_plain_twin_through_changes",
    "test_scores_agree_with_the_plain_twin",
]


@pytest.fixture(autouse=True, scope="module")
def every_index_is_large():
    before = snapshots._LARGE
    snapshots._LARGE = 1
    yield
    snapshots._LARGE = before


def make(n_buckets, depth=2):
    width = int(np.ceil((2 * n_buckets) ** (1 / depth)))
    shape = CodeShape(width=width, depth=depth)
    rng = np.random.default_rng(0)
    buckets = rng.choice(shape.n_buckets, n_buckets, replace=False)
    vectors = rng.normal(size=(n_buckets, 4)).astype(np.float32)
    return HashIndex.build(buckets, vectors, shape=shape), rng


def sizes_of_built_trees(monkeypatch, change):
    sizes, build = [], snapshots.build_tree

    def spy(views, shape, previous):
        tree = build(views, shape, previous)
        sizes.append(len(tree.buckets))
        return tree

    monkeypatch.setattr(snapshots, "build_tree", spy)
    change()
    monkeypatch.undo()
    return sizes


def test_a_change_builds_no_tree_but_that_of_what_is_new(monkeypatch):
    index, rng = make(5000)
    large = index._snapshot.tree

    def changes():
        for k in range(50):
            bucket = rng.integers(0, index.shape.n_buckets, (1, 1))
            index.add(bucket, np.zeros((1, 4)))
            index.upsert([5000 + k], bucket, np.ones((1, 4)))
        index.remove([0, 5001])

    sizes = sizes_of_built_trees(monkeypatch, changes)
    assert max(sizes) <= 50
    assert index._snapshot.tree.slots is large.slots  # the nodes are shared, not copied
    assert index._snapshot.tree.children is large.children
    assert len(index) == 5048


def test_many_changes_become_part_of_the_large_tree(monkeypatch):
    index, rng = make(5000)
    monkeypatch.setattr(snapshots, "_RECENT", 64)

    def changes():
        for _ in range(200):
            index.add(rng.integers(0, index.shape.n_buckets, (1, 1)), np.zeros((1, 4)))

    sizes = sizes_of_built_trees(monkeypatch, changes)
    assert 2 <= sum(size > 5000 for size in sizes) <= 4
    assert index._snapshot.recent is None or len(index._snapshot.recent.tree.buckets) <= 64


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_two_trees_find_what_one_finds(depth):
    index, rng = make(300, depth)
    for _ in range(40):
        index.add(rng.integers(0, index.shape.n_buckets, (3, 1)), rng.normal(size=(3, 4)))
    index.remove(rng.choice(300, 60, replace=False))
    index.remove(300 + rng.choice(120, 30, replace=False))
    assert index._snapshot.recent is not None
    one = index.copy()
    one._snapshot = one._snapshot.with_one_tree
    queries = rng.normal(size=(30, 4))
    scores = np.round(rng.normal(size=(30, depth, index.shape.width)), 1)  # with equal sums
    buckets = rng.integers(0, index.shape.n_buckets, (30, 2))
    for where in (
        {"scores": scores}, {"scores": scores, "n_probe": 7}, {"bucket_ids": buckets},
        {"scores": scores, "n_probe": 500}, {"bucket_ids": buckets, "max_candidates": 9},
        {"scores": scores, "max_candidates": 11}, {"bucket_ids": buckets, "fill": "none"},
    ):  # fmt: skip
        for n_neighbors in (1, 20, 400):
            first = index.search(queries, n_neighbors=n_neighbors, **where)
            second = one.search(queries, n_neighbors=n_neighbors, **where)
            for name in ("ids", "distances", "candidates", "truncated"):
                assert np.array_equal(getattr(first, name), getattr(second, name)), name
