"""A table of more items than memory holds: time, memory, and what a kill costs.

``make bench-batch``; writes ``docs/results/batch.md`` and ``batch.json``. Shards are made
in a work folder (under ``~/.cache/hashcade``), block by block; a table is built from them by
``hashcade build`` in a process of its own, with the memory of all of its processes watched; then
the same again, killed with SIGKILL at random moments and resumed; with ``--ray`` also on Ray with
one worker killed. Beside it the build in memory of as many items as fit.
Target: at most 2 GB resident, and the same bytes in the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _timing import machine, versions

from hashcade import Hasher

RESULTS = Path(__file__).parents[1] / "docs" / "results"
TARGET = 2_000_000_000  # bytes
N_CLASSES = 1000


# ------------------------------------------------------------------------------------- data


def draw(n: int, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Items around the centres of classes, and their classes."""
    centers = np.random.default_rng(0).standard_normal((N_CLASSES, dim), dtype=np.float32)
    rng = np.random.default_rng([1, seed])
    classes = rng.integers(0, N_CLASSES, n)
    vectors = rng.standard_normal((n, dim), dtype=np.float32)
    vectors *= np.float32(0.3)
    vectors += centers[classes]
    return vectors, classes


def make_data(folder: Path, n_shards: int, n_rows: int, dim: int, n_in_memory: int) -> None:
    """Shards, a file with the first items of them, and a model; what is there stays."""
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    for number in range(n_shards):
        path = folder / "shards" / f"{number:04d}.parquet"
        if not path.exists():
            X, y = draw(n_rows, dim, number)
            embedding = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), dim)
            part = path.with_suffix(".part")
            pq.write_table(
                pa.table({"embedding": embedding, "label": y}), part, row_group_size=65536
            )
            part.rename(path)
    one = folder / "one.parquet"
    if not one.exists():
        n_files = max(1, min(n_shards, n_in_memory // n_rows))
        files = [folder / "shards" / f"{number:04d}.parquet" for number in range(n_files)]
        pq.write_table(pa.concat_tables(map(pq.read_table, files)).slice(0, n_in_memory), one)
    if not (folder / "model").exists():
        X, y = draw(20 * N_CLASSES, dim, 10**6)
        Hasher(width=32, depth=2, steps=300).fit(X, y).save(folder / "model")


# -------------------------------------------------------------------------------- processes


def processes_below(pid: int) -> list[int]:
    """A process and all that it started, and those of these."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(name))
        except OSError:
            continue
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


class Watch:
    """The largest resident memory of a process with all below it, and of any one of them."""

    def __init__(self, pid: int) -> None:
        self.together = self.single = 0
        self._pid, self._end = pid, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(0.05):
            sizes = [0]
            for pid in processes_below(self._pid):
                try:
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    sizes.append(pages * os.sysconf("SC_PAGE_SIZE"))
                except (OSError, IndexError):
                    continue
            self.together = max(self.together, sum(sizes))
            self.single = max(self.single, *sizes)

    def stop(self) -> None:
        self._end.set()
        self._thread.join()


def command(folder: Path, data: str, output: Path, *options: str) -> list[str]:
    head = [sys.executable, "-m", "hashcade", "build", str(folder / "model"), str(folder / data)]
    return [*head, "-o", str(output), "--json", "--quiet", *options]


def build(arguments: list[str]) -> dict[str, Any]:
    """Run a build, and measure it."""
    start = time.perf_counter()
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        watch = Watch(process.pid)
        output, _ = process.communicate()
        watch.stop()
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(arguments)}")
    seconds = time.perf_counter() - start
    n_items = json.loads(output)["n_items"]
    return {
        "n_items": n_items, "seconds": seconds, "items_per_second": n_items / seconds,
        "bytes_together": watch.together, "bytes_single": watch.single,
    }  # fmt: skip


def build_killed(arguments: list[str], kills: int, seconds: float, seed: int) -> dict[str, Any]:
    """Kill a build at random moments, so many times, then let it end."""
    rng, n_kills, start = np.random.default_rng(seed), 0, time.perf_counter()
    while n_kills < kills:
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        pids = []
        try:
            # Every attempt gets as far as its share, so that there is something left to kill.
            process.wait(2.0 + rng.uniform(0.2, 1.0) * seconds / (kills + 2))
        except subprocess.TimeoutExpired:
            pids = processes_below(process.pid)
            process.send_signal(signal.SIGKILL)
            process.wait()
            n_kills += 1
            while any(Path(f"/proc/{pid}/statm").exists() for pid in pids):
                time.sleep(0.02)  # workers end by themselves
        else:
            break
    output = Path(arguments[arguments.index("-o") + 1])
    if not output.exists():
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
    return {"kills": n_kills, "seconds": time.perf_counter() - start}


def build_on_ray(arguments: list[str]) -> dict[str, Any]:
    """Build on Ray, and kill one of its workers at work."""
    start, killed = time.perf_counter(), 0
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            for pid in processes_below(process.pid) if not killed else ():
                try:
                    name = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
                if name.startswith(b"ray::make_run") and not killed:
                    os.kill(pid, signal.SIGKILL)
                    killed = 1
            time.sleep(0.01)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(arguments)}")
    return {"workers_killed": killed, "seconds": time.perf_counter() - start}


def digest(table: Path) -> str:
    """One digest of all files of a table."""
    total = hashlib.sha256()
    for path in sorted(path for path in table.rglob("*") if path.is_file()):
        total.update(str(path.relative_to(table)).encode())
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


# ------------------------------------------------------------------------------------- page


def page(found: dict[str, Any]) -> str:
    """The results in Markdown."""
    gb = 1e9

    def row(name: str, built: dict[str, Any], data_bytes: int) -> str:
        return (
            f"| {name} | {built['n_items']:,} | {data_bytes / gb:.2f} | {built['seconds']:,.0f} | "
            f"{built['items_per_second']:,.0f} | {built['bytes_together'] / gb:.2f} | "
            f"{built['bytes_single'] / gb:.2f} |"
        )

    built, dim = found["shards"], found["dim"]
    verdict = "met" if built["bytes_together"] <= TARGET else "missed"
    lines = [
        "# A table of more than memory",
        "",
        "Written by `make bench-batch`. Raw results: `batch.json`.",
        "",
        f"{found['machine']['cpu']}, {found['machine']['cores']} cores. {found['n_shards']} shards "
        f"of {found['n_rows']:,} items of dimension {dim} in Parquet, with integer labels; "
        f"{found['workers']} workers, `--memory {found['memory']}`. Times are those of whole "
        "processes, memory the largest sum of what they have resident, looked at every 50 ms; "
        "pages that processes share count for each.",
        "",
        "| build | items | GB of vectors | s | items/s | GB resident | of one process |",
        "|---|---|---|---|---|---|---|",
        row("from shards", built, 4 * dim * built["n_items"]),
        row("in memory", found["in_memory"], 4 * dim * found["in_memory"]["n_items"]),
        "",
        f"At most {TARGET / gb:.0f} GB resident: {verdict}.",
        "",
    ]
    if "killed" in found:
        killed = found["killed"]
        same = "the same bytes" if killed["same_bytes"] else "OTHER BYTES"
        lines += [
            f"Killed with SIGKILL {killed['kills']} times at random moments and resumed: {same}, "
            f"after {killed['seconds']:,.0f} s in all.",
            "",
        ]
    if "ray" in found:
        ray = found["ray"]
        same = "the same bytes" if ray["same_bytes"] else "OTHER BYTES"
        lines += [
            f"On Ray with two workers, {ray['workers_killed']} of them killed at work: {same}, "
            f"after {ray['seconds']:,.0f} s.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--in-memory", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--work", type=Path, default=Path("~/.cache/hashcade/batch").expanduser())
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    folder = options.work / f"{options.shards}x{options.rows}x{options.dim}"
    make_data(folder, options.shards, options.rows, options.dim, options.in_memory)
    limits = ("--workers", str(options.workers), "--memory", options.memory)
    table = folder / "big.table"
    for path in (table, folder / "big.table.building", folder / "one.table"):
        shutil.rmtree(path, ignore_errors=True)
    found: dict[str, Any] = {
        "machine": machine(), "versions": versions("numpy", "numba", "pyarrow"),
        "n_shards": options.shards, "n_rows": options.rows, "dim": options.dim,
        "workers": options.workers, "memory": options.memory,
    }  # fmt: skip
    found["in_memory"] = build(command(folder, "one.parquet", folder / "one.table"))
    shutil.rmtree(folder / "one.table")
    found["shards"] = build(command(folder, "shards", table, *limits))
    expected = digest(table)
    if options.kills:
        shutil.rmtree(table)
        arguments = command(folder, "shards", table, *limits)
        seconds = found["shards"]["seconds"]
        found["killed"] = build_killed(arguments, options.kills, seconds, seed=0)
        found["killed"]["same_bytes"] = digest(table) == expected
    if options.ray:
        shutil.rmtree(table)
        arguments = command(folder, "shards", table, *limits, "--ray", "auto")
        found["ray"] = {**build_on_ray(arguments), "same_bytes": digest(table) == expected}
    shutil.rmtree(table)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "batch.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.output / "batch.md").write_text(page(found))
    print(page(found))


if __name__ == "__main__":
    main()
