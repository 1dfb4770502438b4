"""What payload costs: ``make bench-payload`` writes docs/results/payload.md.

A million items of 64 numbers in 1,000 classes, with 200 bytes of payload each (text, a number, a
word) and without: filling and adding, size on disk, and searches for ten neighbours. Beside payload
from the table, what a user would do by hand: ids from the table, and a dict in memory.

    python benchmarks/payload.py            # about five minutes
    python benchmarks/payload.py --quick    # to see that it runs, into build/
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _timing import heading, interleaved, machine, quartiles, ratio, timed, versions

from hashcade import HashTable

ROOT = Path(__file__).resolve().parent.parent
CLASSES, DIM, TAUGHT, ADDED = 1000, 64, 30_000, 1000
WORDS = ("red", "green", "blue", "white", "black")


def make_items(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    means = np.random.default_rng(0).standard_normal((CLASSES, DIM), dtype=np.float32)
    rng = np.random.default_rng([1, seed])
    labels = rng.integers(0, CLASSES, n)
    return means[labels] + 0.5 * rng.standard_normal((n, DIM), dtype=np.float32), labels


def make_payload(first: int, n: int) -> list[dict[str, Any]]:
    """So that each is of 200 bytes as JSON."""
    rows = []
    for number in range(first, first + n):
        row = {"text": f"item {number} ", "price": number / 100, "color": WORDS[number % 5]}
        row["text"] += "x" * (200 - len(json.dumps(row, separators=(",", ":"))))
        rows.append(row)
    return rows


def fill(hasher: Any, n: int, payload: bool, folder: Path) -> dict[str, Any]:
    """A table in a directory: rates of filling, of durable adds, and its size."""
    table, seconds = HashTable.from_parts(hasher), 0.0
    for first in range(0, n, 100_000):
        count = min(100_000, n - first)
        items, labels = make_items(count, first)
        rows = make_payload(first, count) if payload else None
        add = lambda i=items, y=labels, p=rows: table.add(i, labels=y, payload=p)  # noqa: E731
        seconds += timed(add)[1]
    seconds += timed(lambda: table.save(folder))[1]
    table.close()
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    with HashTable.open(folder) as opened:
        batches = []
        for number in range(10):
            items, labels = make_items(ADDED, n + number)
            rows = make_payload(n + number * ADDED, ADDED) if payload else None
            add = lambda i=items, y=labels, p=rows: opened.add(i, labels=y, payload=p)  # noqa: E731
            batches.append(ADDED / timed(add)[1])
    return {"fill": n / seconds, "add": quartiles(batches), "bytes": size}


def searches(folder: Path, rounds: int, n_alone: int) -> dict[str, Any]:
    """Microseconds a query of ten neighbours, alone and in batches of 100."""
    table = HashTable.load(folder)
    queries, _ = make_items(max(1000, n_alone), -1 % 2**32)
    by_hand = dict(zip(*_all(table), strict=True))

    def from_dict(part: np.ndarray) -> list[Any]:
        return [by_hand[number] for number in table.search(part, threads=1).ids.ravel().tolist()]

    ways: dict[str, Callable[[np.ndarray], object]] = {
        "ids": lambda part: table.search(part, threads=1).ids,
        "payload": lambda part: table.search(part, threads=1).payload,
        "dict": from_dict,
    }
    found = {}
    for size, count in ((1, n_alone), (100, 1000)):
        parts = [queries[at : at + size] for at in range(0, count, size)]
        calls = {
            name: lambda way=way, parts=parts: [way(part) for part in parts]
            for name, way in ways.items()
        }
        seconds = interleaved(calls, rounds)
        found[str(size)] = {
            **{name: quartiles([1e6 * s / count for s in each]) for name, each in seconds.items()},
            "ratio": ratio(seconds["payload"], seconds["ids"]),
            "dict_ratio": ratio(seconds["dict"], seconds["ids"]),
        }
    table.close()
    return found


def _all(table: HashTable) -> tuple[list[Any], list[Any]]:
    ids = table.ids()
    return ids.tolist(), table.catalog.payload_of(ids).tolist()


def spread(values: tuple[float, float, float]) -> str:
    first, median, third = values
    digits = 2 if median < 10 else 0
    return f"{median:,.{digits}f} [{first:,.{digits}f}–{third:,.{digits}f}]"


def page(results: dict[str, Any]) -> str:
    lines = heading("What payload costs", "bench-payload", results)
    with_payload, without = results["with"], results["without"]
    lines += [
        f"{results['items']:,} items of {DIM} numbers in {CLASSES:,} classes, "
        "200 bytes of payload each. *Filled*: encoded, placed, stored and saved. *Added*: 1,000 at "
        "a time to a table on disk, each batch safe when the call returns.",
        "",
        "| | filled, items/s | added, items/s | on disk, MB |",
        "|---|---:|---:|---:|",
    ]
    for name, row in (("without payload", without), ("with payload", with_payload)):
        size = row["bytes"] / 1e6
        lines.append(f"| {name} | {row['fill']:,.0f} | {spread(row['add'])} | {size:,.0f} |")
    lines += [
        "",
        "Ten neighbours, microseconds a query. *By hand*: ids from the table, payload from a dict "
        "in memory that holds all of it.",
        "",
        "| | ids alone | with payload | ratio | by hand | ratio |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for size, name in (("1", "one query a call"), ("100", "100 queries a call")):
        row = results["search"][size]
        cells = [row["ids"], row["payload"], row["ratio"], row["dict"], row["dict_ratio"]]
        lines.append(f"| {name} | {' | '.join(map(spread, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="20,000 items, few rounds")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--work", type=Path, help="for the tables (default: a temporary folder)")
    options = parser.parse_args()
    n, rounds, n_alone = (20_000, 3, 100) if options.quick else (1_000_000, options.rounds, 1000)
    items, labels = make_items(TAUGHT, 1)
    hasher = HashTable(steps=300, random_state=0).fit(items, labels).hasher
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": versions("hashcade", "numpy"),
        "rounds": rounds,
        "quick": options.quick,
        "items": n,
    }
    work = options.work or Path(tempfile.mkdtemp(prefix="hashcade-payload-"))
    try:
        for name, payload in (("without", False), ("with", True)):
            results[name] = fill(hasher, n, payload, work / f"{name}.table")
        results["search"] = searches(work / "with.table", rounds, n_alone)
    finally:
        if options.work is None:
            shutil.rmtree(work)
    folder = ROOT / ("build/results" if options.quick else "docs/results")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "payload.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "payload.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
