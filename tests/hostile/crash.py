"""States that a power cut may leave on a disk, made from a trace of system calls.

``strace`` records what a program writes below a directory: data, lengths, names, and flushes. A
crash may come after any call. What was flushed before it is on the disk; of the rest any part may
be: all of it, nothing, half a write, zeros in its place, names without their data, renames in
another order. ``crash_states`` makes such states, and a test looks whether each opens to the old or
the new, with all that was acknowledged (what the program printed) in it.

``python -m tests.hostile.crash`` makes them all, and counts.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.hostile.crash_states import states, write_state
from tests.hostile.crash_trace import record

_START = """
import sys
import numpy as np
from pathlib import Path
from hashcade import HashTable, Hasher
from hashcade.index import Encoded
from hashcade.store import Catalog

def items(numbers):
    vectors = np.repeat(np.array(numbers, np.float32)[:, None], 8, axis=1)
    return Encoded(vectors, np.array(numbers)[:, None] % 16, None, by_path=False)

def payload(numbers):
    return [{"n": n} for n in numbers]

def say(number):
    print(f"done {number}", flush=True)

place = sys.argv[1]
"""
# Change k adds three items; every third takes item k - 2 away.
_ONE = """
def change(table, k):
    if k % 3 == 2:
        table.remove([k - 2])
    else:
        numbers = [k, 100_000 + k, 200_000 + k]
        table.upsert(numbers, items(numbers), labels=[k % 4] * 3, payload=payload(numbers))
"""
SERVICE = (
    _START
    + _ONE
    + """
with HashTable.open(place + "/table") as table:
    table._live.fold_seconds = 1e9
    for k in range(int(sys.argv[2])):
        change(table, k)
        say(k)
        if k % 8 == 7:
            table._live.fold()
"""
)
SAVED = (
    _START
    + _ONE
    + """
with HashTable.load(place + "/table") as table:
    for k in range(int(sys.argv[2])):
        change(table, k)
        table.save(place + "/table")
        say(k)
"""
)
REPLACED = (
    _START
    + """
for k in range(int(sys.argv[2])):
    source = HashTable.load(place + "/table")
    empty = source.index.copy()
    empty.remove(source.ids())
    table = HashTable.from_parts(source.hasher, empty, Catalog([0, 1, 2, 3]))
    table.add(items([k] * 20), labels=[k % 4] * 20, payload=payload([k] * 20))
    source.close()
    table.save(place + "/table")
    table.close()
    say(k)
"""
)
MODEL = (
    _START
    + """
for k in range(int(sys.argv[2])):
    hasher = Hasher.load(place + "/model")
    hasher._weights = {name: np.array(array) for name, array in hasher._weights.items()}
    hasher._weights["point_mean"][:] = k
    hasher.save(place + "/model")
    say(k)
"""
)


def numbers_after(n_changes):
    """Items after so many changes of SERVICE or SAVED."""
    present = set()
    for k in range(n_changes):
        if k % 3 == 2:
            present.discard(k - 2)
        else:
            present |= {k, 100_000 + k, 200_000 + k}
    return present


def opened(folder):
    """Items of a table and their payload; everything is read and checked."""
    import numpy as np

    from hashcade.store import load_state

    state, _ = load_state(folder / "table")
    try:
        state.index.verify()
        state.catalog.verify(state.index)
        numbers = state.catalog.where(None)
        payload = [row["n"] for row in state.catalog.payload_of(numbers)]
        vectors = [float(state.index.item(int(n))["vector"][0]) for n in numbers]
        assert np.array_equal(payload, vectors), (payload, vectors)
        return dict(zip(numbers.tolist(), payload, strict=True))
    finally:
        state.catalog.close()


def check_changes(folder, said):
    """The state after all acknowledged changes, or one more."""
    present = set(opened(folder))
    n = len(said)
    assert present in (numbers_after(n), numbers_after(n + 1)), (n, sorted(present))


def check_replaced(folder, said):
    """The table that was written last, or the one before it was acknowledged."""
    payload = set(opened(folder).values())
    allowed = [{len(said) - 1} if said else {-1}, {len(said)}]
    assert payload in allowed, (payload, allowed)
    from hashcade import Hasher

    Hasher.load(folder / "table" / "model")


def check_model(folder, said):
    from hashcade import Hasher

    mean = set(Hasher.load(folder / "model")._weights["point_mean"].tolist())
    assert mean in ({len(said) - 1} if said else {-1.0}, {float(len(said))}), (mean, said)


def prepare(folder):
    """A table with a model, and a model by itself, that the programs write over."""
    import numpy as np

    from hashcade import CodeShape, Hasher, HashIndex, HashTable
    from hashcade.index import Encoded
    from hashcade.store import Catalog
    from tests.hostile.fuzz_files import GOLDEN_MODEL

    hasher = Hasher.load(GOLDEN_MODEL)
    hasher._weights = {name: np.array(array) for name, array in hasher._weights.items()}
    hasher._weights["point_mean"][:] = -1
    hasher.save(folder / "model")
    for name, numbers in (("empty", []), ("full", [-1] * 20)):
        index = HashIndex.build(
            np.empty((0, 1), int), np.empty((0, 8)), labels=[], shape=CodeShape(width=4, depth=2)
        )
        table = HashTable.from_parts(hasher, index, Catalog([0, 1, 2, 3]))
        if numbers:
            vectors = np.full((20, 8), -1, np.float32)
            table.add(Encoded(vectors, np.full((20, 1), 3), None, by_path=False),
                      labels=[0] * 20, payload=[{"n": -1}] * 20)  # fmt: skip
        table.save(folder / name)
        table.close()


# name: script, changes of the quick and the long version, starting table, check
PROGRAMS = {
    "service": (SERVICE, 10, 40, "empty", check_changes),
    "load, change and save": (SAVED, 3, 12, "empty", check_changes),
    "build over an old table": (REPLACED, 1, 6, "full", check_replaced),
    "model over an old one": (MODEL, 2, 40, "model", check_model),
}


def try_states(name, folder, *, long=False, step=1, most=None, until_wrong=False, seed=0):
    """Record a program and check its states: their number, and what was wrong with any."""
    script, quick_changes, long_changes, start, check = PROGRAMS[name]
    folder = Path(folder)
    source = folder / "source"
    if not source.exists():
        source.mkdir(parents=True)
        prepare(source)
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    target = "model" if start == "model" else "table"
    shutil.copytree(source / start, run / target)
    trace = record(run, script, run, long_changes if long else quick_changes)
    n_states, problems = 0, []
    for said, files in states(trace, step=step, seed=seed):
        if (most is not None and n_states >= most) or (until_wrong and problems):
            break
        write_state(files, folder / "state")
        n_states += 1
        try:
            check(folder / "state", said)
        except Exception as error:
            problems.append(f"{name}, state {n_states}, after {said[-1:]}: {error!r}"[:500])
    return n_states, len(trace.calls), problems


def main():
    total, bad = 0, 0
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        for name in PROGRAMS:
            n_states, n_calls, problems = try_states(name, folder, long=True)
            total, bad = total + n_states, bad + len(problems)
            counts = f"{n_calls:>6,} calls {n_states:>6,} states {len(problems):>3} wrong"
            print(f"{name:25} {counts}", flush=True)
            for problem in problems[:20]:
                print("  ", problem)
    print(f"{total:,} states, {bad} wrong")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
