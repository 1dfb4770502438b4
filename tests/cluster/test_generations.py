"""Publishing, activating, repairing and retiring, and what happens when something goes wrong."""

import re
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from hashcade import ClusterError, HashTable, StorageError
from hashcade.cluster import ClusterTable, Generations, Reader, publish, repair, retire, verify
from tests.cluster.factories import (
    ALL_BUCKETS,
    KIND,
    Kind,
    assert_same,
    empty_table,
    items,
    keys_of,
    saved_table,
    tables,
)
from tests.cluster.servers import PlainServer, Servers, closing, wait_for


def search_all(server):
    """Read everything there is."""
    with ClusterTable.open(server.url, name="t") as table:
        table.search(items(KIND, 1, np.random.default_rng(1)), **ALL_BUCKETS)
        table.stats()


@pytest.mark.parametrize("damage", ["missing", "flipped", "short", "foreign", "other"])
@pytest.mark.parametrize(
    ("what", "first_pass"), [("b", None), ("f", None), ("b", "int8"), ("c", "int8")]
)
def test_damage_is_an_error_and_is_repaired(server, reader, tmp_path, what, first_pass, damage):
    (path,) = tables(tmp_path, 1)
    publish(path, reader, "t", activate=True, first_pass=first_pass)
    one, two = keys_of(server, f"*:{what}")[:2]
    with server.client() as client:
        if damage == "missing":
            client.unlink(one)
        elif damage == "flipped":
            client.setrange(one, 50, bytes([client.getrange(one, 50, 50)[0] ^ 1]))
        elif damage == "short":
            client.set(one, client.get(one)[:-1])
        elif damage == "foreign":
            client.set(one, b"something else")
        else:
            client.set(one, client.get(two))
    with pytest.raises(ClusterError, match=re.escape(one.decode())) as info:
        search_all(server)
    assert info.value.address == server.address
    assert "hashcade cluster repair" in info.value.hint
    assert len(verify(reader, "t")) == 1
    assert reader.metrics.damaged == 1
    assert repair(path, reader, "t") == 1
    assert verify(reader, "t") == []
    assert repair(path, reader, "t") == 0


def test_a_table_that_changed_cannot_repair_what_it_has_not(server, reader, tmp_path):
    (path,) = tables(tmp_path, 1)
    publish(path, reader, "t", activate=True)
    with HashTable.open(path) as table:
        table.remove(table.ids())
        table.add(items(KIND, 3, np.random.default_rng(9)))
    with server.client() as client:
        client.unlink(keys_of(server, "*:b")[0])
    with pytest.raises(ClusterError, match="changed since it was published"):
        repair(path, reader, "t")


def test_blocks_that_lie_are_refused(server, reader, tmp_path):
    """An attacker who can write to Redis can make checksums, so values are checked as well."""
    table = empty_table(KIND)
    table.add(items(KIND, 20, np.random.default_rng(0)))
    table.save(tmp_path / "t")
    manifest = publish(tmp_path / "t", reader, "t", activate=True)
    key = Generations(reader, "t").keys.of_generation(manifest.generation, "manifest")
    lying = replace(manifest, max_norm=0.1)
    reader.run(key, "SET", key, lying.to_bytes())
    with (
        ClusterTable.open(server.url, name="t") as remote,
        pytest.raises(ClusterError, match="norm"),
    ):
        remote.search(items(KIND, 1, np.random.default_rng(1)), 20)
    lying = replace(manifest, n_entries=10, n_items=10)
    reader.run(key, "SET", key, lying.to_bytes())
    with pytest.raises(ClusterError, match="contradict"):
        ClusterTable.open(server.url, name="t")


@pytest.mark.parametrize("first_pass", [None, "int8"])
def test_publishing_again_restores_all_that_was_lost(server, reader, tmp_path, first_pass):
    (path,) = tables(tmp_path, 1)
    generation = publish(path, reader, "t", activate=True, first_pass=first_pass).generation
    keys = keys_of(server, "*")
    for some in (keys[::2], keys[1::2], [k for k in keys if b"{t}" in k]):
        with server.client() as client:
            client.unlink(*some)
        publish(path, reader, "t", activate=True, first_pass=first_pass)
        assert keys_of(server, "*") == keys
        assert verify(reader, "t") == []
    manifest = Generations(reader, "t").keys.of_generation(generation, "manifest")
    with server.client() as client:
        client.unlink(manifest)
    repair(path, reader, "t")
    assert keys_of(server, "*") == keys


@pytest.mark.slow
def test_a_server_that_comes_back_empty(redis_server, tmp_path):
    """A third of everything is gone, and Redis says that all is well."""
    (path,) = tables(tmp_path, 1)
    query = items(KIND, 2, np.random.default_rng(1))
    expected = HashTable.load(path).search(query, **ALL_BUCKETS)
    with closing(Servers(tmp_path / "redis", 3, 0)) as servers:
        reader = Reader(servers.url)
        publish(path, reader, "t", activate=True)
        keys = Generations(reader, "t").keys
        for home in (False, True):  # whether it is the server with the list of generations
            lost = next(
                s for s in servers.masters if (s.address == reader.node_of(keys.current)) == home
            )
            with ClusterTable.open(servers.url, name="t") as table:
                lost.kill()
                lost.start()
                wait_for(lambda: all(map(servers.is_ready, servers.servers)))
                with pytest.raises(ClusterError, match=f"at {lost.address} is missing"):
                    table.search(query, **ALL_BUCKETS)
                if home:
                    with pytest.raises(ClusterError, match="no generation of 't' is active"):
                        repair(path, reader, "t")
                    publish(path, reader, "t", activate=True)
                else:
                    assert repair(path, reader, "t") > 1
                assert verify(reader, "t") == []
                assert_same(table.search(query, **ALL_BUCKETS), expected)
        reader.close()


def test_activate_rollback_and_retire(server, reader, tmp_path):
    one, two, three = tables(tmp_path, 3)
    generations = Generations(reader, "t")
    with pytest.raises(ClusterError, match="no generation of 't' is active"):
        ClusterTable.open(server.url, name="t")
    names = [
        publish(path, reader, "t", activate=path != two, first_pass=first_pass).generation
        for path, first_pass in ((one, None), (two, "int8"))
    ]
    assert generations.current()["generation"] == names[0]
    with pytest.raises(ClusterError, match="no previous"):
        generations.rollback()
    generations.activate(names[1])
    assert generations.rollback() == names[0]
    assert generations.rollback() == names[1]
    names.append(publish(three, reader, "t", activate=True).generation)
    described = {g["generation"]: g["use"] for g in generations.describe()}
    assert described == {names[0]: "", names[1]: "previous", names[2]: "current"}
    with pytest.raises(ClusterError, match="is the current one"):
        retire(reader, "t", names[2])
    generations.activate(names[0])
    with ClusterTable.open(server.url, name="t"):
        generations.activate(names[2])
        with pytest.raises(ClusterError, match="is used by query nodes"):
            retire(reader, "t", names[0])
    assert retire(reader, "t") == [names[1]]
    assert retire(reader, "t", names[0]) == [names[0]]
    assert not [key for key in keys_of(server, "*") if any(n.encode() in key for n in names[:2])]
    with pytest.raises(ClusterError, match="not there"):
        generations.activate(names[0])
    with pytest.raises(ClusterError, match="is not there"):
        retire(reader, "t", names[0])
    assert verify(reader, "t") == []


def test_swaps_under_load(server, reader, tmp_path):
    """Every answer is that of one generation as a whole, before or after the swap."""
    paths = tables(tmp_path, 2)
    names = [
        publish(path, reader, "t", activate=True, first_pass=first_pass).generation
        for path, first_pass in zip(paths, (None, "int8"), strict=True)
    ]
    batches = [items(KIND, 2, np.random.default_rng([7, n])) for n in range(8)]
    expected = [
        {HashTable.load(p).search(b, **ALL_BUCKETS).ids.tobytes() for p in paths} for b in batches
    ]
    wrong, counts, stop = [], [], threading.Event()
    generations = Generations(reader, "t")
    with ClusterTable.open(server.url, name="t", cache_bytes=2000) as table:

        def work():
            n = 0
            while not stop.is_set():
                try:
                    found = table.search(batches[n % 8], **ALL_BUCKETS)
                    if found.ids.tobytes() not in expected[n % 8]:
                        raise AssertionError("an answer of no generation")
                except BaseException as error:
                    wrong.append(error)
                    return
                n += 1
            counts.append(n)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for swap in range(20):
            generations.activate(names[swap % 2])
            assert table.refresh() or table.generation == names[swap % 2]
            assert table.generation == names[swap % 2]
            time.sleep(0.02)
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[0]
    assert sum(counts) > 20


def test_a_node_follows_by_itself(server, reader, tmp_path):
    one, two = tables(tmp_path, 2)
    publish(one, reader, "t", activate=True)
    with ClusterTable.open(server.url, name="t") as table:
        new = publish(two, reader, "t", activate=True).generation
        deadline = time.monotonic() + 60
        while table.generation != new and time.monotonic() < deadline:
            time.sleep(0.05)
        assert table.generation == new
        assert len(table) == len(HashTable.load(two))


def test_a_second_publisher_is_refused(reader, tmp_path, monkeypatch):
    one, two = tables(tmp_path, 2)
    inside, go_on = threading.Event(), threading.Event()
    begin = Generations.begin

    def slow(self, *args):
        inside.set()
        go_on.wait(60)
        begin(self, *args)

    monkeypatch.setattr(Generations, "begin", slow)
    thread = threading.Thread(target=publish, args=(one, reader, "t"))
    thread.start()
    inside.wait(60)
    for act in (lambda: publish(two, reader, "t"), lambda: retire(reader, "t")):
        with pytest.raises(ClusterError, match="another publisher"):
            act()
    go_on.set()
    thread.join()
    assert list(Generations(reader, "t").states().values()) == ["complete"]


def test_eviction_and_full_memory(redis_server, tmp_path):
    # Large beside what connections take and give back at any moment.
    path = tmp_path / "table"
    saved_table(path, Kind(n=5000), np.random.default_rng(0))
    room = 300_000
    options = {"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"}
    with closing(PlainServer(tmp_path / "redis", options)) as server:
        reader = Reader(server.url)
        with pytest.raises(ClusterError, match="maxmemory-policy allkeys-lru") as info:
            publish(path, reader, "t")
        assert "noeviction" in info.value.hint
        with server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", client.info("memory")["used_memory"] + room)
            with pytest.raises(ClusterError, match="bytes left"):
                publish(path, reader, "t")
            assert client.dbsize() == 0
            # The room is there when it is looked at, and not when it is needed.
            original = reader.each_master
            reader.each_master = lambda *c: {
                a: r.replace(b"maxmemory:", b"maxmemory:9") for a, r in original(*c).items()
            }
            client.config_set("maxmemory", client.info("memory")["used_memory"] + room)
            with pytest.raises(ClusterError, match="maxmemory"):
                publish(path, reader, "t", activate=True)
            client.config_set("maxmemory", 0)
            reader.each_master = original
            assert client.dbsize() <= 1  # its lock could not be given back, perhaps
            client.flushall()
        publish(path, reader, "t", activate=True)
        assert verify(reader, "t") == []
        reader.close()


def test_the_model_is_published_and_compared(server, reader, tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat(["ant", "bee", "cat"], 20)
    X = np.repeat(np.eye(3), 20, axis=0) + 0.1 * rng.normal(size=(60, 3))
    for seed in (1, 2):
        HashTable(width=4, steps=5, random_state=seed).fit(X, y).save(tmp_path / str(seed))
    publish(tmp_path / "1", reader, "t", activate=True)
    expected = HashTable.load(tmp_path / "1").search(X[:5], 3)
    with ClusterTable.open(server.url, name="t") as table:
        assert_same(table.search(X[:5], 3), expected)
    with ClusterTable.open(server.url, name="t", model=tmp_path / "1" / "model") as table:
        assert_same(table.search(X[:5], 3), expected)
    with pytest.raises(StorageError, match="is not the one of the table"):
        ClusterTable.open(server.url, name="t", model=tmp_path / "2" / "model")
