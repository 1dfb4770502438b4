"""The reader against real servers in good health."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.crc import key_slot as slot_of_redis_py

from hashcade import ClusterError
from hashcade.cluster import Reader
from hashcade.cluster.slots import key_slot, slot_owners
from tests.cluster.load import fill

URL_WITH_SECRET = "redis://user:secret@127.0.0.1:1"


@pytest.fixture(scope="module")
def reader(shared_cluster):
    reader = Reader(shared_cluster.url)
    yield reader
    reader.close()


@pytest.mark.parametrize(
    "key", ["", "a", "{a}b", "x{a}", "{}a", "{}{a}", "a{", "a{b", "ü{ö}", "}{a}"]
)
def test_slots_are_those_of_redis(key):
    assert key_slot(key) == slot_of_redis_py(key.encode())


def test_a_host_that_a_server_does_not_know_is_the_one_asked():
    owners = slot_owners([[0, 16383, [b"", 7001, b"id", []], [b"::1", 7002, b"id", []]]], "h:1")
    assert set(owners) == {("h:7001", "[::1]:7002")}


def test_values_come_back_in_order_from_all_servers(reader):
    values = fill(reader)
    keys = [*values, "hashcade:{missing}:b"]
    before = reader.metrics.nodes
    assert reader.get_many(keys) == [*values.values(), None]
    assert reader.metrics.nodes - before == 3  # one round trip to each master
    assert reader.get_many([]) == []
    first = next(iter(values))
    assert reader.get_ranges([(first, 3, 9)]) == [values[first][3:10]]
    assert reader.node_of(first) in reader.masters


def test_a_key_asks_one_server(reader):
    fill(reader, 1)
    before = reader.metrics.nodes, reader.metrics.keys
    reader.get_many(["hashcade:{load/0}:b"])
    assert (reader.metrics.nodes, reader.metrics.keys) == (before[0] + 1, before[1] + 1)


def test_writes_go_to_masters_and_errors_name_the_server(reader):
    assert reader.run("counter", "SET", "counter", 1) == b"OK"
    assert reader.pipeline([("INCR", "counter"), ("EVAL", "return KEYS[1]", 1, "counter")]) == [
        2, b"counter"]  # fmt: skip
    reader.run("text", "SET", "text", "no number")
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:\d+ refused INCR: .*integer") as caught:
        reader.pipeline([("INCR", "counter"), ("INCR", "text")])
    assert caught.value.address == reader.node_of("text")
    assert reader.get_many(["counter"]) == [b"3"]  # the connection is still in step


def test_every_master_is_asked(reader, shared_cluster):
    replies = reader.each_master("CONFIG", "GET", "maxmemory-policy")
    assert set(replies) == {server.address for server in shared_cluster.masters}
    assert all(reply == [b"maxmemory-policy", b"noeviction"] for reply in replies.values())
    assert reader.reachable() == {server.address: True for server in shared_cluster.servers}


def test_threads_share_a_reader(reader):
    values = fill(reader)

    def read(_):
        return all(reader.get_many(list(values)) == list(values.values()) for _ in range(20))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))


def test_a_forked_process_has_connections_of_its_own(reader):
    values = fill(reader, 50)
    child = os.fork()
    if child == 0:
        good = all(reader.get_many(list(values)) == list(values.values()) for _ in range(50))
        os._exit(0 if good else 1)
    good = all(reader.get_many(list(values)) == list(values.values()) for _ in range(50))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert good


def test_one_plain_server_is_enough(plain_redis):
    reader = Reader(plain_redis.url)
    values = fill(reader)
    assert reader.get_many(list(values)) == list(values.values())
    assert reader.masters == [plain_redis.address]
    # A server that closes idle connections is not down.
    reader.each_master("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert reader.get_many(list(values)) == list(values.values())
    assert reader.metrics.failures == 0


def test_nobody_there_is_an_error_with_a_hint():
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:1 did not answer") as caught:
        Reader("redis://127.0.0.1:1")
    assert caught.value.hint


@pytest.mark.parametrize(
    "url", ["http://a:1", "redis://", "redis://a:1/name", "a:1", URL_WITH_SECRET]
)
def test_a_bad_address_is_refused_without_telling_a_password(url):
    with pytest.raises(ValueError, match="address") as caught:
        Reader(url)
    assert "secret" not in f"{caught.value!r} {caught.value.__dict__}"
