"""Search against the plain twin in every option, and against exhaustive search."""

from unittest.mock import patch

import numpy as np
import pytest
from factories import KINDS, World, assert_same, vectors_of, worlds
from hypothesis import given
from hypothesis import strategies as st
from oracles import reference_keys

from hashcade import CodeShape, HashIndex
from hashcade.index import filters, kernel, search

OPTIONS = st.fixed_dictionaries(
    {
        "n_neighbors": st.integers(1, 12),
        "fill": st.sampled_from(["path", "none"]),
        "metric": st.sampled_from(["euclidean", "inner_product"]),
        "max_candidates": st.one_of(st.none(), st.integers(1, 20)),
        "filter_budget": st.one_of(st.just(1_000_000), st.integers(1, 30)),
    }
)


def draw_exact_matches(draw):
    """How many items pass at most for all to be compared; tests have fewer than 2,000."""
    return draw(st.sampled_from([0, 3, 10, 2000]))


def draw_filter(draw, world, rng):
    """A filter in one of its forms, and the ids that it allows."""
    form = draw(st.sampled_from(["nothing", "set", "array", "mask"]))
    if form == "nothing":
        return None, None
    bound = max(world.items, default=0) + 3
    mask = rng.random(bound) < draw(st.sampled_from([0.0, 0.1, 0.6]))
    allowed = set(np.flatnonzero(mask).tolist())
    if form == "mask":
        mask = mask[: draw(st.integers(0, bound))]  # ids beyond the end are out
        return mask, set(np.flatnonzero(mask).tolist())
    return (allowed if form == "set" else np.array(sorted(allowed), dtype=np.int64)), allowed


def assert_exact(result, world, allowed, own):
    """``exact`` is true where as many were compared as there are."""
    passing = set(world.items) if allowed is None else set(world.items) & allowed
    own = [-1] * len(result.ids) if own is None else own.tolist()
    assert result.exact.tolist() == [
        n == len(passing - {item}) for n, item in zip(result.candidates, own, strict=True)
    ]


def draw_own(draw, world, rng, n):
    if not world.items or draw(st.booleans()):
        return None
    return rng.choice([*world.items, -1], n)


@given(st.data())
def test_buckets_agree_with_the_plain_twin(data):
    world, index, rng, kind = data.draw(worlds())
    options = data.draw(OPTIONS)
    n = data.draw(st.integers(1, 7))
    queries = vectors_of(rng, n, world.dim, kind)
    buckets = rng.integers(0, world.shape.n_buckets, (n, data.draw(st.integers(1, 6))))
    options["n_probe"] = data.draw(st.one_of(st.none(), st.integers(1, 7)))
    filter_ids, allowed = draw_filter(data.draw, world, rng)
    own = draw_own(data.draw, world, rng, n)
    exact_matches = draw_exact_matches(data.draw)
    with patch.object(filters, "EXACT_MATCHES", exact_matches):
        result = index.search(
            queries, bucket_ids=buckets, filter_ids=filter_ids,
            exclude_self=False if own is None else own, **options,
        )  # fmt: skip
    expected = world.expected(
        queries, bucket_ids=buckets, allowed=allowed, own=own, exact_matches=exact_matches,
        **options,
    )  # fmt: skip
    assert_same(result, expected)
    assert_exact(result, world, allowed, own)


def test_the_first_named_buckets_are_visited_and_the_rest_only_to_fill():
    shape = CodeShape(width=10, depth=2)
    buckets = [20, 21, 30, 30, 47, 80]  # one item each, but two in bucket 30
    index = HashIndex.build(buckets, np.arange(6.0)[:, None], shape=shape)

    def visited(n_neighbors, **options):
        named = {"bucket_ids": [[80, 30, 55, 47]], "n_neighbors": n_neighbors, **options}
        result = index.search([[0.0]], **named)
        return sorted(result.ids[result.ids >= 0].tolist()), int(result.candidates[0])

    assert visited(9, n_probe=1, fill="none") == ([5], 1)
    assert visited(9, n_probe=2, fill="none") == ([2, 3, 5], 3)
    assert visited(9, n_probe=9, fill="none") == ([2, 3, 4, 5], 4)
    assert visited(1, n_probe=1) == ([5], 1)  # one is enough
    assert visited(2, n_probe=1) == ([2, 3], 3)  # a bucket is visited as a whole
    assert visited(4, n_probe=1) == ([2, 3, 4, 5], 4)  # bucket 55 is empty
    assert visited(5, n_probe=1) == ([0, 2, 3, 4, 5], 5)  # then others, as without n_probe
    assert visited(9) == visited(9, n_probe=4)


@given(st.data())
def test_scores_agree_with_the_plain_twin(data):
    world, index, rng, kind = data.draw(worlds())
    options = data.draw(OPTIONS)
    n = data.draw(st.integers(1, 5))
    queries = vectors_of(rng, n, world.dim, kind)
    shape = (n, world.shape.depth, world.shape.width)
    tied = data.draw(st.booleans())
    scores = rng.integers(0, 3, shape) / 2 if tied else rng.normal(size=shape)
    scores = scores.astype(data.draw(st.sampled_from([np.float32, np.float64])))
    if data.draw(st.booleans()):
        scores[rng.random(shape) < 0.2] = -np.inf  # slots that are ruled out come last
    n_probe = data.draw(st.one_of(st.none(), st.integers(1, 30)))
    filter_ids, allowed = draw_filter(data.draw, world, rng)
    own = draw_own(data.draw, world, rng, n)
    exact_matches = draw_exact_matches(data.draw)
    with patch.object(filters, "EXACT_MATCHES", exact_matches):
        result = index.search(
            queries, scores=scores, n_probe=n_probe, filter_ids=filter_ids,
            exclude_self=False if own is None else own, **options,
        )  # fmt: skip
    expected = world.expected(
        queries, scores=scores, n_probe=n_probe, allowed=allowed, own=own,
        exact_matches=exact_matches, **options,
    )  # fmt: skip
    assert_same(result, expected)
    assert_exact(result, world, allowed, own)


# -- sizes at which the vector unit, tiles, groups of four and threads come into play -------------


def large_world(seed, *, n, dim, shape, kind, n_removed=0):
    rng = np.random.default_rng(seed)
    vectors = vectors_of(rng, n, dim, kind)
    buckets = rng.integers(0, shape.n_buckets, (n, shape.sparsity))
    index = HashIndex.build(buckets, vectors, shape=shape)
    world = World(shape, dim)
    world.items = {i: (sorted(set(b.tolist())), v, 0)
                   for i, (b, v) in enumerate(zip(buckets, vectors, strict=True))}  # fmt: skip
    gone = rng.choice(n, n_removed, replace=False).tolist()
    index.remove(gone)
    for i in gone:
        del world.items[i]
    return world, index, rng


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [64, 100, 129])
@pytest.mark.parametrize("sparsity", [1, 2])
def test_many_items_many_queries(metric, kind, dim, sparsity, monkeypatch):
    monkeypatch.setattr("hashcade.index.search.WORTH_A_THREAD", 1)
    shape = CodeShape(width=3, depth=2, sparsity=sparsity)
    world, index, rng = large_world(dim, n=4000, dim=dim, shape=shape, kind=kind, n_removed=300)
    queries = vectors_of(rng, 13, dim, kind)
    buckets = rng.integers(0, shape.n_buckets, (13, 2))
    options = {"n_neighbors": 20, "metric": metric}
    expected = world.expected(queries, bucket_ids=buckets, **options)
    together = index.search(queries, bucket_ids=buckets, threads=1, **options)
    assert_same(together, expected)
    assert_same(index.search(queries, bucket_ids=buckets, threads=3, **options), expected)
    for q in (0, 7):  # alone it is another loop of the kernel
        alone = index.search(queries[q], bucket_ids=buckets[q], **options)
        np.testing.assert_array_equal(alone.ids[0], together.ids[q])
        np.testing.assert_array_equal(alone.distances[0], together.distances[q])


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", ["nothing", "own", "few", "most", "cut", "removed"])
def test_large_buckets_with_options(metric, kind, option):
    """Buckets of hundreds of entries: limits from chunks, and what must not rely on them."""
    shape = CodeShape(width=2, depth=2)
    n_removed = 700 if option == "removed" else 0
    world, index, rng = large_world(7, n=2500, dim=24, shape=shape, kind=kind, n_removed=n_removed)
    n = 11
    near = rng.choice(2500, n)
    items = np.array([world.items.get(i, world.items[min(world.items)])[1] for i in near])
    queries = (items + 0.1 * (kind != "ties")).astype(np.float32)
    buckets = rng.integers(0, shape.n_buckets, (n, 2))
    options = {"n_neighbors": 9, "metric": metric}
    more, meaning = {}, {}
    if option == "own":  # in the bucket that is looked into, and nearest of all
        more, meaning = {"exclude_self": near}, {"own": near}
        buckets = np.array([world.items[i][0] for i in near.tolist()])
    if option in ("few", "most"):
        mask = rng.random(2500) < (0.02 if option == "few" else 0.9)
        more, meaning = {"filter_ids": mask}, {"allowed": set(np.flatnonzero(mask).tolist())}
    if option == "cut":
        options["max_candidates"] = 777
    result = index.search(queries, bucket_ids=buckets, **more, **options)
    assert_same(result, world.expected(queries, bucket_ids=buckets, **meaning, **options))


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
@pytest.mark.parametrize("n_queries", [1, 6])
def test_distances_closer_together_than_float32_can_tell(metric, n_queries):
    """All items on a shell around the query: the fast pass puts them in an order of its own."""
    rng = np.random.default_rng(3)
    dim, n = 96, 3000
    directions = rng.normal(size=(n, dim))
    if metric == "euclidean":
        queries = np.zeros((n_queries, dim), np.float32)
        vectors = directions / np.linalg.norm(directions, axis=1)[:, None]
    else:
        queries = np.tile(rng.normal(size=dim), (n_queries, 1)).astype(np.float32)
        q = queries[0] / np.linalg.norm(queries[0])
        vectors = directions - (directions @ q)[:, None] * q + q
    shape = CodeShape(width=1, depth=1)
    vectors = vectors.astype(np.float32)
    ids = rng.permutation(n)
    index = HashIndex.build([0] * n, vectors, ids, shape=shape)
    world = World(shape, dim)
    world.items = {int(i): ([0], v, 0) for i, v in zip(ids, vectors, strict=True)}
    options = {"n_neighbors": 25, "metric": metric}
    asked = [[0]] * n_queries
    result = index.search(queries, bucket_ids=asked, **options)
    assert_same(result, world.expected(queries, bucket_ids=asked, **options))


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
def test_every_bucket_probed_is_exhaustive_search(metric):
    faiss = pytest.importorskip("faiss", reason="faiss is the independent oracle here")
    shape = CodeShape(width=4, depth=2)
    _, index, rng = large_world(1, n=5000, dim=48, shape=shape, kind="plain")
    vectors = np.empty((5000, 48), np.float32)
    for view in index._snapshot.views:
        vectors[view.segment.ids] = view.segment.vectors
    queries = vectors_of(rng, 50, 48, "plain")
    everything = np.tile(np.arange(shape.n_buckets), (50, 1))
    result = index.search(queries, bucket_ids=everything, n_neighbors=10, metric=metric)
    flat = faiss.IndexFlatL2(48) if metric == "euclidean" else faiss.IndexFlatIP(48)
    flat.add(vectors)
    distances, ids = flat.search(queries, 10)
    np.testing.assert_array_equal(result.ids, ids)
    ours = result.distances**2 if metric == "euclidean" else result.distances
    np.testing.assert_allclose(ours, distances, rtol=1e-4, atol=1e-4)
    assert (result.candidates == 5000).all()
    by_scores = index.search(
        queries, scores=np.zeros((50, 2, 4)), n_probe=99, n_neighbors=10, metric=metric
    )
    np.testing.assert_array_equal(by_scores.ids, ids)


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18, 1e30, 3e38])
def test_values_at_the_ends_of_float32(scale, metric):
    rng = np.random.default_rng(5)
    shape = CodeShape(width=2, depth=1)
    vectors = (rng.uniform(-1, 1, (300, 24)) * scale).astype(np.float32)
    queries = (rng.uniform(-1, 1, (9, 24)) * scale).astype(np.float32)
    buckets = rng.integers(0, 2, (300, 1))
    world = World(shape, 24)
    world.items = {i: (b.tolist(), v, 0)
                   for i, (b, v) in enumerate(zip(buckets, vectors, strict=True))}  # fmt: skip
    index = HashIndex.build(buckets, vectors, shape=shape)
    asked = rng.integers(0, 2, (9, 1))
    options = {"n_neighbors": 7, "metric": metric}
    result = index.search(queries, bucket_ids=asked, **options)
    with np.errstate(over="ignore"):
        assert_same(result, world.expected(queries, bucket_ids=asked, **options))


# -- what the options mean, on examples small enough to check by hand ------------------------------

SHAPE = CodeShape(width=3, depth=2)
#          bucket:  0    0    1    4    8
LINE = [[0.0], [1.0], [2.0], [3.0], [4.0]]
BUCKETS = [0, 0, 1, 4, 8]


def line_index(**more):
    return HashIndex.build(BUCKETS, LINE, shape=SHAPE, **more)


def test_fill_goes_to_the_siblings_first_and_then_up():
    index = line_index()
    search = lambda n, b: index.search([[9.0]], bucket_ids=[b], n_neighbors=n)  # noqa: E731
    assert search(2, 0).candidates.tolist() == [2]  # enough
    assert search(3, 0).candidates.tolist() == [3]  # bucket 1 has the same parent
    assert search(3, 2).candidates.tolist() == [3]  # empty itself, its siblings are not
    assert search(4, 0).candidates.tolist() == [4]  # from the root in the order of ids: 4
    assert search(4, 0).ids.tolist() == [[3, 2, 1, 0]]
    assert search(6, 4).candidates.tolist() == [5]
    assert search(6, 4).ids.tolist() == [[4, 3, 2, 1, 0, -1]]
    none = index.search([[9.0]], bucket_ids=[2], n_neighbors=2, fill="none")
    assert none.ids.tolist() == [[-1, -1]]
    assert none.candidates.tolist() == [0]
    assert np.isposinf(none.distances).all()


def test_fill_with_scores_walks_sorted_slots_last_level_fastest():
    index = line_index()
    #             level 1: slot 2, 1, 0     level 2: slot 1, 0, 2
    scores = [[[0.1, 0.2, 0.3], [0.5, 0.9, 0.1]]]
    counts = [
        index.search([[0.0]], scores=scores, n_neighbors=n).candidates[0] for n in range(1, 7)
    ]
    # hash bucket 7 is empty; then 8; then 4; then 1; then 0, which has two items
    assert counts == [1, 2, 3, 5, 5, 5]
    # n_probe: sums are 4: 1.1, 1: 1.0, 0: 0.6, 8: 0.4
    probe = [
        index.search([[0.0]], scores=scores, n_probe=p, n_neighbors=1).candidates[0]
        for p in range(1, 6)
    ]
    assert probe == [1, 2, 4, 5, 5]


def test_max_candidates_cuts_in_order_and_says_so():
    index = line_index()
    cut = lambda m: index.search(  # noqa: E731
        [[9.0]], bucket_ids=[[0, 8]], n_neighbors=2, fill="none", max_candidates=m
    )
    assert cut(1).ids.tolist() == [[0, -1]]
    assert cut(1).truncated.tolist() == [True]
    assert cut(2).ids.tolist() == [[1, 0]]
    assert cut(2).truncated.tolist() == [True]
    assert cut(3).ids.tolist() == [[4, 1]]
    assert cut(3).truncated.tolist() == [False]


def test_a_filter_still_fills_up():
    index = line_index()
    result = index.search([[0.0]], bucket_ids=[0], n_neighbors=2, filter_ids={1, 4})
    assert result.ids.tolist() == [[1, 4]]
    assert result.candidates.tolist() == [2]


def test_a_set_against_itself_leaves_the_query_out():
    index = line_index()
    result = index.search(LINE, bucket_ids=BUCKETS, n_neighbors=1, exclude_self=True)
    assert result.ids.ravel().tolist() == [1, 0, 1, 1, 1]  # filling starts at bucket 0
    assert result.candidates.tolist() == [1, 1, 2, 2, 2]


def test_an_item_in_several_buckets_is_found_and_counted_once():
    shape = CodeShape(width=3, depth=1, sparsity=2)
    index = HashIndex.build([[0, 1], [1, 2]], [[0.0], [5.0]], shape=shape)
    result = index.search([[1.0]], bucket_ids=[[0, 1, 2]], n_neighbors=3)
    assert result.ids.tolist() == [[0, 1, -1]]
    assert result.candidates.tolist() == [2]


def test_equal_distances_are_ordered_by_id():
    index = HashIndex.build([0] * 6, [[1.0], [-1.0]] * 3, [9, 3, 7, 5, 1, 2],
                            shape=CodeShape(width=1, depth=1))  # fmt: skip
    assert index.search([[0.0]], bucket_ids=[0], n_neighbors=4).ids.tolist() == [[1, 2, 3, 5]]


def test_one_query_alone_may_drop_an_axis():
    index = line_index()
    full = index.search([[2.2]], bucket_ids=[[0, 4]], n_neighbors=2)
    assert full.ids.shape == (1, 2)
    np.testing.assert_array_equal(
        index.search([2.2], bucket_ids=[0, 4], n_neighbors=2).ids, full.ids
    )


def test_no_queries_give_no_rows():
    result = line_index().search(np.empty((0, 1)), bucket_ids=np.empty((0, 1), int))
    assert result.ids.shape == (0, 10)
    assert result.candidates.shape == (0,)


@pytest.mark.parametrize("scale", [1e-19, 1e-22, 1e-25, 1e-30])
@pytest.mark.parametrize("options", [{}, {"exclude_self": np.array([-1])}])  # both ways
def test_inner_products_of_tiny_vectors_with_long_queries(scale, options):
    rng = np.random.default_rng(0)
    shape = CodeShape(width=2, depth=1)
    for _ in range(5):
        query = rng.normal(size=64)
        items = rng.normal(size=(2000, 64))
        items -= np.outer(items @ query, query) / (query @ query)  # rounding is all there is
        vectors = (items * scale).astype(np.float32)
        queries = (query[None] / scale).astype(np.float32)
        index = HashIndex.build(np.zeros(2000, int), vectors, shape=shape)
        buckets = np.zeros((1, 1), int)
        result = index.search(queries, bucket_ids=buckets, metric="inner_product", **options)
        keys = reference_keys(vectors, queries[0], "inner_product")
        np.testing.assert_array_equal(result.ids[0], np.lexsort((np.arange(2000), keys))[:10])


def test_all_searches_call_the_same_compiled_code(monkeypatch):
    """It does not look at the types of arguments: wrong ones would be read as if right."""
    rng = np.random.default_rng(0)
    shape = CodeShape(width=4, depth=2, sparsity=2)
    vectors = rng.normal(size=(6000, 8)).astype(np.float32)
    buckets = rng.integers(0, 16, (6000, 2))
    queries, own = np.asfortranarray(vectors[:40]), buckets[:40]
    scores = rng.normal(size=(40, 2, 4))
    wheres = [
        {"bucket_ids": own}, {"bucket_ids": own.astype(np.int32)[:, ::-1]}, {"scores": scores},
        {"bucket_ids": np.asfortranarray(own), "n_probe": np.int64(1)},
        {"scores": scores.astype(np.float32)[:, :, ::-1], "n_probe": 3},
    ]  # fmt: skip
    options = [
        {}, {"fill": "none", "max_candidates": np.int32(7)}, {"exclude_self": True},
        {"exclude_self": np.arange(80, dtype=np.int32)[::2]}, {"filter_ids": [1, 2, 3]},
        {"filter_ids": np.arange(5000) % 2 == 0}, {"metric": "inner_product", "threads": 2},
    ]  # fmt: skip
    monkeypatch.setattr(search, "WORTH_A_THREAD", 1)
    compiled = kernel._search
    monkeypatch.setattr(kernel, "search", compiled)
    for settings in ({}, {"dtype": "float16"}, {"first_pass": "int8"}, {"unit_length": True}):
        index = HashIndex.build(buckets, vectors, shape=shape, **settings)
        index.add(own, vectors[:40])
        for where in wheres:
            for option in options:
                index.search(queries, n_neighbors=np.int64(5), **where, **option)
        assert len(compiled.overloads) == 1, settings
