"""Changes of a published table reach the query nodes, in order, and nothing is lost or twice."""

import logging
import shutil
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashcade import ClusterError, HashTable
from hashcade.cluster import ClusterTable, Reader, Writer, publish, verify
from tests.cluster.factories import CLASSES, Kind, assert_same, fill, items, saved_table

KIND = Kind(n=120)
SEARCHES = [
    {"n_neighbors": 8},
    {"n_neighbors": 200},
    {"n_neighbors": 5, "n_probe": 3, "max_candidates": 9},
    {"n_neighbors": 5, "where": {"price": {"<": 4}}},
    {"n_neighbors": 5, "fill": False, "where": {"label": "bee"}},
]


@pytest.fixture
def reader(plain_redis):
    reader = Reader(plain_redis.url)
    yield reader
    reader.close()


@pytest.fixture
def writer(plain_redis, reader, tmp_path):
    saved_table(tmp_path / "t", KIND, np.random.default_rng(0))
    with Writer(tmp_path / "t", reader, "t") as writer:
        writer.publish(activate=True)
        yield writer


def change(writer, kind, rng, n=1):
    """Make some changes, of all kinds."""
    for _ in range(n):
        table = writer.table
        what = rng.integers(0, 4)
        if what == 0 and len(table) > 10:
            writer.remove(rng.choice(table.ids(), 3, replace=False))
        elif what == 1 and len(table) > 10:
            some = rng.choice(table.ids(), 4, replace=False)
            labels = [CLASSES[code] for code in rng.integers(0, 4, size=4)]
            writer.upsert(some, items(kind, 4, rng), labels=labels, payload=[{"price": 3}] * 4)
        elif what == 2 and len(table) > 10:
            writer.remove(where={"price": int(rng.integers(0, 10))})
        else:
            fill(writer, kind, int(rng.integers(1, 30)), rng, first=10_000 + writer.sequence * 100)


def assert_equal(remote, local, kind, rng):
    for options in SEARCHES:
        queries = items(kind, 2, rng)
        assert_same(remote.search(queries, **options), local.search(queries, **options))
    assert len(remote) == len(local)
    assert sorted(remote.ids()) == sorted(local.ids())
    some = local.ids()[-1]
    assert remote[some].payload == local[some].payload
    assert remote[some].label == local[some].label


@settings(max_examples=6)
@given(
    kind=st.builds(
        Kind,
        n=st.sampled_from([12, 150]),
        sparsity=st.integers(1, 3),
        depth=st.integers(1, 3),
        metric=st.sampled_from(["euclidean", "cosine", "inner_product"]),
        text_ids=st.booleans(),
        first_pass=st.sampled_from([None, "int8"]),
    ),
    seed=st.integers(0, 2**20),
    cache_bytes=st.sampled_from([0, 1 << 30]),
)
def test_same_answers_while_it_is_changed(
    shared_cluster, tmp_path_factory, kind, seed, cache_bytes
):
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("table") / "t"
    saved_table(path, kind, rng)
    reader = Reader(shared_cluster.url)
    with Writer(path, reader, "changed") as writer:
        writer.publish(activate=True, first_pass=kind.first_pass)
        with ClusterTable.open(
            shared_cluster.url, name="changed", cache_bytes=cache_bytes
        ) as remote:
            for _ in range(4):
                change(writer, kind, rng, n=int(rng.integers(1, 4)))
                query = items(kind, 1, rng)
                found = remote.search(query, 7, min_sequence=writer.sequence)
                assert_same(found, writer.table.search(query, 7))
                assert_equal(remote, writer.table, kind, rng)
            with ClusterTable.open(shared_cluster.url, name="changed") as late:
                assert late.sequence == writer.sequence
                assert_equal(late, writer.table, kind, rng)
            manifest = writer.publish(activate=True, first_pass=kind.first_pass)
            remote.refresh()
            assert remote.generation == manifest.generation
            change(writer, kind, rng)
            remote.refresh()
            assert_equal(remote, writer.table, kind, rng)
    reader.close()


def test_a_large_table_with_many_small_changes(plain_redis, reader, tmp_path):
    """So many buckets that changes have a tree of their own; the base is never copied."""
    kind = Kind(n=9000, width=15, depth=3, dim=4)
    rng = np.random.default_rng(0)
    saved_table(tmp_path / "t", kind, rng)
    with Writer(tmp_path / "t", reader, "t") as writer:
        writer.publish(activate=True)
        with ClusterTable.open(plain_redis.url, name="t") as remote:
            for round_ in range(6):
                fill(writer, kind, 700, rng, first=100_000 * (1 + round_))
                change(writer, kind, rng)
                remote.refresh()
                assert_equal(remote, writer.table, kind, rng)


def test_a_writer_that_dies_before_it_sends(plain_redis, reader, tmp_path, monkeypatch, caplog):
    """The change is on disk, and the next writer sends it, also after the index was saved."""
    saved_table(tmp_path / "t", KIND, np.random.default_rng(0))
    first = Writer(tmp_path / "t", reader, "t")
    first.publish(activate=True)
    with ClusterTable.open(plain_redis.url, name="t") as remote:
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "hashcade"):
            patch.setattr(reader, "run", lambda *_: (_ for _ in ()).throw(ClusterError("is gone")))
            change(first, KIND, np.random.default_rng(1), n=3)
            assert first.unsent == first.sequence - remote.sequence == 3
            first.table.close()  # and no more is sent
        assert "not in Redis yet" in caplog.text
        remote.refresh()
        assert remote.sequence == remote.manifest.sequence
        with Writer(tmp_path / "t", reader, "t") as second:
            assert second.unsent == 0
            remote.refresh()
            assert remote.sequence == second.sequence == remote.manifest.sequence + 3
            assert_equal(remote, second.table, KIND, np.random.default_rng(2))


def test_a_lost_stream_and_a_gap(plain_redis, writer, tmp_path):
    rng = np.random.default_rng(1)
    with ClusterTable.open(plain_redis.url, name="t") as remote, plain_redis.client() as client:
        change(writer, KIND, rng, n=3)
        remote.refresh()
        (key,) = client.scan_iter("*:changes:*")
        client.unlink(key)  # as after a server that came back empty
        change(writer, KIND, rng)
        remote.refresh()
        with ClusterTable.open(plain_redis.url, name="t") as late:
            for node in (remote, late):
                assert_equal(node, writer.table, KIND, rng)
        change(writer, KIND, rng)
        change(writer, KIND, rng)
        first, *_ = client.xrange(key, f"{remote.sequence + 1}-0")
        client.xdel(key, first[0])
        with pytest.raises(ClusterError, match="are missing in Redis"):
            remote.refresh()
        assert remote.lag > 0
        with pytest.raises(ClusterError, match="are missing in Redis"):
            remote.search(items(KIND, 1, rng), min_sequence=writer.sequence)
        assert len(remote.search(items(KIND, 1, rng), 3)) == 1  # what is here, still answers
        writer.resend()
        remote.refresh()
        assert remote.lag == 0
        assert_equal(remote, writer.table, KIND, rng)


def test_a_damaged_entry_is_refused(plain_redis, writer):
    rng = np.random.default_rng(1)
    with ClusterTable.open(plain_redis.url, name="t") as remote, plain_redis.client() as client:
        change(writer, KIND, rng)
        (key,) = client.scan_iter("*:changes:*")
        ((name, fields),) = client.xrange(key)
        client.unlink(key)
        data = bytearray(fields[b"data"])
        data[-1] ^= 1
        client.xadd(key, {**fields, b"data": bytes(data)}, id=name)
        with pytest.raises(ClusterError, match="checksum"):
            remote.refresh()
        writer.resend()
        remote.refresh()
        assert_equal(remote, writer.table, KIND, rng)


def test_two_writers_of_copies_are_noticed(plain_redis, reader, writer, tmp_path, caplog):
    rng = np.random.default_rng(1)
    writer.table.save(tmp_path / "t")
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    fill(writer, KIND, 3, rng)
    with Writer(tmp_path / "copy", reader, "t") as other:
        with caplog.at_level(logging.WARNING, "hashcade"):
            fill(other, KIND, 5, rng)
        assert "there is another writer" in caplog.text
        with pytest.raises(ClusterError, match="there is another writer"):
            other.flush()


def test_a_search_that_waits_in_vain(plain_redis, writer, monkeypatch):
    monkeypatch.setattr("hashcade.cluster.table._WAIT_SECONDS", 0.1)
    with (
        ClusterTable.open(plain_redis.url, name="t") as remote,
        pytest.raises(ClusterError, match="has not arrived"),
    ):
        remote.search(items(KIND, 1, np.random.default_rng(0)), min_sequence=99)


def test_publishing_and_swapping_while_changes_come(plain_redis, reader, writer, tmp_path):
    """No change that was made is missing in an answer that asks for it."""
    rng = np.random.default_rng(1)
    wrong, stop = [], threading.Event()
    with ClusterTable.open(plain_redis.url, name="t", cache_bytes=1000) as remote:

        def work():
            while not stop.is_set():
                try:
                    numbers = writer.add(items(KIND, 2, rng))
                    sequence = writer.sequence
                    query = items(KIND, 1, np.random.default_rng(int(numbers[0])))
                    found = remote.search(query, 10_000, min_sequence=sequence)
                    if not set(numbers.tolist()) <= set(found.ids.ravel().tolist()):
                        raise AssertionError(f"{numbers} not found")
                except BaseException as error:
                    wrong.append(error)
                    return

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(4):
            publish(tmp_path / "t", reader, "t", activate=True)
            remote.refresh()
            time.sleep(0.1)
        stop.set()
        thread.join()
        assert not wrong, wrong[0]
        assert verify(reader, "t") == []
        remote.refresh()
        assert_equal(remote, writer.table, KIND, rng)


def test_a_table_without_a_writer_has_no_stream(plain_redis, reader, tmp_path):
    saved_table(tmp_path / "t", KIND, np.random.default_rng(0))
    manifest = publish(tmp_path / "t", reader, "t", activate=True)
    assert manifest.lineage is None
    with HashTable.open(tmp_path / "t") as table:
        table.remove(table.ids()[:1])
    with ClusterTable.open(plain_redis.url, name="t") as remote:
        remote.refresh()
        assert len(remote) == manifest.n_items
