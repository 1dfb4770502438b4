"""The service under load, under ``kill -9``, and against the library call.

``make bench-service``; writes ``docs/results/service.md`` and ``service.json``. Three questions:

- Two client processes on loopback, mixed reads and 1 % writes: how many requests per second, and
  how long do they take? No error is accepted but 429.
- If the service is killed under load, is every acknowledged write there after a restart?
- What does a search of 64 queries cost through the service, against the library call?
  Target: at most three times its time.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
from _service_clients import CLIENTS, RHYTHMS, acknowledged_rounds, load, ratios
from _service_process import ServiceProcess
from _timing import machine, say

import hashcade
from hashcade import CodeShape, HashIndex, HashTable
from hashcade.store import Catalog

RESULTS = Path(__file__).parents[1] / "docs" / "results"
DIM = 128
SIZES = {"fifty thousand": (50_000, 100), "million": (1_000_000, 1000)}  # items, buckets in use
SHAPE = CodeShape(width=32, depth=2)
TARGET = 3  # at most, time of a batch of 64 through the service by that of the library call


def build(folder: Path, name: str) -> Path:
    """A table of gaussian clusters, one to a bucket, with labels."""
    n, n_clusters = SIZES[name]
    place = folder / name.replace(" ", "-")
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(n_clusters, DIM)).astype(np.float32)
    owner = rng.integers(0, n_clusters, n)
    vectors = rng.standard_normal((n, DIM), dtype=np.float32)
    vectors += centres[owner]
    index = HashIndex.build(owner, vectors, labels=owner, shape=SHAPE)
    HashTable.from_parts(None, index, Catalog(range(n_clusters))).save(place)
    np.save(folder / f"{place.name}-centres.npy", centres)
    return place


def main() -> int:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of load")
    parser.add_argument("--rounds", type=int, default=50, help="of kill -9")
    parser.add_argument("--repeats", type=int, default=600, help="of each batch of 64")
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    results: dict[str, object] = {"machine": circumstances(), "note": options.note}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        results["batch_64"] = {}
        for name in SIZES:
            place = build(folder, name)
            centres = np.load(folder / f"{place.name}-centres.npy")
            with ServiceProcess(place, folder / "log") as service:
                for rhythm in RHYTHMS:
                    measured = ratios(service.url, place, centres, options.repeats, rhythm)
                    results["batch_64"][f"{name}, {rhythm}"] = measured  # type: ignore[index]
                    say(f"batch of 64, {name}, {rhythm}: {measured}")
                if name == "million":
                    results["load"] = load(service.url, centres, options.seconds)
                    say(f"load: {results['load']}")
        place = folder / "fifty-thousand"
        centres = np.load(folder / "fifty-thousand-centres.npy")
        results["kill"] = acknowledged_rounds(place, centres, folder / "log", options.rounds)
        say(f"kill -9: {results['kill']}")
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "service.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.output / "service.md").write_text(page(results))
    return failures(results)


def circumstances() -> str:
    """Where this was measured."""
    import fastapi

    return (
        f"{machine()['cpu']}, {CLIENTS} client processes, Python {platform.python_version()}, "
        f"hashcade {hashcade.__version__}, fastapi {fastapi.__version__}, "
        f"uvicorn {version('uvicorn')}"
    )


def failures(results: dict) -> int:
    """1 if a target is missed."""
    bad = []
    for name, measured in results["batch_64"].items():
        if measured["ratio"] > TARGET:
            bad.append(f"batch of 64, {name}: {measured['ratio']:.2f} times the library call")
    if results["load"]["errors"]:
        bad.append(f"errors under load: {results['load']['errors']}")
    if results["kill"]["lost"]:
        bad.append(f"{results['kill']['lost']} acknowledged writes were lost")
    for line in bad:
        say(f"NOT MET: {line}")
    return 1 if bad else 0


def page(results: dict) -> str:
    """The results to be read."""
    load, crash = results["load"], results["kill"]
    lines = [
        "# The service under load",
        "",
        "Written by `make bench-service`. Raw results: `service.json`.",
        "",
        f"{results['machine']}. {results['note']}".strip(),
        "",
        "## Load",
        "",
        f"A million items of dimension {DIM}, two client processes on loopback,"
        f" {load['seconds']:.0f} s, 1 % writes. Every write is on disk before it is acknowledged."
        " Service and clients share the cores.",
        "",
        f"{load['requests_per_second']:,.0f} requests per second,"
        f" {load['queries_per_second']:,.0f} queries per second."
        f" Rejected with 429: {load['refused']}. Errors: {sum(load['errors'].values())}.",
        "",
        "| request | share | count | p50 ms | p95 ms | p99 ms |",
        "|---|---|---|---|---|---|",
    ]
    for kind, metrics in load["kinds"].items():
        lines.append(
            f"| {kind} | {metrics['share']:.1%} | {metrics['count']:,} | {metrics['p50']:.2f}"
            f" | {metrics['p95']:.2f} | {metrics['p99']:.2f} |"
        )
    lines += [
        "",
        "## A batch of 64: service against library call",
        "",
        "Medians of interleaved blocks of calls. In use: 50 calls that follow each other, of which"
        " the last 40 are counted. After a pause: ten calls after 50 ms without any, and one that"
        " is not counted; processors have gone to sleep, and each process that is woken waits for"
        " one. The client is `hashcade.serve.Client`, which sends binary arrays; JSON is shown for"
        f" comparison. Target: a ratio of at most {TARGET}. In brackets: quartiles of the ratios of"
        " single blocks.",
        "",
        "| items | library ms | service ms | ratio | ratio with JSON |",
        "|---|---|---|---|---|",
    ]
    for name, metrics in results["batch_64"].items():
        spread = " to ".join(f"{value:.2f}" for value in metrics["ratio_quartiles"])
        lines.append(
            f"| {name} | {metrics['library_ms']:.2f} | {metrics['service_ms']:.2f}"
            f" | {metrics['ratio']:.2f} ({spread}) | {metrics['json_ratio']:.2f} |"
        )
    lines += [
        "",
        "## Killed under load",
        "",
        f"{crash['rounds']} rounds: two client processes add, remove and search; the service is"
        " killed (`kill -9`) after a random time and restarted."
        f" Acknowledged writes: {crash['acknowledged']:,}. Lost: {crash['lost']}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
