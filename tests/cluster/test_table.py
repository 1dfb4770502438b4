"""A table in Redis answers as the table it was published from, bit for bit."""

import mmap
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashcade import HashTable
from hashcade.cluster import ClusterTable, Reader, publish
from tests.cluster.factories import Kind, assert_same, empty_table, fill, items, saved_table


@pytest.fixture(scope="session")
def reader(shared_cluster):
    reader = Reader(shared_cluster.url)
    yield reader
    reader.close()


def published(reader, path, name, first_pass=None):
    return publish(path, reader, name, activate=True, first_pass=first_pass)


@st.composite
def searches(draw):
    """Options of a search."""
    options = {
        "n_neighbors": draw(st.integers(1, 20)),
        "n_probe": draw(st.integers(1, 5)),
        "fill": draw(st.booleans()),
        "max_candidates": draw(st.sampled_from([None, 1, 7, 50])),
    }
    kind = draw(st.sampled_from(["none", "where", "ids", "exclude"]))
    if kind == "where":
        options["where"] = draw(
            st.sampled_from([{"price": {"<": 3}}, {"label": "bee"}, {"price": 99}, {"label": None}])
        )
    return options, kind


@settings(max_examples=25)
@given(
    kind=st.builds(
        Kind,
        n=st.sampled_from([1, 60, 400]),
        dim=st.sampled_from([1, 5, 16]),
        width=st.sampled_from([4, 6]),
        depth=st.sampled_from([1, 2, 3]),
        sparsity=st.integers(1, 4),
        metric=st.sampled_from(["euclidean", "cosine", "inner_product"]),
        text_ids=st.booleans(),
        first_pass=st.sampled_from([None, "int8"]),
    ),
    asked=st.lists(searches(), min_size=3, max_size=6),
    cache_bytes=st.sampled_from([0, 1 << 12, 1 << 30]),
    seed=st.integers(0, 2**20),
)
def test_same_answers(shared_cluster, reader, tmp_path_factory, kind, asked, cache_bytes, seed):
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("table") / "t"
    saved_table(path, kind, rng)
    published(reader, path, "same", kind.first_pass)
    local = HashTable.load(path)
    with ClusterTable.open(shared_cluster.url, name="same", cache_bytes=cache_bytes) as remote:
        assert len(remote) == len(local)
        for options, how in asked:
            queries = items(kind, int(rng.integers(1, 5)), rng)
            if how == "ids":
                options["filter_ids"] = rng.choice(local.ids(), size=len(local) // 2 + 1)
            if how == "exclude":
                options["exclude_self"] = rng.choice(local.ids(), size=len(queries))
            assert_same(remote.search(queries, **options), local.search(queries, **options))
        known = local.ids()[0]
        assert known in remote
        assert remote[known].vector.tolist() == local[known].vector.tolist()
        one = items(kind, 1, rng)
        assert remote.explain(one) == local.explain(one)
        sizes = {"n_segments", "n_removed_entries", "bytes_vectors", "bytes_other"}
        stats = [{k: v for k, v in t.stats().items() if k not in sizes} for t in (remote, local)]
        assert stats[0] == stats[1]
    local.close()


@pytest.mark.parametrize("first_pass", [None, "int8"])
def test_large_blocks_are_cut(shared_cluster, reader, tmp_path, first_pass):
    kind = Kind(n=9000, dim=66, width=2, depth=1)  # parts end within vectors
    rng = np.random.default_rng(1)
    saved_table(tmp_path / "t", kind, rng)
    manifest = published(reader, tmp_path / "t", "cut", first_pass)
    assert manifest.mean_block_bytes > 256 << 10
    local = HashTable.load(tmp_path / "t")
    with ClusterTable.open(shared_cluster.url, name="cut") as remote:
        queries = items(kind, 20, rng)
        assert_same(remote.search(queries, 5), local.search(queries, 5))
        if first_pass:
            remote.table.index.remote.blocks()
            remote.table.index.verify()


def test_few_vectors_are_fetched(shared_cluster, reader, tmp_path):
    """Codes once, then a few vectors; no more bytes than these have, and a head or two."""
    kind = Kind(n=4000, dim=64, width=2, depth=1)
    rng = np.random.default_rng(1)
    table = empty_table(kind)
    found = items(kind, kind.n, rng)
    found.vectors[:] = rng.normal(size=found.vectors.shape)
    table.add(found)
    table.save(tmp_path / "t")
    published(reader, tmp_path / "t", "few", "int8")
    with ClusterTable.open(shared_cluster.url, name="few") as remote:
        before = remote.reader.metrics.bytes
        query = items(kind, 1, rng)
        assert_same(remote.search(query, 5), table.search(query, 5))
        assert 5 <= remote.cache.n_vectors < 100
        assert remote.cache.n_fetched == 1
        count = int(remote.search(query, 5).candidates[0])
        entry = 8 + 4 + 64 + 12 + 4  # id, label, code, its bounds, checksum
        most = count * entry + remote.cache.n_vectors * (256 + 1024) + 100
        assert count * entry < remote.reader.metrics.bytes - before < most
        again = remote.reader.metrics.bytes
        assert_same(remote.search(query, 5), table.search(query, 5))
        assert remote.reader.metrics.bytes == again


@pytest.mark.parametrize("first_pass", [None, "int8"])
def test_a_tiny_cache_under_threads(shared_cluster, reader, tmp_path, first_pass):
    """Blocks come and go under searches that are running, and every answer is right."""
    kind = Kind(n=6000, dim=32, width=8, depth=2)
    rng = np.random.default_rng(2)
    saved_table(tmp_path / "t", kind, rng)
    published(reader, tmp_path / "t", "tiny", first_pass)
    local = HashTable.load(tmp_path / "t")
    batches = [items(kind, 3, rng) for _ in range(60)]
    expected = [local.search(batch, 10, n_probe=2) for batch in batches]
    wrong = []
    with ClusterTable.open(shared_cluster.url, name="tiny", cache_bytes=100_000) as remote:

        def work(number):
            order = np.random.default_rng(number).permutation(len(batches))
            for at in [*order, *order]:
                try:
                    assert_same(remote.search(batches[at], 10, n_probe=2), expected[at])
                except BaseException as error:
                    wrong.append(error)
                    return

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong[0]
        assert remote.cache.n_dropped > 100
        remote.search(batches[0], 10)
        # Those of one search, and what shares a group.
        assert remote.cache.n_bytes <= (400_000 if first_pass else 200_000)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("first_pass", [None, "int8"])
def test_dropped_blocks_give_their_memory_back(shared_cluster, reader, tmp_path, first_pass):
    kind = Kind(n=100_000, dim=64, width=16, depth=2)  # 26 MB of vectors
    rng = np.random.default_rng(6)
    table = empty_table(kind)
    table.add(items(kind, kind.n, rng))
    table.save(tmp_path / "t")
    published(reader, tmp_path / "t", "memory", first_pass)
    queries = items(kind, 3000, rng)
    grown = []
    for cache_bytes in (1 << 30, 1 << 30, 1 << 20):  # the first one warms up
        with ClusterTable.open(
            shared_cluster.url, name="memory", cache_bytes=cache_bytes
        ) as remote:
            before = resident_bytes()
            for at in range(len(queries)):
                remote.search(queries[at : at + 1], 3, fill=False)
            grown.append(resident_bytes() - before)
    assert grown[1] > 20e6
    assert grown[2] < 8e6  # ids and labels stay: 1.2 MB


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_many_waiting_threads_fetch_a_block_once(shared_cluster, reader, tmp_path):
    kind = Kind(n=500, dim=16)
    rng = np.random.default_rng(3)
    saved_table(tmp_path / "t", kind, rng)
    published(reader, tmp_path / "t", "once")
    query = items(kind, 1, rng)
    with ClusterTable.open(shared_cluster.url, name="once") as remote:
        barrier = threading.Barrier(8)

        def work():
            barrier.wait()
            remote.search(query, 3, fill=False)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert remote.cache.n_fetched == 1
        assert remote.reader.metrics.keys < 60  # the files, and one block


def test_what_it_refuses(shared_cluster, reader, tmp_path):
    kind = Kind(n=50)
    rng = np.random.default_rng(4)
    saved_table(tmp_path / "t", kind, rng)
    published(reader, tmp_path / "t", "refused")
    with ClusterTable.open(shared_cluster.url, name="refused") as remote:
        for change in (remote.add, remote.upsert, remote.remove):
            with pytest.raises(ValueError, match="is for searching"):
                change([1])
        index = remote.table.index
        for change in (
            index.compact, lambda: index.save(tmp_path / "x"), lambda: index.set_first_pass("int8")
        ):  # fmt: skip
            with pytest.raises(ValueError, match="of a cluster"):
                change()
    empty_table(kind)
    with pytest.raises(ValueError, match="name='a b'"):
        ClusterTable.open(shared_cluster.url, name="a b")


def test_one_plain_server(plain_redis, tmp_path):
    kind = Kind(n=200, sparsity=2, text_ids=True)
    rng = np.random.default_rng(5)
    table = saved_table(tmp_path / "t", kind, rng)
    publish(tmp_path / "t", Reader(plain_redis.url), "one", activate=True)
    with ClusterTable.open(plain_redis.url, name="one") as remote:
        queries = items(kind, 4, rng)
        assert_same(remote.search(queries), table.search(queries))
        fill(table, replace(kind), 3, rng, first=1000)
        assert len(remote) == len(table) - 3
