"""Things that go wrong while an index is written: the old state or the new one, nothing else."""

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from hashcade import CodeShape, HashIndex, StorageError

# A state is recognised by its items: state k holds the ids k*1000 .. k*1000 + size - 1.
WRITER = """
import sys
import numpy as np
from hashcade import CodeShape, HashIndex
path, start, n, dim = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
shape = CodeShape(width=4, depth=2)
index = HashIndex.load(path)
print("ready", flush=True)
for k in range(start, start + 100000):
    index.remove(np.arange((k - 1) * 1000, (k - 1) * 1000 + n))
    index.add(np.arange(n) % 16, np.full((n, dim), k, np.float32), ids=np.arange(n) + k * 1000)
    if k % 3 == 0:
        index.compact()
    index.save(path)
    print(k, flush=True)
"""
READER = """
import sys, time
import numpy as np
from hashcade import HashIndex
path, n, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
print("ready", flush=True)
seen, loads, end = set(), 0, time.time() + seconds
while time.time() < end:
    index = HashIndex.load(path, mmap=loads % 2 == 0)
    everything = np.arange(16)[None]
    result = index.search(np.zeros((1, index.dim)), bucket_ids=everything, n_neighbors=n + 5)
    ids = np.sort(result.ids[0][result.ids[0] >= 0])
    k = ids[0] // 1000
    assert len(index) == n, len(index)
    assert np.array_equal(ids, np.arange(n) + k * 1000), ids
    assert (result.distances[0][:n] == np.float32(k * np.sqrt(index.dim))).all()
    seen.add(int(k)); loads += 1
print(loads, len(seen))
"""
N, DIM = 64, 16


def make(path, n=N, dim=DIM):
    shape = CodeShape(width=4, depth=2)
    index = HashIndex.build(
        np.arange(n) % 16, np.zeros((n, dim), np.float32), ids=np.arange(n), shape=shape
    )
    index.save(path)
    return index


def state_of(path, n=N):
    """Number of the state in the directory; everything is read and checked."""
    index = HashIndex.load(path, mmap=False)
    index.verify()
    result = index.search(
        np.zeros((1, index.dim)), bucket_ids=np.arange(16)[None], n_neighbors=n + 5
    )
    ids = np.sort(result.ids[0][result.ids[0] >= 0])
    state = int(ids[0] // 1000)
    np.testing.assert_array_equal(ids, np.arange(n) + state * 1000)
    exact = np.float32(state * np.sqrt(index.dim))
    np.testing.assert_array_equal(result.distances[0][:n], np.full(n, exact))
    return state


def kill_writers(path, times, seed):
    """Kill a saving writer again and again; return how often a save was really interrupted."""
    make(path)
    rng = random.Random(seed)
    interrupted = 0
    start = 1
    for _ in range(times):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(start), str(N), str(DIM)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert writer.stdout.readline() == "ready\n"
        time.sleep(rng.random() * 0.03)
        writer.send_signal(signal.SIGKILL)
        reported = [int(line) for line in writer.stdout.read().split()]
        writer.stdout.close()
        writer.wait()
        last = reported[-1] if reported else start - 1
        files = {p.name for p in path.iterdir()}
        state = state_of(path)
        assert state in (last, last + 1)  # what was reported as saved is there
        from hashcade.index.storage import read_manifest

        interrupted += bool(files - read_manifest(path).files() - {"manifest.json", "lock"})
        start = state + 1
    return interrupted


def test_killed_in_the_middle_of_a_save(tmp_path):
    assert kill_writers(tmp_path / "a", 8, seed=0) >= 1


@pytest.mark.slow
def test_killed_three_hundred_times(tmp_path):
    interrupted = kill_writers(tmp_path / "a", 320, seed=1)
    print(f"320 kills, {interrupted} in the middle of a save")
    assert interrupted >= 50


def readers_during_saves(path, n_saves, n_readers, seconds):
    index = make(path)
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(path), str(N), str(seconds)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(n_readers)
    ]  # fmt: skip
    for reader in readers:
        assert reader.stdout.readline() == "ready\n"
    pause = seconds / n_saves / 2
    for k in range(1, n_saves + 1):
        index.remove(np.arange((k - 1) * 1000, (k - 1) * 1000 + N))
        vectors = np.full((N, DIM), k, np.float32)
        index.add(np.arange(N) % 16, vectors, ids=np.arange(N) + k * 1000)
        if k % 3 == 0:
            index.compact()
        index.save(path)
        time.sleep(pause)
    loads, states = 0, 0
    for reader in readers:
        out, err = reader.communicate(timeout=300)
        assert reader.returncode == 0, err
        loads += int(out.split()[0])
        states = max(states, int(out.split()[1]))
    return loads, states


def test_readers_see_one_state_during_saves(tmp_path):
    loads, states = readers_during_saves(tmp_path / "a", n_saves=40, n_readers=2, seconds=4)
    assert loads > 20
    assert states > 3


@pytest.mark.slow
def test_four_readers_during_two_hundred_saves(tmp_path):
    loads, states = readers_during_saves(tmp_path / "a", n_saves=200, n_readers=4, seconds=25)
    print(f"200 saves, {loads} loads, a reader saw up to {states} states")
    assert loads > 200
    assert states > 10


# -- a disk that does not take it -----------------------------------------------------------------


def larger(index, n=3000):
    index.add(np.arange(n) % 16, np.ones((n, DIM), np.float32))


def assert_untouched(path, index):
    """The old state is there, nothing is left over, and the index itself can be used."""
    assert state_of(path) == 0
    assert {p.suffix for p in path.iterdir()} <= {".json", ".bin", ""}
    assert sum(p.suffix == ".bin" for p in path.iterdir()) == 1
    assert len(index) == N + 3000


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own; needs the right to mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    done = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)], capture_output=True
    )
    if not done or done.returncode != 0:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_a_clear_error(small_disk):
    path = small_disk / "a"
    index = make(path)
    larger(index)
    with pytest.raises(StorageError, match=r"cannot write the index .*No space left"):
        index.save(path)
    assert_untouched(path, index)
    index.remove(np.arange(N, N + 3000))
    index.compact()
    index.save(path)  # there is room for less
    assert state_of(path) == 0


def test_a_read_only_directory_is_a_clear_error(small_disk):
    path = small_disk / "a"
    index = make(path)
    larger(index)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    try:
        with pytest.raises(StorageError, match=r"cannot write the index .*[Rr]ead-only"):
            index.save(path)
        assert_untouched(path, index)
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)


def test_a_limit_on_file_size_is_a_clear_error(tmp_path):
    """What a full disk is to those who may not mount one."""
    path = tmp_path / "a"
    index = make(path)
    larger(index)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
    try:
        with pytest.raises(StorageError, match="cannot write the index"):
            index.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, ignored)
    assert_untouched(path, index)
    index.save(path)
    assert len(HashIndex.load(path)) == N + 3000


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_every_step_may_fail(tmp_path, monkeypatch, call):
    path = tmp_path / "a"
    index = make(path)
    larger(index)
    real = getattr(os, call)
    for nth in range(10):
        calls = []

        def failing(*args, calls=calls, nth=nth, real=real):
            calls.append(args)
            if len(calls) == nth + 1:
                raise OSError(errno.EIO, "Input/output error")
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            try:
                index.save(path)
            except StorageError as error:
                assert "Input/output error" in str(error)  # noqa: PT017
            else:
                assert len(calls) <= nth
                break
        n = len(HashIndex.load(path, mmap=False))
        assert n in (N, N + 3000)
    else:
        pytest.fail("no save went through")
    HashIndex.load(path).verify()
    assert len(HashIndex.load(path)) == N + 3000
