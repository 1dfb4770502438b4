"""Filters: what exists is found, by few items or many, in an index that changes meanwhile."""

from unittest.mock import patch

import numpy as np
import pytest
from factories import assert_same, vectors_of, worlds
from hypothesis import given
from hypothesis import strategies as st
from oracles import reference_keys

from hashcade import CodeShape, CorruptIndexError, HashIndex
from hashcade.index import Filter, filters

N, DIM, N_CLASSES = 12_000, 16, 36


@pytest.fixture(scope="module", params=[1, 2], ids=["one bucket each", "two buckets each"])
def clusters(request):
    """Clusters in their buckets, in several segments, some items removed; queries with scores."""
    rng = np.random.default_rng(3)
    shape = CodeShape(width=6, depth=2, sparsity=request.param)
    means = rng.normal(size=(N_CLASSES, DIM))
    vectors = (means[rng.integers(0, N_CLASSES, N)] + 0.6 * rng.normal(size=(N, DIM))).astype("f4")

    def nearest(x):
        gaps = ((x[:, None] - means) ** 2).sum(axis=2)
        return np.argsort(gaps, axis=1, kind="stable")

    buckets = nearest(vectors)[:, : shape.sparsity]
    index = HashIndex.build(buckets[:9000], vectors[:9000], shape=shape)
    for start in range(9000, N, 1000):
        rows = slice(start, start + 1000)
        index.add(buckets[rows], vectors[rows])
    removed = rng.choice(N, 700, replace=False)
    index.remove(removed)
    assert index.stats()["n_segments"] > 1
    queries = (means[rng.integers(0, N_CLASSES, 60)] + 0.6 * rng.normal(size=(60, DIM))).astype(
        "f4"
    )
    live = np.setdiff1d(np.arange(N), removed)
    return index, vectors, live, queries, nearest(queries)


def brute_force(vectors, ids, queries, n=10, own=None):
    rows = []
    for q, query in enumerate(queries):
        others = ids if own is None else ids[ids != own[q]]
        keys = reference_keys(vectors[others], query, "euclidean")
        rows.append(others[np.lexsort((others, keys))[:n]])
    return np.array(rows)


def recall(result, exact):
    return np.mean([np.isin(e, r).mean() for e, r in zip(exact, result.ids, strict=True)])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n_passing", [1, 10, 37, 500, 2000])
def test_all_of_few_items_are_compared(clusters, n_passing, threads, monkeypatch):
    monkeypatch.setattr("hashcade.index.search.WORTH_A_THREAD", 1)
    index, vectors, live, queries, ranked = clusters
    rng = np.random.default_rng(n_passing)
    ids = rng.choice(live, n_passing, replace=False)
    gone = np.setdiff1d(np.arange(N), live)[:50]  # removed ones do not count
    asked = rng.permutation(np.concatenate([ids, gone, [N + 5, N + 10**12]]))
    exact = brute_force(vectors, ids, queries)
    for where in ({"bucket_ids": ranked[:, :1]}, {"bucket_ids": ranked, "n_probe": 2}):
        result = index.search(queries, filter_ids=asked, threads=threads, **where)
        np.testing.assert_array_equal(result.ids[:, : exact.shape[1]], exact)
        assert (result.ids[:, exact.shape[1] :] == -1).all()
        assert (result.candidates == n_passing).all()
        assert result.exact.all()
        assert not result.truncated.any()


def test_the_query_itself_is_left_out_of_few_and_of_many(clusters):
    index, vectors, live, _, _ = clusters
    for ids in (live[:1500], live[:6000]):
        own = live[:40]
        queries = vectors[own]
        everywhere = np.tile(np.arange(N_CLASSES), (len(own), 1))
        result = index.search(queries, bucket_ids=everywhere, filter_ids=ids, exclude_self=own)
        np.testing.assert_array_equal(result.ids, brute_force(vectors, ids, queries, own=own))
        assert (result.candidates == len(ids) - 1).all()
        assert result.exact.all()


@pytest.mark.parametrize("share", [0.9, 0.5, 0.2])
@pytest.mark.parametrize("n_probe", [1, 3])
@pytest.mark.parametrize("by", ["buckets", "scores"])
def test_many_are_found_no_worse_than_without_a_filter(clusters, share, n_probe, by):
    index, vectors, live, queries, ranked = clusters
    where = {"bucket_ids": ranked, "n_probe": n_probe}
    if by == "scores":  # any order of buckets will do
        scores = np.random.default_rng(0).normal(size=(len(queries), 2, 6))
        where = {"scores": scores, "n_probe": n_probe}
    ids = live[np.random.default_rng(7).random(len(live)) < share]
    assert len(ids) > filters.EXACT_MATCHES
    plain = index.search(queries, **where)
    result = index.search(queries, filter_ids=ids, **where)
    assert ((result.candidates >= plain.candidates) | result.exact).all()
    assert not result.truncated.any()
    assert np.isin(result.ids, ids).all()
    found = recall(result, brute_force(vectors, ids, queries))
    assert found >= recall(plain, brute_force(vectors, live, queries))


def test_it_stops_when_the_budget_is_spent_and_says_so(clusters):
    index, _, live, queries, ranked = clusters
    ids = live[np.random.default_rng(1).random(len(live)) < 0.2]
    where = {"bucket_ids": ranked, "n_probe": 1, "filter_ids": ids}
    unlimited = index.search(queries, **where)
    assert not unlimited.truncated.any()
    assert not unlimited.exact.any()
    limited = index.search(queries, filter_budget=1, **where)  # the query's own bucket alone
    assert limited.truncated.all()
    assert not limited.exact.any()
    none = index.search(queries, fill="none", **where)
    assert not none.truncated.any()
    np.testing.assert_array_equal(limited.candidates, none.candidates)
    some = index.search(queries, filter_budget=800, **where)
    assert (limited.candidates <= some.candidates).all()
    assert (limited.candidates < some.candidates).any()
    assert (some.candidates < unlimited.candidates).any()


def test_fewer_candidates_than_pass_are_taken_from_the_best_buckets(clusters):
    index, _, live, queries, ranked = clusters
    ids = live[:1000]
    result = index.search(queries, bucket_ids=ranked, n_probe=3, filter_ids=ids, max_candidates=20)
    assert (result.candidates == 20).all()
    assert result.truncated.all()
    assert not result.exact.any()
    enough = index.search(
        queries, bucket_ids=ranked, n_probe=3, filter_ids=ids, max_candidates=1000
    )
    assert enough.exact.all()


def test_a_filter_that_nothing_passes_finds_nothing(clusters):
    index, _, _, queries, ranked = clusters
    for nothing in ([], set(), np.zeros(N, np.bool_), [N + 1]):
        result = index.search(queries, bucket_ids=ranked, filter_ids=nothing)
        assert (result.ids == -1).all()
        assert (result.candidates == 0).all()
        assert result.exact.all()


def test_bad_buckets_are_refused_also_where_they_are_not_needed(clusters):
    index, _, live, queries, ranked = clusters
    with pytest.raises(ValueError, match="bucket_ids has values outside"):
        index.search(queries, bucket_ids=ranked + 30, filter_ids=live[:5])


def test_a_prepared_filter_is_resolved_once_and_again_when_the_index_changes():
    rng = np.random.default_rng(0)
    shape = CodeShape(width=4, depth=1)
    vectors = rng.normal(size=(9000, 8)).astype(np.float32)
    buckets = rng.integers(0, 4, (9000, 1))
    index = HashIndex.build(buckets[:8000], vectors[:8000], shape=shape)
    ids = np.arange(0, 9000, 2)
    prepared = index.make_filter(ids)
    assert isinstance(prepared, Filter)
    assert index.make_filter(prepared) is prepared
    where = {"bucket_ids": buckets[:20], "n_neighbors": 5}
    queries = rng.normal(size=(20, 8)).astype(np.float32)
    with patch.object(filters, "_entries", wraps=filters._entries) as looked_up:

        def check(n_lookups):
            looked_up.reset_mock()
            result = index.search(queries, filter_ids=prepared, **where)
            assert looked_up.call_count == n_lookups
            expected = index.search(queries, filter_ids=ids, **where)
            for name in ("ids", "distances", "candidates", "exact"):
                np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))

        check(0)  # since it was made
        check(0)
        index.add(buckets[8000:], vectors[8000:])  # a new segment: it alone is looked at
        check(1)
        index.remove(np.arange(0, 400))
        check(1)
        index.upsert([2, 600], buckets[:2], vectors[:2])
        check(2)
        index.compact()
        check(1)
        index.remove(np.arange(1000, 8000))  # few are left
        check(1)
        check(0)


@given(st.data())
def test_prepared_filters_agree_with_the_plain_twin_through_changes(data):
    world, index, rng, kind = data.draw(worlds(max_items=25))
    exact_matches = data.draw(st.sampled_from([0, 5, 2000]))
    allowed = set(rng.choice(120, data.draw(st.integers(0, 100)), replace=False).tolist())
    prepared = index.make_filter(allowed)
    with patch.object(filters, "EXACT_MATCHES", exact_matches):
        for _ in range(data.draw(st.integers(1, 3))):
            queries = vectors_of(rng, 3, world.dim, kind)
            buckets = rng.integers(0, world.shape.n_buckets, (3, 2))
            result = index.search(queries, bucket_ids=buckets, filter_ids=prepared, n_neighbors=4)
            expected = world.expected(
                queries, bucket_ids=buckets, allowed=allowed, n_neighbors=4,
                exact_matches=exact_matches,
            )  # fmt: skip
            assert_same(result, expected)
            gone = [i for i in world.items if rng.random() < 0.2]
            index.remove(gone)
            for i in gone:
                del world.items[i]
            n = int(rng.integers(0, 6))
            new = vectors_of(rng, n, world.dim, kind)
            places = rng.integers(0, world.shape.n_buckets, (n, world.shape.sparsity))
            for i, b, v in zip(index.add(places, new).tolist(), places, new, strict=True):
                world.items[i] = (sorted(set(b.tolist())), v, 0)


@pytest.mark.parametrize("share", [0.2, 0.55, 0.9])
def test_copies_for_filters_in_use_change_no_answer(clusters, share):
    index, _, live, queries, ranked = clusters
    ids = live[np.random.default_rng(4).random(len(live)) < share]
    prepared = index.make_filter(ids)
    passing = prepared.passing(index._snapshot)
    scores = np.random.default_rng(0).normal(size=(len(queries), 2, 6))
    for where in (
        {"bucket_ids": ranked, "n_probe": 2},
        {"bucket_ids": ranked, "n_probe": 2, "exclude_self": live[:60]},
        {"bucket_ids": ranked, "n_probe": 2, "filter_budget": 900},
        {"bucket_ids": ranked, "n_probe": 2, "max_candidates": 300},
        {"bucket_ids": ranked[:, :1], "fill": "none"},
        {"bucket_ids": ranked[:, :2], "metric": "inner_product"},
        {"scores": scores},
        {"scores": scores, "n_probe": 3},
    ):
        for _ in range(3):
            expected = index.search(queries, filter_ids=ids, **where)
            result = index.search(queries, filter_ids=prepared, **where)
            for name in ("ids", "distances", "candidates", "truncated", "exact"):
                np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))
            explained = [
                index.explain(queries[0], bucket_ids=ranked[0], n_probe=2, filter_ids=either)
                for either in (ids, prepared)
            ]
            assert explained[0] == explained[1]
    assert (passing.in_buckets is passing.masked) == (share == 0.9)


def test_explain_says_that_all_were_compared(clusters):
    index, _, live, queries, ranked = clusters
    few = index.explain(queries[0], bucket_ids=ranked[0], n_probe=1, filter_ids=live[:50])
    assert few["exact"]
    assert few["buckets"] == []
    assert few["candidates"] == 50
    ids = live[: len(live) // 2]
    many = index.explain(queries[0], bucket_ids=ranked[0], n_probe=1, filter_ids=ids)
    assert not many["exact"]
    result = index.search(queries[0], bucket_ids=ranked[0], n_probe=1, filter_ids=ids)
    assert [found["id"] for found in many["results"]] == result.ids[0].tolist()
    assert all(found["buckets"] for found in many["results"])
    if index.shape.sparsity == 1:
        assert sum(bucket["candidates"] for bucket in many["buckets"]) == many["candidates"]


@pytest.mark.parametrize("n_passing", [10, 2500])
def test_a_damaged_block_is_found_before_it_is_compared(tmp_path, n_passing):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3000, 4)).astype(np.float32)
    HashIndex.build(np.zeros(3000, int), vectors, shape=CodeShape(width=1, depth=1)).save(tmp_path)
    [segment] = tmp_path.glob("segment-*.bin")
    content = bytearray(segment.read_bytes())
    content[100] ^= 1  # in the vectors
    segment.write_bytes(content)
    index = HashIndex.load(tmp_path)
    with pytest.raises(CorruptIndexError, match="bucket 0 is damaged"):
        index.search(vectors[:1], bucket_ids=[[0]], filter_ids=np.arange(n_passing))
