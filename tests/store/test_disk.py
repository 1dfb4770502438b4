"""Processes that are killed, disks that are full or fail, and readers beside a writer."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from hashcade import HashTable
from tests.store.factories import DIM, N_ITEMS, make_table

START = """
import json, sys, time
import numpy as np
from hashcade import HashTable, StorageError
from hashcade.index import Encoded

def items(n, value):
    return Encoded(np.full((n, 8), value, np.float32), np.full((n, 1), 3), None, by_path=False)

place = sys.argv[1]
"""
# Says what is on disk, and what was refused, until it is stopped.
WRITER = (
    START
    + """
size, name = int(sys.argv[2]), sys.argv[3]
with HashTable.open(place) as table:
    table._live.fold_seconds = 0.2
    for number in range(int(sys.argv[4])):
        ids = [f"{name} {number} {k}" for k in range(3)]
        payload = [{"number": number, "text": "x" * size}] * 3
        print("try", number, flush=True)
        try:
            table.upsert(ids, items(3, number), labels=[0, None, 1], payload=payload)
        except StorageError as error:
            print("refused", number, error, flush=True)
            continue
        print("done", number, flush=True)
        if number % 5 == 4:
            try:
                table.remove(where={"number": number - 2})
                print("gone", number - 2, flush=True)
            except StorageError as error:
                print("kept", number - 2, error, flush=True)
"""
)
# Reads again and again; each answer must be one whole commit, not before the one in the note.
READER = (
    START
    + """
note = sys.argv[2]
seen, last = 0, -1
while True:
    told = int(open(note).read() or -1)
    with HashTable.open(place, read_only=True) as table:
        numbers = [table[item].payload["number"] for item in table.ids({"round": "x"})]
        found = table.index.search(np.zeros((1, 8)), bucket_ids=[[3]], n_neighbors=500)
        newest = table.catalog.payload_of(found.ids)[0]
        in_index = sorted(p["number"] for p in newest if p is not None)
    assert len(set(numbers)) == 1 and len(numbers) == 3, numbers
    assert in_index == sorted(numbers), (in_index, numbers)
    assert numbers[0] >= max(told, last), (numbers, told, last)
    last, seen = numbers[0], seen + 1
    print(seen, flush=True)
    if told == int(sys.argv[3]):
        break
"""
)
ONE_BY_ONE = (
    START
    + """
with HashTable.open(place) as table:
    table._live.fold_seconds = 0.05
    last = int(sys.argv[3])
    for number in range(last + 1):
        payload = [{"round": "x", "number": number}] * 3
        table.upsert(["a", "b", "c"], items(3, 1.0), payload=payload)
        if number == last or number % 10 == 0:
            open(sys.argv[2], "w").write(str(number))
"""
)


@pytest.fixture
def place(tmp_path):
    """A table with ids of text."""
    from hashcade.index import Encoded

    make_table(tmp_path / "numbers")
    source = HashTable.load(tmp_path / "numbers")
    empty = source.index.copy()
    empty.remove(list(range(N_ITEMS)))
    table = HashTable.from_parts(None, empty, type(source.catalog)(source.catalog.classes))
    vectors = np.zeros((5, DIM), np.float32)
    encoded = Encoded(vectors, np.full((5, 1), 9), None, by_path=False)
    table.add(encoded, ids=list("vwxyz"), labels=[0] * 5)
    table.save(tmp_path / "table")
    table.close()
    return tmp_path / "table"


def command(script, *arguments):
    return [sys.executable, "-c", script, *map(str, arguments)]


def start(script, *arguments, before=(), **more):
    return subprocess.Popen(
        [*before, *command(script, *arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more,
    )  # fmt: skip


def killed(process):
    """Kill a process, and return what it had said and nobody had read."""
    process.send_signal(signal.SIGKILL)
    # communicate() would lose what was read ahead; a last line without its end may be a part of one
    lines = process.stdout.read().split("\n")[:-1]
    process.wait(60)
    process.stdout.close()
    process.stderr.close()
    if process.stdin is not None:
        process.stdin.close()
    return lines


def check(place, lines, name, size):
    """All that was acknowledged is there, and what was not is there as a whole or not at all."""
    tried, done, gone, refused = (
        {int(line.split()[1]) for line in lines if line.startswith(word)}
        for word in ("try", "done", "gone", "refused")
    )
    with HashTable.open(place, read_only=True) as table:
        present = {}
        for item in table.ids({"id": {">": name + " ", "<": name + "!"}}).tolist():
            got = table[item]
            number = int(item.split()[1])
            assert got.payload == {"number": number, "text": "x" * size}
            assert got.label == {"0": 0, "1": None, "2": 1}[item.split()[2]]
            assert got.vector.tolist() == [number] * DIM
            present[number] = present.get(number, 0) + 1
        assert set(present.values()) <= {3}
        assert set(present) <= tried - gone
        unsure = {max(tried) - 2} if max(tried) % 5 == 4 else set()
        assert done - gone - unsure <= set(present)
        assert not refused & set(present)
        table.index.verify()
        table.catalog.verify(table.index)
    return len(done)


def check_kill_rounds(place, n_rounds):
    rng = np.random.default_rng(0)
    n_done = 0
    for number in range(n_rounds):
        writer = start(WRITER, place, 200, f"round{number}", 10**6)
        lines = [writer.stdout.readline() for _ in range(int(rng.integers(1, 40)))]
        time.sleep(float(rng.uniform(0, 0.02)))
        lines += killed(writer)
        n_done += check(place, lines, f"round{number}", 200)
    assert n_done > n_rounds
    with HashTable.open(place) as table:
        assert "v" in table


def test_acknowledged_changes_survive_kill_9_with_their_payload(place):
    check_kill_rounds(place, 4)


@pytest.mark.slow
def test_acknowledged_changes_survive_kill_9_fifty_times(place):
    check_kill_rounds(place, 50)


@pytest.mark.parametrize("last", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_readers_beside_a_writer_see_whole_commits_and_miss_none(place, tmp_path, last):
    note = tmp_path / "note"
    note.write_text("")
    with HashTable.open(place) as table:
        from hashcade.index import Encoded

        first = [{"round": "x", "number": -1}] * 3
        encoded = Encoded(np.ones((3, DIM), np.float32), np.full((3, 1), 3), None, by_path=False)
        table.upsert(["a", "b", "c"], encoded, payload=first)
    readers = [start(READER, place, note, last) for _ in range(2)]
    for process in readers:
        assert process.stdout.readline() == "1\n"  # it is reading
    writer = start(ONE_BY_ONE, place, note, last)
    for process in (writer, *readers):
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        if process is not writer:
            assert int(out.split()[-1]) > 3


# -- disks that are full, or fail ----


def limit_files(n_bytes):
    def limit():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))

    return limit


def test_a_change_that_does_not_fit_on_the_disk_is_refused(place):
    writer = start(WRITER, place, 50_000, "full", 60, preexec_fn=limit_files(1_500_000))
    out, err = writer.communicate(timeout=120)
    assert writer.returncode == 0, err
    lines = out.splitlines()
    assert any(line.startswith("done") for line in lines)
    assert any(line.startswith("refused") for line in lines)
    assert check(place, lines, "full", 50_000) > 3
    with HashTable.open(place) as table:  # with space again
        assert table.remove(["v"]) == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if os.name != "posix" or shutil.which("mount") is None:
        pytest.skip("there is no mount")
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system may not be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_refuses_changes_and_takes_them_when_there_is_space(place, small_disk):
    shutil.copytree(place, small_disk / "table")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    script = WRITER.replace(
        "            continue", "            open(0).readline()\n            continue"
    )
    writer = start(script, small_disk / "table", 60_000, "full", 10**6, stdin=subprocess.PIPE)
    lines = []
    while not lines or not lines[-1].startswith("refused"):
        lines.append(writer.stdout.readline())
    assert "full" in lines[-1]
    ballast.unlink()
    writer.stdin.write("\n")
    writer.stdin.flush()
    while not lines[-1].startswith("done"):  # it takes changes again
        lines.append(writer.stdout.readline())
    lines += killed(writer)
    assert check(small_disk / "table", lines, "full", 60_000) > 3


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace makes calls of the system fail")
def test_after_a_flush_that_failed_nothing_is_acknowledged(place):
    for when in (12, 15, 20):
        name = f"flush{when}"
        fail = ["strace", "-f", "-qq", "-o", os.devnull, "-e"]
        fail.append(f"inject=fsync,fdatasync:error=EIO:when={when}+")
        writer = start(WRITER, place, 200, name, 30, before=fail)
        out, err = writer.communicate(timeout=120)
        assert writer.returncode == 0, err
        lines = out.splitlines()
        failed = ("refused", "kept")
        first = next(at for at, line in enumerate(lines) if line.startswith(failed))
        assert not any(line.startswith(("done", "gone")) for line in lines[first:])
        assert "disk I/O error" in lines[first]
        assert all("no changes are taken" in x for x in lines[first + 1 :] if x.startswith(failed))
        in_doubt = {int(lines[first].split()[1])}  # it may be on the disk all the same
        sure = [line for line in lines if line.split()[1] not in map(str, in_doubt)]
        if any(line.startswith("done") for line in sure):
            check_without(place, sure, name, in_doubt)


def check_without(place, lines, name, in_doubt):
    with HashTable.open(place) as table:
        for number in in_doubt:
            table.remove(where={"id": [f"{name} {number} {k}" for k in range(3)]})
    check(place, lines, name, 200)


def test_a_table_that_is_loaded_and_changed_is_not_half_saved_when_killed(place):
    script = (
        START
        + """
table = HashTable.load(place)
for number in range(10**6):
    ids = [f"new {number} {k}" for k in range(3)]
    payload = [{"number": number, "text": "x"}] * 3
    table.upsert(ids, items(3, number), labels=[0, None, 1], payload=payload)
    print("try", number, flush=True)
    if number % 3 == 2:
        table.save(place)
        for earlier in range(number - 2, number + 1):
            print("done", earlier, flush=True)
"""
    )
    writer = start(script, place)
    lines = [writer.stdout.readline() for _ in range(40)]
    lines += killed(writer)
    check_prefix(place, lines)


def check_prefix(place, lines):
    done = max(int(line.split()[1]) for line in lines if line.startswith("done"))
    with HashTable.open(place) as table:
        numbers = [table[i].payload["number"] for i in table.ids({"text": "x"}).tolist()]
        assert len(numbers) % 9 == 0  # three changes of three items were saved together
        assert sorted(set(numbers)) == list(range(len(numbers) // 3))
        assert max(numbers) >= done
        table.catalog.verify(table.index)
