"""The short way of a search: taken for plain requests alone, and with the same results."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from worlds import assert_same, vectors_of, worlds

from hashcade import CodeShape, CorruptIndexError, HashIndex
from hashcade.index import _index
from hashcade.index._direct import search_directly
from hashcade.index._search import checked_request, run

PLAIN = {"n_neighbors": 3, "fill": "path", "metric": "euclidean", "threads": 1}


def the_long_way(index, queries, buckets, **options):
    others = dict.fromkeys(["scores", "n_probe", "max_candidates", "filter_ids", "exclude_self"])
    request = checked_request(index._snapshot, queries, bucket_ids=buckets, **others, **options)
    return run(index._snapshot, request)


def small_index(**more):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 8)).astype(np.float32)
    shape = CodeShape(width=4, depth=2)
    return HashIndex.build(np.arange(60) % 12, vectors, shape=shape, **more), vectors


@given(st.data())
def test_both_ways_give_the_same(data):
    world, index, rng, kind = data.draw(worlds())
    assume(world.shape.sparsity == 1 and world.items)
    index.compact()
    index.remove([i for i in list(world.items)[1:] if rng.random() < 0.1 and world.items.pop(i)])
    options = {
        "n_neighbors": data.draw(st.integers(1, 12)),
        "fill": data.draw(st.sampled_from(["path", "none"])),
        "metric": data.draw(st.sampled_from(["euclidean", "inner_product"])),
    }
    n = data.draw(st.integers(1, 7))
    queries = vectors_of(rng, n, world.dim, kind)
    buckets = rng.integers(0, world.shape.n_buckets, (n, data.draw(st.integers(1, 4))))
    expected = world.expected(queries, bucket_ids=buckets, **options)
    assert_same(the_long_way(index, queries, buckets, threads=1, **options), expected)
    short = search_directly(index._snapshot, queries, buckets, *options.values(), 1)
    if short is None:  # for this reason alone
        assert options["fill"] == "path"
        assert min(the_long_way(index, queries, buckets, threads=1, **options | {"fill": "none"})
                   .candidates) < options["n_neighbors"]  # fmt: skip
    else:
        assert_same(short, expected)


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
@pytest.mark.parametrize("n_named", [1, 3])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_plain_search_goes_the_short_way(metric, n_named, threads, monkeypatch):
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(20_000, 40)).astype(np.float32)
    buckets = rng.integers(0, 8, 20_000)
    index = HashIndex.build(buckets, vectors, shape=CodeShape(width=8, depth=1))
    index.remove(np.arange(0, 20_000, 7))
    queries = rng.normal(size=(50, 40)).astype(np.float32)
    named = rng.integers(0, 8, (50, n_named))
    expected = the_long_way(
        index, queries, named, n_neighbors=10, fill="path", metric=metric, threads=1
    )
    monkeypatch.setattr(_index, "checked_request", None)  # the long way is closed
    result = index.search(queries, bucket_ids=named, metric=metric, threads=threads)
    for name in ("ids", "distances", "candidates", "truncated"):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))
    one = index.search(queries[3], bucket_ids=named[3], metric=metric)
    np.testing.assert_array_equal(one.ids[0], expected.ids[3])


@pytest.mark.parametrize(
    "change",
    [
        {"vectors": [[0.0] * 8]},
        {"vectors": np.zeros((1, 8))},  # float64
        {"vectors": np.zeros((1, 7), np.float32)},
        {"vectors": np.float32(0) * np.ones(())},
        {"vectors": np.zeros((1, 1, 8), np.float32)},
        {"vectors": np.zeros((0, 8), np.float32)},
        {"vectors": np.zeros((8, 2), np.float32).T[:1]},
        {"vectors": np.full((1, 8), np.nan, np.float32)},
        {"vectors": np.full((1, 8), np.inf, np.float32)},
        {"bucket_ids": [[1]]},
        {"bucket_ids": np.array([[1]], np.int32)},
        {"bucket_ids": np.array(1)},
        {"bucket_ids": np.ones((1, 1, 1), np.int64)},
        {"bucket_ids": np.array([[16]])},
        {"bucket_ids": np.array([[-1]])},
        {"bucket_ids": np.array([[2**63 - 1]])},
        {"bucket_ids": np.empty((1, 0), np.int64)},
        {"bucket_ids": np.array([[1], [2]])},
        {"bucket_ids": np.ones((1, 33), np.int64)},
        {"bucket_ids": None},
        {"n_neighbors": 0},
        {"n_neighbors": True},
        {"n_neighbors": 6},  # a bucket has five
        {"fill": "all"},
        {"metric": "cosine"},
        {"metric": ["euclidean"]},
        {"threads": 0},
        {"threads": 1.0},
    ],
    ids=str,
)
def test_what_is_not_plain_is_left_to_the_long_way(change):
    index, vectors = small_index()
    asked = {"vectors": vectors[:1].copy(), "bucket_ids": np.array([[1]]), **PLAIN}
    assert search_directly(index._snapshot, **asked) is not None
    assert search_directly(index._snapshot, **asked | change) is None


def test_an_array_that_must_not_be_written_to_is_left_to_the_long_way():
    index, vectors = small_index()
    query = vectors[:1].copy()
    query.flags.writeable = False
    assert search_directly(index._snapshot, query, np.array([[1]]), **PLAIN) is None
    assert index.search(query, bucket_ids=np.array([[1]])).ids[0, 0] >= 0


def test_indexes_of_several_segments_or_buckets_per_item_are_left_to_the_long_way():
    index, vectors = small_index()
    query, bucket = vectors[:1].copy(), np.array([[1]])
    index.add([1], vectors[:1])
    assert search_directly(index._snapshot, query, bucket, **PLAIN) is None
    index.compact()
    assert search_directly(index._snapshot, query, bucket, **PLAIN) is not None
    shape = CodeShape(width=4, depth=1, sparsity=2)
    several = HashIndex.build(np.ones((60, 2), int), vectors, shape=shape)
    assert search_directly(several._snapshot, query, bucket, **PLAIN) is None
    empty = HashIndex.build(np.empty(0, int), np.empty((0, 8)), shape=shape)
    assert search_directly(empty._snapshot, query, bucket, **PLAIN) is None


def test_a_bucket_that_was_not_checked_yet_is_checked_first(tmp_path):
    index, vectors = small_index()
    index.save(tmp_path / "index")
    loaded = HashIndex.load(tmp_path / "index")
    query = vectors[:1].copy()
    one, other = np.array([[1]]), np.array([[2]])
    assert search_directly(loaded._snapshot, query, one, **PLAIN) is None
    loaded.search(query, bucket_ids=one)
    assert search_directly(loaded._snapshot, query, one, **PLAIN) is not None
    assert search_directly(loaded._snapshot, query, other, **PLAIN) is None


def test_a_damaged_bucket_is_refused_each_time(tmp_path):
    index, vectors = small_index()
    index.save(tmp_path / "index")
    for path in (tmp_path / "index").glob("*"):  # the last bytes of a segment are vectors
        if path.stat().st_size > 60 * 32:
            raw = bytearray(path.read_bytes())
            at = raw.rindex(vectors[59].tobytes())
            raw[at] ^= 1
            path.write_bytes(raw)
    loaded = HashIndex.load(tmp_path / "index")
    query = vectors[:1].copy()
    assert loaded.search(query, bucket_ids=np.array([[1]])).ids[0, 0] >= 0
    for _ in range(2):
        with pytest.raises(CorruptIndexError, match="bucket 11"):
            loaded.search(query, bucket_ids=np.array([[59 % 12]]))
