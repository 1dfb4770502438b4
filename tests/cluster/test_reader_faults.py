"""Servers that die, hang, come back empty or give slots away, while threads read."""

import signal
import time

import pytest

from hashcade import ClusterError
from hashcade.cluster import Reader
from tests.cluster.load import Load, fill
from tests.cluster.servers import wait_for

pytestmark = pytest.mark.alone
LONGEST = 0.25  # seconds for one answer: one time-out, then the replica


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("seconds", [1.5, pytest.param(8, marks=pytest.mark.slow)])
def test_a_master_with_a_replica_may_fail(own_cluster, fault, seconds):
    reader = Reader(own_cluster.url)
    values = fill(reader)
    with Load(reader, values).running() as load:
        time.sleep(0.3)
        own_cluster.masters[0].signal(fault)
        time.sleep(seconds)
    load.check(longest=LONGEST)
    assert reader.metrics.fallbacks > 0
    assert reader.metrics.failures > 0


@pytest.mark.slow
def test_reads_and_writes_go_on_after_a_failover_and_a_return(own_cluster):
    reader = Reader(own_cluster.url)
    values = fill(reader)
    lost, heir = own_cluster.masters[0], own_cluster.replica_of(own_cluster.masters[0])
    with Load(reader, values).running() as load:
        lost.signal(signal.SIGSTOP)
        key = next(key for key in values if reader.node_of(key) == lost.address)
        reader.run(key, "SET", key, values[key])  # waits for the failover
        assert reader.node_of(key) == heir.address
        lost.signal(signal.SIGCONT)
        time.sleep(2)
    load.check(longest=LONGEST)
    assert reader.avoided == []


@pytest.mark.parametrize("n_slots", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_slots_move_to_a_new_master(own_cluster, n_slots):
    reader = Reader(own_cluster.url)
    values = fill(reader, 1500 if n_slots > 1000 else 600, 500)
    source = own_cluster.masters[0]
    with Load(reader, values).running() as load:
        target = own_cluster.add_master()
        own_cluster.move_slots(source, target, range(n_slots))
    load.check()
    assert reader.metrics.redirects > 0
    assert target.address in reader.masters
    assert reader.get_many(list(values)) == list(values.values())


def test_keys_of_a_slot_on_its_way_are_followed(own_cluster):
    """Half of a slot has moved: ASK for some keys, none for the others."""
    reader = Reader(own_cluster.url)
    keys = [f"{{tag}}:{i}" for i in range(20)]
    reader.pipeline([("SET", key, key) for key in keys])
    source = own_cluster.at(reader.node_of(keys[0]))
    target = next(server for server in own_cluster.masters if server is not source)
    slot = own_cluster.ask(source, "CLUSTER", "KEYSLOT", keys[0])
    own_cluster.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", own_cluster.name_of(source))
    own_cluster.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", own_cluster.name_of(target))
    own_cluster.ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys[:10])
    assert reader.get_many([*keys, "{tag}:none"]) == [*map(str.encode, keys), None]
    reader.pipeline([("SET", key, "new") for key in keys])
    assert reader.get_many(keys) == [b"new"] * 20
    assert reader.node_of(keys[0]) == source.address  # ASK is for once


def test_a_master_that_comes_back_empty_is_seen_and_named(own_cluster):
    reader = Reader(own_cluster.url)
    values = fill(reader, 60)
    lost = own_cluster.masters[1]
    keys = [key for key in values if reader.node_of(key) == lost.address]
    lost.kill()
    lost.start()  # before the failover: it is master again, without its keys
    wait_for(lambda: own_cluster.is_ready(lost))
    wait_for(lambda: reader.get_many(keys) == [None] * len(keys))
    assert {reader.node_of(key) for key in keys} == {lost.address}
    others = [key for key in values if key not in keys]
    assert reader.get_many(others) == [values[key] for key in others]


def test_a_slot_without_any_server_is_an_error_that_names_it(own_cluster):
    reader = Reader(own_cluster.url)
    values = fill(reader, 60)
    lost = own_cluster.masters[2]
    keys = [key for key in values if reader.node_of(key) == lost.address]
    lost.kill()
    own_cluster.replica_of(lost).kill()
    began = time.monotonic()
    with pytest.raises(ClusterError, match=lost.address) as caught:
        reader.get_many(list(values))
    assert time.monotonic() - began < 5
    assert caught.value.address == lost.address
    assert reader.reachable()[lost.address] is False
    others = [key for key in values if key not in keys]
    assert reader.get_many(others) == [values[key] for key in others]
