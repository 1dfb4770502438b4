"""What a program writes below a directory, recorded by ``strace``."""

from __future__ import annotations

import os
import re
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
                names = {swapped(path, old, new): number for path, number in names.items()}
                yield Call("exchange", path=old, other=new)
                continue
            gone = {p for p in names if p == new or p.startswith(f"{new}/")}
            moved = {p: swapped(p, old, new) for p in names if p not in gone}
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


def swapped(path, one, other):
    """A path after two names were exchanged."""
    for old, new in ((one, other), (other, one)):
        if path == old or path.startswith(f"{old}/"):
            return new + path[len(old) :]
    return path
