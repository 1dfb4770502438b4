"""States that a power cut may leave on a disk, made from a trace of system calls.

``strace`` records what a program writes below a directory: data, lengths, names, and flushes. A
crash may come after any call. What was flushed before it is on the disk; of the rest any part may
be: all of it, nothing, half a write, zeros in its place, names without their data, renames in
another order. :func:`states` makes such states, and a test looks whether each opens to the old or
the new, with all that was acknowledged (what the program printed) in it.

``python -m tests.hostile.crash`` makes them all, and counts.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "open,openat,creat,close,write,pwrite64,lseek,rename,renameat,renameat2,unlink,unlinkat,rmdir,"
    "mkdir,mkdirat,ftruncate,fsync,fdatasync"
)
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_HANDLE = re.compile(r"(\d+)<((?:\\x[0-9a-f]{2}|[^>\\])*)>")
EXCHANGE = 2


@dataclass
class Call:
    """One change below the directory: of data (of a file, by its number) or of a name."""

    kind: str  # write, cut, create, mkdir, rename, exchange, remove, sync, say
    file: int = -1
    at: int = 0
    data: bytes = b""
    path: str = ""
    other: str = ""


@dataclass
class Trace:
    """What a program did, and the files that were there before."""

    calls: list[Call] = field(default_factory=list)
    first: dict[str, bytes | None] = field(default_factory=dict)  # None: a directory


def record(folder, script, *arguments, environment=None):
    """Run a Python script under ``strace``, and return its trace below a folder."""
    folder = Path(folder).resolve()
    trace = Trace(first=snapshot(folder))
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "trace"
        done = subprocess.run(
            ["strace", "-f", "-qq", "-y", "-xx", "-s", "10000000", "-e", f"trace={CALLS}",
             "-o", str(output), sys.executable, "-c", script, *map(str, arguments)],
            capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        with output.open() as file:
            trace.calls = list(parse(file, folder, trace.first))
    return trace


def snapshot(folder):
    """All files below a folder by their paths; None for directories."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if not path.name.endswith("-shm")  # memory that processes share: nothing on a disk
    }


def decoded(text):
    return bytes.fromhex(text.replace("\\x", "")) if "\\x" in text else text.encode()


def parse(lines, folder, first):
    """The calls that change something below a folder, in the order in which they ended."""
    waiting = {}
    names = {path: number for number, path in enumerate(first) if first[path] is not None}
    n_files = len(first)
    handles = {}  # number of a file and position in it, by handle
    root = os.fsencode(folder)

    def below(raw):
        path = os.path.normpath(raw)
        inside = path == root or path.startswith(root + b"/")
        if not inside or path.endswith(b"-shm"):
            return None
        return os.path.relpath(path, root).decode()

    for line in lines:
        process = line.split(" ", 1)[0]
        if line.rstrip().endswith("<unfinished ...>"):
            waiting[process] = line.rstrip()[: -len("<unfinished ...>")]
            continue
        if " resumed>" in line:
            line = waiting.pop(process) + line.split(" resumed>", 1)[1]
        match = _LINE.match(line)
        if match is None or int(match[4]) < 0:
            continue
        name, arguments, result = match[2], match[3], int(match[4])
        texts = [decoded(text) for text in _TEXT.findall(arguments)]
        handle = _HANDLE.match(arguments)
        number = int(handle[1]) if handle else -1
        if name in ("open", "openat", "creat"):
            path = below(os.path.join(decoded(handle[2]) if handle else b"", texts[0]))
            if path is None or "O_DIRECTORY" in arguments or path == ".":
                continue
            if path not in names:
                if "O_CREAT" not in arguments and name != "creat":
                    continue
                names[path], n_files = n_files, n_files + 1
                yield Call("create", names[path], path=path)
            elif "O_TRUNC" in arguments:
                yield Call("cut", names[path])
            handles[result] = [names[path], 0]
        elif name == "close":
            handles.pop(number, None)
        elif name == "lseek" and number in handles:
            handles[number][1] = result
        elif name == "write" and number in (1, 2):
            for said in texts[0].decode().split("\n") if number == 1 else ():
                if said:
                    yield Call("say", path=said)
        elif name == "write" and number in handles:
            yield Call("write", handles[number][0], handles[number][1], texts[0][:result])
            handles[number][1] += result
        elif name == "pwrite64" and number in handles:
            at = int(arguments.rsplit(", ", 1)[1])
            yield Call("write", handles[number][0], at, texts[0][:result])
        elif name == "ftruncate" and number in handles:
            yield Call("cut", handles[number][0], int(arguments.rsplit(", ", 1)[1]))
        elif name in ("fsync", "fdatasync"):
            if number in handles:
                yield Call("sync", handles[number][0])
            elif (path := below(decoded(handle[2]))) is not None:
                yield Call("sync", path=path)
        elif name in ("rename", "renameat", "renameat2"):
            old, new = map(below, texts)
            if old is None or new is None:
                continue
            if name == "renameat2" and "RENAME_EXCHANGE" in arguments:
                names = {_swapped(path, old, new): number for path, number in names.items()}
                yield Call("exchange", path=old, other=new)
                continue
            gone = {p for p in names if p == new or p.startswith(f"{new}/")}
            moved = {p: _swapped(p, old, new) for p in names if p not in gone}
            names = {moved[p]: number for p, number in names.items() if p in moved}
            yield Call("rename", path=old, other=new)
        elif name in ("unlink", "unlinkat", "rmdir"):
            base = decoded(handle[2]) if handle else b""
            if (path := below(os.path.join(base, texts[0]))) is not None:
                names.pop(path, None)
                yield Call("remove", path=path)
        elif name in ("mkdir", "mkdirat"):
            base = decoded(handle[2]) if handle else b""
            if (path := below(os.path.join(base, texts[0]))) is not None:
                yield Call("mkdir", path=path)


def _swapped(path, one, other):
    """A path after two names were exchanged."""
    for old, new in ((one, other), (other, one)):
        if path == old or path.startswith(f"{old}/"):
            return new + path[len(old) :]
    return path


# -- states ----

_NAMES = ("create", "mkdir", "rename", "exchange", "remove")


def parents_of(call):
    paths = [call.path] + ([call.other] if call.other else [])
    return {os.path.dirname(path) or "." for path in paths}


def flushed(calls, end):
    """Which of the first calls are on the disk for sure."""
    sure = [False] * end
    data, names = {}, {}  # waiting, by file and by directory
    for number, call in enumerate(calls[:end]):
        if call.kind in ("write", "cut"):
            data.setdefault(call.file, []).append(number)
        elif call.kind in _NAMES:
            missing = parents_of(call)
            for parent in missing:
                names.setdefault(parent, []).append((number, missing))
        elif call.kind == "sync" and call.file >= 0:
            for waiting in data.pop(call.file, ()):
                sure[waiting] = True
        elif call.kind == "sync":
            for waiting, missing in names.pop(call.path, ()):
                missing.discard(call.path)
                sure[waiting] = not missing
    return sure


def states(trace, *, step=1, seed=0):
    """States after every ``step``-th call: (what was said until then, files by path)."""
    seen = set()
    for end in range(0, len(trace.calls) + 1, step):
        sure = flushed(trace.calls, end)
        said = [call.path for call in trace.calls[:end] if call.kind == "say"]
        for choice in choices(trace.calls, sure, random.Random(seed * 1_000_003 + end)):
            files = replay(trace, choice, end)
            key = hashlib.sha256(repr((len(said), sorted(files.items()))).encode()).digest()
            if key not in seen:
                seen.add(key)
                yield said, files


def choices(calls, sure, rng):
    """For each way a crash may go: for each call a function of its data, or None: it is lost."""
    end = len(sure)
    is_name = [call.kind in _NAMES for call in calls[:end]]
    open_data = [k for k in range(end) if not sure[k] and calls[k].kind in ("write", "cut")]
    open_names = [k for k in range(end) if not sure[k] and is_name[k]]

    def whole(data):
        return data

    def half(data):
        return data[: len(data) // 2]

    def zeros(data):
        return bytes(len(data))

    def chosen(data, names):
        return [whole if sure[k] else (names if is_name[k] else data)(k) for k in range(end)]

    def every(k):
        return whole

    def none(k):
        return None

    yield chosen(every, every)
    if open_data or open_names:
        yield chosen(none, none)
    if open_data and open_names:
        yield chosen(none, every)
        yield chosen(every, none)
    if open_data:
        last = open_data[-1]
        yield chosen(lambda k: half if k == last else whole, every)
        yield chosen(lambda k: zeros if k == last else whole, every)
        for _ in range(3):
            drawn = {k: rng.choice([whole, whole, None, half, zeros]) for k in open_data}
            upto = rng.choice([*open_names, end])
            yield chosen(drawn.get, lambda k, upto=upto: whole if k < upto else None)
    if len(open_names) > 1:
        for _ in range(3):
            kept = {k: rng.choice([whole, None]) for k in open_names}
            yield chosen(every, kept.get)


def replay(trace, choice, end):
    """The files of a state."""
    content = {
        n: bytearray(data) for n, data in enumerate(trace.first.values()) if data is not None
    }
    names = {
        path: number if data is not None else None
        for number, (path, data) in enumerate(trace.first.items())
    }

    def is_there(path):
        parent = os.path.dirname(path)
        return parent == "" or (parent in names and names[parent] is None)

    for call, keep in zip(trace.calls[:end], choice, strict=True):
        if keep is None:
            continue
        if call.kind == "write":
            data = keep(call.data)
            file = content.setdefault(call.file, bytearray())
            if len(file) < call.at:
                file.extend(bytes(call.at - len(file)))
            file[call.at : call.at + len(data)] = data
        elif call.kind == "cut":
            file = content.setdefault(call.file, bytearray())
            del file[call.at :]
            file.extend(bytes(call.at - len(file)))
        elif call.kind in ("create", "mkdir") and is_there(call.path):
            names.setdefault(call.path, call.file if call.kind == "create" else None)
        elif call.kind == "remove":
            inner = [path for path in names if path.startswith(f"{call.path}/")]
            if not inner:
                names.pop(call.path, None)
        elif call.kind == "rename" and call.path in names and is_there(call.other):
            gone = [p for p in names if p == call.other or p.startswith(f"{call.other}/")]
            for path in gone:
                del names[path]
            names = {_swapped(path, call.path, call.other): n for path, n in names.items()}
        elif call.kind == "exchange" and call.path in names and call.other in names:
            names = {_swapped(path, call.path, call.other): n for path, n in names.items()}
    return {
        path: None if number is None else bytes(content.get(number, b""))
        for path, number in names.items()
    }


def write_state(files, folder):
    """Put a state into a directory."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, data in sorted(files.items()):
        place = folder / path
        if data is None:
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(data)


# -- programs, and what must be there after them ----

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
    from tests.hostile.fuzz import GOLDEN_MODEL

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
