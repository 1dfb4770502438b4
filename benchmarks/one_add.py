"""What one change costs in a large index: it must not grow with the number of occupied buckets.

``make bench-one-add``; writes ``docs/results/one-add.md`` and ``one-add.json``. Indexes of 10^4,
10^5 and 10^6 occupied buckets, one item in each; one item is added, replaced or removed at a time,
in memory and in a table whose changes are on disk when the call returns.
Target: medians of adding within a factor of 2 of each other, and searches as fast as in an index
that was built from the same items at once. A copy from before the adds, with fewer items, is shown
as well.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _timing import machine

from hashcade import CodeShape, HashIndex, HashTable
from hashcade.index import Encoded

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SIZES = (10_000, 100_000, 1_000_000)
DIM = 32
TARGET = 2.0
ROWS = ("add", "upsert", "remove", "durable add", "durable upsert", "durable remove", "search")
CONTROLS = {
    "search at once": "of the same items built at once",
    "search before": "from before the adds",
}
ROUNDS = 4  # of all queries
UNCHANGED = 1.05


def build(n: int, rng: np.random.Generator) -> HashIndex:
    """An index with an item in each of ``n`` buckets, a quarter of all."""
    shape = CodeShape(width=math.ceil((4 * n) ** 0.5), depth=2)
    buckets = rng.choice(shape.n_buckets, n, replace=False)
    vectors = rng.standard_normal((n, DIM), dtype=np.float32)
    return HashIndex.build(buckets, vectors, shape=shape)


def milliseconds(call: Callable[[int], object], repeats: int) -> list[float]:
    """Times of a call, one by one."""
    times = []
    for number in range(repeats):
        start = time.perf_counter()
        call(number)
        times.append(1e3 * (time.perf_counter() - start))
    return times


def measure(n: int, repeats: int, folder: Path) -> dict[str, list[float]]:
    """Times of each kind of change, and of a search, in milliseconds."""
    rng = np.random.default_rng(0)
    index = build(n, rng)
    n_buckets, width = index.shape.n_buckets, index.shape.width
    buckets = rng.integers(0, n_buckets, (4 * repeats, 1, 1))
    vectors = rng.standard_normal((4 * repeats, 1, DIM), dtype=np.float32)
    scores = rng.standard_normal((repeats, 1, 2, width), dtype=np.float32)
    HashTable.from_parts(None, index.copy()).save(folder / str(n))

    def search(searched: HashIndex, query: int) -> float:
        k = query % repeats
        return milliseconds(lambda _: searched.search(vectors[k], scores=scores[k], n_probe=16), 1)[
            0
        ]

    searched = {"search before": index.copy()}
    times = {"add": milliseconds(lambda k: index.add(buckets[k], vectors[k]), repeats)}
    searched |= {"search": index, "search at once": index.copy()}
    searched["search at once"].compact()
    # In turn, so that all meet the same moments of the machine; with queries far apart, because
    # the second search for a query finds in the cache what the first has read.
    times |= {name: [] for name in searched}
    for k in range(-repeats, repeats * ROUNDS):  # the first round warms up and is not counted
        for shift in range(len(searched)):
            number = (k + shift) % len(searched)
            name, of = list(searched.items())[number]
            spent = search(of, k + number * repeats // len(searched))
            if k >= 0:
                times[name].append(spent)
    times["upsert"] = milliseconds(lambda k: index.upsert([k], buckets[k], vectors[k]), repeats)
    times["remove"] = milliseconds(lambda k: index.remove([repeats + k]), repeats)
    with HashTable.open(folder / str(n)) as table:

        def item(k: int) -> Encoded:
            return Encoded(vectors[k], buckets[k], None, by_path=False)

        times["durable add"] = milliseconds(lambda k: table.add(item(k)), repeats)
        times["durable upsert"] = milliseconds(lambda k: table.upsert([k], item(k)), repeats)
        times["durable remove"] = milliseconds(lambda k: table.remove([repeats + k]), repeats)
    return times


def page(result: dict[str, dict[str, list[float]]], repeats: int, note: str) -> str:
    """The results as a table of medians."""
    medians = {n: {row: statistics.median(t) for row, t in r.items()} for n, r in result.items()}
    lines = [
        "# One change in a large index",
        "",
        "Written by `make bench-one-add`. Raw results: `one-add.json`.",
        "",
        f"{machine()['cpu']}. Medians of {repeats} changes of one item, in milliseconds; dimension "
        f"{DIM}, one item in each occupied bucket, 16 buckets probed by a search. Durable: in a "
        "table from "
        f"`HashTable.open`, on disk when the call returns. {note}".rstrip(),
        "",
        "| occupied buckets | "
        + " | ".join((*ROWS, *(f"search, index {c}" for c in CONTROLS.values())))
        + " |",
        "|---|" + "---|" * (len(ROWS) + len(CONTROLS)),
    ]
    for n, row in medians.items():
        cells = [f"{row[name]:.3f}" for name in (*ROWS, *CONTROLS)]
        lines.append(f"| {int(n):,} | " + " | ".join(cells) + " |")
    for name in ("add", "durable add"):
        values = [row[name] for row in medians.values()]
        ratio = max(values) / min(values)
        verdict = "met" if ratio <= TARGET else "missed"
        lines += [
            "",
            f"Slowest by fastest median of {name}: {ratio:.2f} (target {TARGET}: {verdict}).",
        ]
    for name, control in CONTROLS.items():
        ratios = [row["search"] / row[name] for row in medians.values()]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        verdict = ""
        if name == "search at once":
            verdict = f" (target {UNCHANGED}: {'met' if max(ratios) <= UNCHANGED else 'missed'})"
        lines += [
            "",
            f"Search after the adds, by a search in an index {control}: {shown}{verdict}.",
        ]
    lines += [
        "",
        f"The {repeats} added items are {repeats / SIZES[0]:.0%} of the smallest index, and most of"
        " them occupy a bucket that was empty: before the adds, a search has less to rank.",
    ]
    worst = max(max(r["add"]) for r in result.values())
    lines += [
        "",
        f"The slowest single add took {worst:.0f} ms: after about a thousand changes the last "
        "segments become part of the large tree, which is then built once.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for n in SIZES:
            result[str(n)] = measure(n, options.repeats, Path(folder))
            medians = {k: round(statistics.median(v), 3) for k, v in result[str(n)].items()}
            print(f"{n:,} buckets: {medians}", flush=True)
    rounded = {n: {k: [round(t, 4) for t in v] for k, v in r.items()} for n, r in result.items()}
    (options.output / "one-add.json").write_text(json.dumps(rounded) + "\n")
    text = page(result, options.repeats, options.note)
    (options.output / "one-add.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
