"""What one change costs in a large index: it must not grow with the number of occupied buckets.

``make bench-one-add``; writes ``docs/results/one-add.md`` and ``one-add.json``. Indexes of 10^4,
10^5 and 10^6 occupied buckets, one item in each; one item is added, replaced or removed at a time,
in memory and in a table whose changes are on disk when the call returns.
Target: medians of adding within a factor of 2 of each other, and searches as fast as in an index
to which nothing was added.
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

    before = index.copy()
    times = {"add": milliseconds(lambda k: index.add(buckets[k], vectors[k]), repeats)}
    # In turn, so that both meet the same moments of the machine; with queries far apart, because
    # the second search for a query finds in the cache what the first has read.
    times |= {"search before": [], "search": []}
    for k in range(-repeats, repeats):  # the first half is not counted: what is done once
        pair = {"search before": (before, k), "search": (index, k + repeats // 2)}
        for name in pair if k % 2 else reversed(pair):
            seconds = search(*pair[name])
            if k >= 0:
                times[name].append(seconds)
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
        "| occupied buckets | " + " | ".join(ROWS) + " | search before the changes |",
        "|---|" + "---|" * (len(ROWS) + 1),
    ]
    for n, row in medians.items():
        cells = [f"{row[name]:.2f}" for name in (*ROWS, "search before")]
        lines.append(f"| {int(n):,} | " + " | ".join(cells) + " |")
    for name in ("add", "durable add"):
        values = [row[name] for row in medians.values()]
        ratio = max(values) / min(values)
        verdict = "met" if ratio <= TARGET else "missed"
        lines += [
            "",
            f"Slowest by fastest median of {name}: {ratio:.2f} (target {TARGET}: {verdict}).",
        ]
    slower = [row["search"] / row["search before"] for row in medians.values()]
    told = ", ".join(f"{ratio:.2f}" for ratio in slower)
    lines += [
        "",
        f"Search after the adds by search in a copy from before, in turn: {told} (target: 1, "
        "missed above 1.05).",
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
