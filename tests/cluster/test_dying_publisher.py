"""A publisher that is stopped at any moment harms nothing that is searched."""

import multiprocessing
import os
import signal

import numpy as np
import pytest

from hashcade import ClusterError, HashTable
from hashcade.cluster import ClusterTable, Generations, Reader, publish, retire, verify
from tests.cluster.factories import ALL_BUCKETS, KIND, assert_same, items, keys_of, tables


class Dying(Reader):
    """A publisher that is gone from its n-th write on: also what it would do at its end."""

    def __init__(self, url, n, die):
        super().__init__(url)
        self.left, self.die = n, die

    def _write(self):
        self.left -= 1
        if self.left < 0:
            self.die()

    def run(self, *args):
        self._write()
        return super().run(*args)

    def pipeline(self, commands):
        self._write()
        return super().pipeline(commands)


def publish_and_die(path, url, n, die):
    dying = Dying(url, n, die)
    try:
        publish(path, dying, "t", activate=True, first_pass="int8")
    finally:
        dying.close()


def raise_exit():
    raise SystemExit("killed")


def stopped(path, url, n):
    """Publish in this process, all from the n-th write on left out; whether it came to its end."""
    try:
        publish_and_die(path, url, n, raise_exit)
    except SystemExit:
        return False
    return True


def kill_this_process():
    os.kill(os.getpid(), signal.SIGKILL)


def killed(path, url, n):
    """Publish in another process, which is killed before its n-th write."""
    process = multiprocessing.get_context("spawn").Process(
        target=publish_and_die, args=(path, url, n, kill_this_process)
    )
    process.start()
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == 0


@pytest.mark.parametrize("publishes", [stopped, pytest.param(killed, marks=pytest.mark.slow)])
def test_a_publisher_that_dies_leaves_what_is_searched(server, reader, tmp_path, publishes):
    """At each of its writes; afterwards the same command completes it, or retire removes it."""
    old, new = tables(tmp_path, 2)
    first = publish(old, reader, "t", activate=True).generation
    keys = keys_of(server, "*")
    query = items(KIND, 2, np.random.default_rng(1))
    expected = HashTable.load(old).search(query, **ALL_BUCKETS)
    n = 0
    while not publishes(new, server.url, n):
        n += 1
        current = Generations(reader, "t").current()["generation"]
        with ClusterTable.open(server.url, name="t") as table:
            if current == first:
                assert_same(table.search(query, **ALL_BUCKETS), expected)
        publisher = Generations(reader, "t").keys.publisher
        if n > 1:
            with pytest.raises(ClusterError, match="another publisher"):
                publish(new, reader, "t", first_pass="int8")
        reader.run(publisher, "DEL", publisher)  # as after 30 seconds
        if current == first:
            states = Generations(reader, "t").states()
            if "loading" in states.values():
                assert retire(reader, "t") == []  # not without being told to
            retire(reader, "t", incomplete=True)
            assert keys_of(server, "*") == keys
        publisher = Generations(reader, "t").keys.publisher
    assert n >= 6  # lock, list, manifest, files, blocks, complete, activate
    assert verify(reader, "t") == []
