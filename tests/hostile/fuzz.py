"""A fuzzer for every reader of files: golden files, changed at random, with right checksums.

``python -m tests.hostile.fuzz --cases 200000`` tries so many, and is resumed where it was stopped
(``--state FILE``). Each format has a maker of golden files, a mutator, and a reader that does all
that can be done with such a file. A case may be refused, by an error of this package, or accepted;
then what ``verify`` accepts must give the answers that brute force over the same content gives.
Anything else is a failure: another exception, a crash, more than a second of work, or more memory
than ten times the file. Cases are made by a seed and a number, so that each can be made again:
``--format index --first 123 --cases 1``.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hashcade.errors import HashcadeError
from tests.hostile import fuzz_files, fuzz_index, fuzz_table

SECONDS, WALL, MEMORY = 1.0, 30.0, 64 << 20  # of work; until it hangs; beyond ten times the file

FORMATS = {**fuzz_index.FORMATS, **fuzz_table.FORMATS, **fuzz_files.FORMATS}


def run_case(name, case, golden, work):
    """Make a case and read it: ``"accepted"``, ``"refused"``, or what went wrong."""
    _, mutate, read, _ = FORMATS[name]
    rng = random.Random(f"{name} {case}")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    source = rng.choice(sorted(golden.iterdir()))
    shutil.copytree(source, work / source.name)
    try:
        with np.errstate(all="ignore"):
            mutate(rng, work)
    except Exception as error:
        return f"the mutator: {type(error).__name__}: {error}"
    size = sum(p.stat().st_size for p in work.rglob("*") if p.is_file())
    before = _reset_peak()
    try:
        with np.errstate(all="ignore"):
            read(work)
        outcome = "accepted"
    except HashcadeError:
        outcome = "refused"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"[:300]
    peak = _peak() - before
    if peak > 10 * size + MEMORY:
        outcome = f"memory: {peak >> 20} MB for a file of {size} bytes ({outcome})"
    return outcome


def _reset_peak():
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass
    return _status("VmRSS")


def _peak():
    return _status("VmHWM")


def _status(field):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field):
                return int(line.split()[1]) << 10
    return 0


def _worker(name, cases, golden, work, board, send):
    """Try cases one after the other; the board says which, should one end the process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm") as file:
        limit = int(file.read().split()[0]) * resource.getpagesize() + (4 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for signal_ in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(signal_, signal.SIG_DFL)
    counts = {"accepted": 0, "refused": 0}
    for case in cases:
        board[:8] = struct.pack("<q", case)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL)
        outcome = run_case(name, case, golden, work)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if outcome in counts:
            counts[outcome] += 1
        else:
            os.write(send, json.dumps([case, outcome]).encode() + b"\n")
    os.write(send, json.dumps(counts).encode() + b"\n")


def run_batch(name, first, n, golden, work):
    """Try cases in a process of its own: how many were accepted and refused, and what failed."""
    counts, failures = {"accepted": 0, "refused": 0}, []
    board = mmap.mmap(-1, 8)
    at, end = first, first + n
    while at < end:
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receive)
            try:
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115
                _worker(name, range(at, end), golden, work, board, send)
                os._exit(0)
            finally:
                os._exit(1)
        os.close(send)
        with os.fdopen(receive, "rb") as stream:
            lines = stream.read().splitlines()
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or status == 0, "the worker failed"
        for line in map(json.loads, lines):
            if isinstance(line, list):
                failures.append([name, *line])
            else:
                counts = {key: counts[key] + line[key] for key in counts}
        if os.WIFSIGNALED(status):
            case = struct.unpack("<q", board[:8])[0]
            what = signal.Signals(os.WTERMSIG(status)).name
            what = {"SIGPROF": "more than a second", "SIGALRM": "hangs"}.get(what, what)
            failures.append([name, case, what])
            counts["refused"] += case - at - sum(f[1] < case and f[1] >= at for f in failures)
            at = case + 1
        else:
            at = end
    return counts, failures


class Fuzzer:
    """Golden files in a directory of their own, with all that readers need loaded."""

    def __init__(self, folder, names=tuple(FORMATS)):
        self.folder = Path(folder)
        if "model config" in names:  # may name a network of torch: importing it takes seconds
            import torch

            import hashcade.learn.model  # noqa: F401

            torch.set_num_threads(1)
        for name in names:
            golden = self.golden(name)
            golden.mkdir(parents=True)
            FORMATS[name][0](golden)
        for name in names:  # loads and compiles, before processes are forked
            _, _, read, _ = FORMATS[name]
            for source in self.golden(name).iterdir():
                work = self.folder / "work"
                shutil.rmtree(work, ignore_errors=True)
                shutil.copytree(source, work / source.name)
                try:
                    read(work)
                except HashcadeError:
                    if name != "npy" or source.name != "d":  # text is not items
                        raise

    def golden(self, name):
        return self.folder / "golden" / name.replace(" ", "-")

    def run(self, name, first, n):
        return run_batch(name, first, n, self.golden(name), self.folder / "work")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="of all formats together")
    parser.add_argument("--format", choices=FORMATS, help="this one alone")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--state", type=Path, help="file to resume from, and to write results to")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--promises", type=Path, help="file to add the counts to, see conftest.py")
    options = parser.parse_args()
    names = [options.format] if options.format else list(FORMATS)
    state = {name: {"tried": 0, "accepted": 0, "refused": 0} for name in names}
    failures = []
    if options.state and options.state.exists():
        stored = json.loads(options.state.read_text())
        state |= {name: stored["formats"][name] for name in names if name in stored["formats"]}
        failures = stored["failures"]
    start = time.monotonic()
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as folder:
        fuzzer = Fuzzer(folder, names)
        total = sum(FORMATS[name][3] for name in names)
        wanted = {name: round(options.cases * FORMATS[name][3] / total) for name in names}
        while time.monotonic() - start < options.seconds:
            behind = [name for name in names if state[name]["tried"] < wanted[name]]
            if not behind:
                break
            name = min(behind, key=lambda name: state[name]["tried"] / wanted[name])
            row = state[name]
            n = min(500, wanted[name] - row["tried"])
            counts, failed = fuzzer.run(name, options.first + row["tried"], n)
            row["tried"] += n
            for key, value in counts.items():
                row[key] += value
            failures += failed
            for failure in failed:
                print(*failure, flush=True)
            if options.state:
                new = options.state.with_suffix(".new")
                new.write_text(json.dumps({"formats": state, "failures": failures}, indent=1))
                new.rename(options.state)
    for name, row in state.items():
        of_format = sum(failure[0] == name for failure in failures)
        print(f"{name:15} {row['tried']:>8,} tried {row['accepted']:>8,} accepted "
              f"{row['refused']:>8,} refused {of_format:>4} failed")  # fmt: skip
    if options.promises:
        with options.promises.open("a") as file:
            for name, row in state.items():
                attack = f"changed files with right checksums: {name}"
                failed = sum(failure[0] == name for failure in failures)
                counts = {"cases": row["tried"], "failed": failed}
                file.write(json.dumps({"id": "fuzz", "attack": attack} | counts) + "\n")
    print(f"{sum(row['tried'] for row in state.values()):,} cases, {len(failures)} failed, "
          f"{time.monotonic() - start:.0f} s")  # fmt: skip
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
