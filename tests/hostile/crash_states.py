"""The states that a crash may leave on a disk, after any call of a trace."""

from __future__ import annotations

import hashlib
import os
import random
import shutil

from tests.hostile.crash_trace import swapped

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
            names = {swapped(path, call.path, call.other): n for path, n in names.items()}
        elif call.kind == "exchange" and call.path in names and call.other in names:
            names = {swapped(path, call.path, call.other): n for path, n in names.items()}
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
