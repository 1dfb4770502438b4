"""Several threads and several segments in one search: they are used, and change nothing."""

import os
import threading

import numpy as np
import pytest
from factories import World, assert_same
from hypothesis import given
from hypothesis import strategies as st

from hashcade import CodeShape, CorruptIndexError, HashIndex
from hashcade.index import kernel, search, warmup


@pytest.fixture(autouse=True)
def every_search_is_worth_a_thread(monkeypatch):
    monkeypatch.setattr(search, "WORTH_A_THREAD", 1)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(9000, 64)).astype(np.float32)
    buckets = rng.integers(0, 4, 9000)
    one = HashIndex.build(buckets, vectors, shape=CodeShape(width=4, depth=1))
    several = HashIndex.build(buckets[:6000], vectors[:6000], shape=CodeShape(width=4, depth=1))
    for start in range(6000, 9000, 300):
        several.add(buckets[start : start + 300], vectors[start : start + 300])
    assert several.stats()["n_segments"] > 1
    queries = rng.normal(size=(200, 64)).astype(np.float32)
    return one, several, queries, rng.integers(0, 4, (200, 2))


def assert_equal(left, right):
    for name in ("ids", "distances", "candidates", "truncated"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
@pytest.mark.parametrize("threads", [1, 2, 3, 50])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_candidates": 1500},
        {"filter_ids": np.arange(0, 9000, 3)},
        {"exclude_self": np.arange(200) * 7},
        {"n_neighbors": 4000},
        {"n_probe": 1},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_neither_threads_nor_segments_change_the_answer(batch, metric, threads, options):
    one, several, queries, buckets = batch
    expected = one.search(queries, bucket_ids=buckets, threads=1, metric=metric, **options)
    for index in (one, several):
        result = index.search(
            queries, bucket_ids=buckets, threads=threads, metric=metric, **options
        )
        assert_equal(result, expected)


def test_scores_are_searched_in_threads_too(batch):
    one, several, queries, _ = batch
    scores = np.random.default_rng(1).normal(size=(200, 1, 4))
    for n_probe in (None, 1, 3):
        expected = one.search(queries, scores=scores, n_probe=n_probe, threads=1)
        for index in (one, several):
            assert_equal(index.search(queries, scores=scores, n_probe=n_probe, threads=3), expected)


def test_other_threads_take_shares(batch, monkeypatch):
    one, _, queries, buckets = batch
    names = set()
    both = threading.Barrier(2, timeout=30)
    warmup()  # the first call of all puts the compiled code in the place that is patched here
    compiled = kernel.search

    def spy(*arguments):
        name = threading.current_thread().name
        if name not in names:
            names.add(name)
            both.wait()  # nobody takes a second share before the other has its first
        return compiled(*arguments)

    monkeypatch.setattr(kernel, "search", spy)
    one.search(queries, bucket_ids=buckets, threads=2)
    assert len(names) == 2


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(2, 40), st.integers(1, 9))
def test_every_division_of_the_queries_gives_the_same(seed, threads, n, n_neighbors):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-1, 2, (60, 5)).astype(np.float32)
    buckets = rng.integers(0, 9, (60, 1))
    shape = CodeShape(width=3, depth=2)
    world = World(shape, 5)
    world.items = {
        i: (b.tolist(), v, 0) for i, (b, v) in enumerate(zip(buckets, vectors, strict=True))
    }
    index = HashIndex.build(buckets[:40], vectors[:40], shape=shape)
    index.add(buckets[40:55], vectors[40:55])
    index.add(buckets[55:], vectors[55:])
    queries = rng.integers(-1, 2, (n, 5)).astype(np.float32)
    asked = rng.integers(0, 9, (n, 2))
    result = index.search(queries, bucket_ids=asked, n_neighbors=n_neighbors, threads=threads)
    assert_same(result, world.expected(queries, bucket_ids=asked, n_neighbors=n_neighbors))


def test_searches_at_the_same_time_do_not_disturb_each_other(batch):
    one, several, queries, buckets = batch
    expected = one.search(queries, bucket_ids=buckets, threads=1)
    errors = []

    def ask():
        try:
            for index in (one, several) * 5:
                assert_equal(index.search(queries, bucket_ids=buckets, threads=3), expected)
        except Exception as error:
            errors.append(error)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert errors == []


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_threads_of_its_own(batch):
    one, _, queries, buckets = batch
    expected = one.search(queries, bucket_ids=buckets, threads=2)
    child = os.fork()
    if child == 0:
        try:
            same = one.search(queries, bucket_ids=buckets, threads=2)
            os._exit(0 if np.array_equal(same.ids, expected.ids) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_a_bad_value_is_named_whoever_meets_it(batch, threads):
    one, _, queries, buckets = batch
    bad = queries.copy()
    bad[[3, 150], 5] = np.nan
    with pytest.raises(ValueError, match="NaN or values beyond float32 in rows 3, 150"):
        one.search(bad, bucket_ids=buckets, threads=threads)
    far = buckets.copy()
    far[[7, 190], 1] = [4, -1]
    with pytest.raises(ValueError, match=r"outside 0\.\.3 in rows 7, 190"):
        one.search(queries, bucket_ids=far, threads=threads)


@pytest.mark.parametrize("threads", [1, 3])
def test_damage_in_a_late_segment_is_an_error_each_time(tmp_path, batch, threads):
    _, several, queries, _ = batch
    several.save(tmp_path / "a")
    last = min((tmp_path / "a").glob("segment-*"), key=lambda path: path.stat().st_size)
    data = bytearray(last.read_bytes())
    data[0] ^= 1  # a vector of the first bucket
    last.write_bytes(data)
    loaded = HashIndex.load(tmp_path / "a")
    for _ in range(2):
        with pytest.raises(CorruptIndexError, match="bucket 0 is damaged"):
            loaded.search(queries, bucket_ids=np.zeros((200, 1), int), threads=threads)
    good = loaded.search(queries, bucket_ids=np.ones((200, 1), int), threads=threads)
    assert_equal(good, several.search(queries, bucket_ids=np.ones((200, 1), int)))
