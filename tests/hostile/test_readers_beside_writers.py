"""Readers that start at any moment beside a writer: each sees one commit of one table."""

import os
import shutil
import signal
import time

import pytest

from hashcade import HashTable
from tests.hostile import crash


def forked(script, *arguments):
    """Run a script of ``crash.py`` without end, in a forked process."""
    child = os.fork()
    if child == 0:
        try:
            import sys

            sys.argv = ["", *map(str, arguments)]
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            exec(compile(script, "script", "exec"), {"__name__": "__main__"})
        finally:
            os._exit(1)
    return child


def stopped(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def goes_on(start, n_seen):
    """For three seconds, and longer if the writer got no time for a few changes."""
    seconds = time.monotonic() - start
    return seconds < 3 or (n_seen <= 3 and seconds < 60)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    crash.prepare(folder)
    return folder


# As REPLACED, with a model that belongs to the items.
OTHER_MODELS = crash.REPLACED.replace(
    "    source.close()\n",
    "    source.close()\n"
    "    weights = {name: np.array(array) for name, array in source.hasher._weights.items()}\n"
    '    weights["point_mean"][:] = k\n'
    "    source.hasher._weights = weights\n",
)


@pytest.mark.promise("M5", "a reader starts while a table is replaced as a whole")
def test_model_and_items_are_of_one_table(tmp_path, source, cases):
    shutil.copytree(source / "full", tmp_path / "table")
    writer = forked(OTHER_MODELS, tmp_path, 10**9)
    seen, start = set(), time.monotonic()
    try:
        while goes_on(start, len(seen)):
            for load in (HashTable.load, lambda path: HashTable.open(path, read_only=True)):
                with load(tmp_path / "table") as table:
                    numbers = {row["n"] for row in table.catalog.payload_of(table.ids())}
                    mean = set(table.hasher._weights["point_mean"].tolist())
                    assert numbers == mean
                    assert len(table) == 20
                    seen |= numbers
                cases.add()
    finally:
        stopped(writer)
    assert len(seen) > 3


@pytest.mark.promise("M5", "a reader starts beside a service that changes and saves")
def test_a_reader_sees_a_commit_and_never_an_older_one(tmp_path, source, cases):
    shutil.copytree(source / "empty", tmp_path / "table")
    writer = forked(crash.SERVICE, tmp_path, 10**9)
    last, start = 0, time.monotonic()
    try:
        with HashTable.open(tmp_path / "table", read_only=True) as follower:
            while goes_on(start, last):
                with HashTable.open(tmp_path / "table", read_only=True) as table:
                    n = commits(table)
                    assert n >= last
                    follower.refresh()
                    assert commits(follower) >= n
                    last = n
                cases.add(2)
    finally:
        stopped(writer)
    assert last > 3


def commits(table):
    """How many changes a table has; it must have exactly these."""
    present = set(table.ids().tolist())
    assert len(table.index) == len(present)
    assert table.index.contains(sorted(present)).all()
    n = 1 + max((number for number in present if number < 100_000), default=-1)
    numbers = [crash.numbers_after(n + k) for k in range(3)]
    assert present in numbers
    return n + numbers.index(present)
