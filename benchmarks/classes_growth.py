"""What classes cost: ``make bench-classes`` writes docs/results/classes-growth.

Two parts:

1. ``growth``: 100 to 1,000,000 classes, with gaussian centres in 128 dimensions. Time of a training
   step and of a query (``Hasher.encode``), alone and in a batch, and peak memory, each size in
   processes of its own; with fitted exponents. Beside it the same prototypes without codes.
2. ``decide``: which prototype is nearest to a point, through the codes, compared with all of them,
   and through graphs (HNSW) that decide at least as often like the comparison with all. On the
   20,902 classes of Han characters, and on a million of part 1.

    PYTHONPATH=. python benchmarks/classes_growth.py          # an hour; what was measured stays
    PYTHONPATH=. python benchmarks/classes_growth.py --quick  # to see that it runs, into build/
    PYTHONPATH=. python benchmarks/classes_growth.py --parts graphs  # builds what takes long
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from _classes_page import write_page
from _timing import interleaved, machine, quartiles, ratio, say, timed, versions

ROOT = Path(__file__).resolve().parent.parent
RESULTS, BUILD = ROOT / "docs" / "results", ROOT / "build" / "results"

SIZES = (100, 1000, 10_000, 100_000, 1_000_000)
QUICK_SIZES = (100, 1000, 10_000)
DIM, HIDDEN, POINTS = 128, 512, 128
NOISE = 0.7  # spread of a class, of that of the centres
FEWEST_ITEMS = 20_480  # in all; but at least two of each class
STEPS, WARM_UP = 40, 10
BATCH = 1000
HAN = "han-20902"
EFS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
MOST_COMPARED = 1 << 24  # products held at a time where all prototypes are compared


def peak_mb() -> float:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# -- data ------------------------------------------------------------------------------------------


def make_items(n_classes: int, labels: np.ndarray, seed: int) -> np.ndarray:
    """Items of classes, float32[n, 128]; their centres are the same for every seed.

    The spread of the centres falls from direction to direction as that of the prototypes of Han
    characters does, about evenly to nothing.
    """
    spread = np.linspace(1.0, 0.0, DIM, endpoint=False, dtype=np.float32)
    centres = np.random.default_rng(n_classes).standard_normal((n_classes, DIM), dtype=np.float32)
    rng = np.random.default_rng([n_classes, seed])
    items = np.empty((len(labels), DIM), np.float32)
    for at in range(0, len(labels), 65536):
        part = slice(at, at + 65536)
        items[part] = rng.standard_normal((len(labels[part]), DIM), dtype=np.float32)
        items[part] *= NOISE
        items[part] += centres[labels[part]]
        items[part] *= spread
    return items


def make_queries(n_classes: int, n: int) -> np.ndarray:
    labels = np.random.default_rng(1).integers(0, n_classes, n)
    return make_items(n_classes, labels, seed=1)


# -- 1. growth -------------------------------------------------------------------------------------


class Clock:
    """Takes the place of the progress display of training, and notes when it is called."""

    on = False  # nothing is shown

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.stages: dict[str, float] = {}

    def say(self, text: str) -> None:
        self.stages.setdefault(text.partition(":")[0], time.perf_counter())

    def update(self, *_: object) -> None:
        self.steps.append(time.perf_counter())


def measure_training(n_classes: int, folder: Path) -> dict[str, Any]:
    """Fit a hasher for a few steps, with the codes of all classes, and store it."""
    from hashcade import Hasher

    settings = {"hidden_size": HIDDEN, "embedding_size": POINTS, "validation_fraction": 0.0}
    few = make_items(16, np.arange(64) % 16, 0)
    Hasher(**settings, steps=2, joint_steps=0).fit(few, np.arange(64) % 16)  # compiled
    base = peak_mb()
    labels = np.arange(max(2 * n_classes, FEWEST_ITEMS)) % n_classes
    items = make_items(n_classes, labels, seed=0)
    clock = Clock()
    with mock.patch("hashcade.learn.hasher.Progress", return_value=clock):
        hasher = Hasher(**settings, steps=STEPS, joint_steps=0)
        hasher, seconds = timed(lambda: hasher.fit(items, labels))
    row = {
        "classes": n_classes,
        "items": len(items),
        "width": hasher.shape_.width,
        "step_s": quartiles([b - a for a, b in pairwise(clock.steps[WARM_UP:])]),
        "codes_s": time.perf_counter() - clock.stages["codes"],
        "fit_s": seconds,
        "train_mb": peak_mb() - base,
        "train_base_mb": base,
        "codes_differ": len(np.unique(hasher.codebook_)) / n_classes,
    }
    hasher.save(folder / "model")
    return row


def measure_queries(n_classes: int, folder: Path, rounds: int) -> dict[str, Any]:
    """Load the hasher, and encode queries: through codes, and with all prototypes compared."""
    from threadpoolctl import threadpool_limits

    from experiments.rivals import FlatPrototypes
    from hashcade import Hasher

    queries = make_queries(n_classes, BATCH)
    base = peak_mb()
    hasher = Hasher.load(folder / "model")
    n_alone, n_flat = 200, min(200, max(3, 2_000_000 // n_classes))
    with threadpool_limits(1):
        hasher.encode(queries[:1])
        hasher.encode(queries)
        memory = peak_mb() - base
        flat = FlatPrototypes(hasher)

        def one_by_one(encode: Callable[..., object], n: int) -> None:
            for row in range(n):
                encode(queries[row : row + 1])

        seconds = interleaved(
            {
                "alone": lambda: one_by_one(hasher.encode, n_alone),
                "flat_alone": lambda: one_by_one(flat.encode, n_flat),
                "batch": lambda: hasher.encode(queries),
                "flat_batch": lambda: flat.encode(queries),
            },
            rounds,
        )
        own = hasher.codebook_[flat.rank(queries, 1)[:, 0]]
        equal = float((hasher.encode(queries).bucket_ids == own).all(axis=1).mean())
    counts = {"alone": n_alone, "flat_alone": n_flat, "batch": BATCH, "flat_batch": BATCH}
    each = {key: [1e6 * s / counts[key] for s in seconds[key]] for key in counts}
    return {
        **{f"{key}_us": quartiles(values) for key, values in each.items()},
        "alone_ratio": ratio(each["alone"], each["flat_alone"]),
        "batch_ratio": ratio(each["batch"], each["flat_batch"]),
        "query_mb": memory,
        "query_base_mb": base,
        "equal": equal,
    }


def grow(sizes: tuple[int, ...], work: Path, stored: list[Any], rounds: int) -> list[Any]:
    """Rows of all sizes; those that are stored, with their models, are not measured again."""
    rows = {row["classes"]: row for row in stored}
    for size in sizes:
        folder = work / str(size)
        if size in rows and (folder / "model").is_dir():
            continue
        say(f"growth: {size:,} classes")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        row = in_process("training", size, folder, rounds)
        rows[size] = row | in_process("queries", size, folder, rounds)
        say(json.dumps(rows[size]))
    return [rows[size] for size in sorted(rows)]


def in_process(what: str, n_classes: int, folder: Path, rounds: int) -> dict[str, Any]:
    """Measure in a process of its own, so that peak memory is that of one size."""
    given = {"what": what, "n_classes": n_classes, "folder": str(folder), "rounds": rounds}
    command = [sys.executable, __file__, "--process", json.dumps(given)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def process(what: str, n_classes: int, folder: str, rounds: int) -> None:
    if what == "training":
        row = measure_training(n_classes, Path(folder))
    else:
        row = measure_queries(n_classes, Path(folder), rounds)
    print(json.dumps(row))


def exponent(rows: list[Any], value: Callable[[Any], float]) -> float:
    """Slope of the line of least squares through logarithms of classes and values."""
    classes = np.log([row["classes"] for row in rows])
    return float(np.polyfit(classes, np.log([value(row) for row in rows]), 1)[0])


def exponents(rows: list[Any]) -> dict[str, float]:
    fitted = {
        name: exponent(rows, lambda row, name=name: row[name][1])
        for name in ("step_s", "alone_us", "batch_us", "flat_alone_us", "flat_batch_us")
    }
    for name in ("train_mb", "query_mb"):
        fitted[name] = exponent(rows, lambda row, name=name: row[name])
        fitted[f"{name}_last"] = exponent(rows[-2:], lambda row, name=name: row[name])
    return fitted


# -- 2. decide -------------------------------------------------------------------------------------

# From first and last row of the queries to classes, or to buckets for ways through codes.
Decide = Callable[[int, int], np.ndarray]


def deciders(hasher: Any, points: np.ndarray) -> dict[str, Decide]:
    """Ways to the nearest prototype that need no graph."""
    import faiss

    from hashcade.learn.assignment import Outputs
    from hashcade.learn.encoder import PrototypeAssignment

    prototypes = hasher.prototypes_

    def through_codes(shortlist: int) -> Decide:
        assign = PrototypeAssignment(hasher.codebook_, prototypes, hasher.shape_, shortlist)
        nothing = np.empty((0, 0), np.float32)
        return lambda first, last: assign(Outputs(nothing, None, points[first:last]), 1)[:, 0]

    transposed = np.ascontiguousarray(prototypes.T)
    step = max(1, MOST_COMPARED // len(prototypes))

    def with_numpy(first: int, last: int) -> np.ndarray:
        parts = (points[at : min(at + step, last)] for at in range(first, last, step))
        return np.concatenate([(part @ transposed).argmax(axis=1) for part in parts])

    flat = faiss.IndexFlatIP(prototypes.shape[1])
    flat.add(prototypes)
    usual = hasher.config_.shortlist
    return {
        **{f"codes {m}": through_codes(m) for m in (usual // 2, usual, 2 * usual)},
        "all, numpy": with_numpy,
        "all, faiss": lambda first, last: flat.search(points[first:last], 1)[1][:, 0],
    }


def graphs(prototypes: np.ndarray, points: np.ndarray, stem: Path) -> dict[str, Any]:
    """Functions from ``ef`` to a decider, for hnswlib and for the graphs of faiss."""
    from _graphs import faiss_graph, hnswlib, hnswlib_graph

    def of_faiss(ef: int) -> Decide:
        def decide(first: int, last: int) -> np.ndarray:
            theirs.hnsw.efSearch = ef
            return theirs.search(points[first:last], 1)[1][:, 0]

        return decide

    def of_hnswlib(ef: int) -> Decide:
        def decide(first: int, last: int) -> np.ndarray:
            graph.set_ef(ef)
            return graph.knn_query(points[first:last], 1, num_threads=1)[0][:, 0].astype(np.int64)

        return decide

    theirs = faiss_graph(prototypes, 200, stem.with_name(stem.name + ".faiss"))
    found: dict[str, Any] = {"faiss HNSW": of_faiss}
    if hnswlib is not None:
        graph = hnswlib_graph(prototypes, 200, stem.with_name(stem.name + ".hnswlib"))
        found["hnswlib"] = of_hnswlib
    return found


def decide(name: str, hasher: Any, queries: np.ndarray, stem: Path, rounds: int) -> dict[str, Any]:
    """All ways to the nearest prototype, interleaved, in one thread."""
    import faiss
    from threadpoolctl import threadpool_limits

    points, prototypes = hasher.embed(queries), hasher.prototypes_
    of_graphs = graphs(prototypes, points, stem)
    faiss.omp_set_num_threads(1)
    with threadpool_limits(1):
        ways = deciders(hasher, points)
        nearest = ways["all, numpy"](0, len(points))

        def share_equal(way: str, decide: Decide) -> float:
            expected = hasher.codebook_[nearest, 0] if way.startswith("codes") else nearest
            return float((decide(0, len(points)) == expected).mean())

        equal = {way: share_equal(way, decide) for way, decide in ways.items()}
        rivals: dict[str, list[str]] = {}
        for codes in [way for way in ways if way.startswith("codes")]:
            rivals[codes] = ["all, numpy", "all, faiss"]
            for graph, with_ef in of_graphs.items():
                for ef in EFS:
                    way = f"{graph} ef={ef}"
                    if way not in equal:
                        equal[way] = share_equal(way, with_ef(ef))
                    if equal[way] >= equal[codes]:
                        break
                ways[way] = with_ef(ef)
                rivals[codes].append(way)
        n_alone = dict.fromkeys(ways, 200)
        for way in ("all, numpy", "all, faiss"):
            n_alone[way] = min(200, max(3, 4_000_000 // len(prototypes)))

        def one_by_one(way: str) -> None:
            for row in range(n_alone[way]):
                ways[way](row, row + 1)

        alone = interleaved({way: lambda way=way: one_by_one(way) for way in ways}, rounds)
        batch = interleaved({way: lambda f=f: f(0, len(points)) for way, f in ways.items()}, rounds)
    alone_us = {way: [1e6 * s / n_alone[way] for s in alone[way]] for way in ways}
    batch_us = {way: [1e6 * s / len(points) for s in batch[way]] for way in ways}
    return {
        "data": name,
        "classes": len(prototypes),
        "usual": f"codes {hasher.config_.shortlist}",
        "rows": [
            {
                "way": way,
                "equal": equal[way],
                "alone_us": quartiles(alone_us[way]),
                "batch_us": quartiles(batch_us[way]),
            }
            for way in ways
        ],
        "ratios": [
            {
                "codes": codes,
                "rival": rival,
                "alone": ratio(alone_us[codes], alone_us[rival]),
                "batch": ratio(batch_us[codes], batch_us[rival]),
            }
            for codes in rivals
            for rival in dict.fromkeys(rivals[codes])
        ],
    }


def han(data_work: Path | None, work: Path) -> tuple[Any, np.ndarray, Path]:
    """The model of the results page of many classes, fitted if it is not there, and queries."""
    from experiments.__main__ import default_work
    from experiments.cache import Cache
    from experiments.classes import Laboratory
    from experiments.rows import fingerprint

    lab = Laboratory(HAN, None, Cache(data_work or default_work()))
    hasher = lab.fit("prototype", 0).model
    items = lab.dataset.test.items
    rows = np.random.default_rng(0).choice(len(items), BATCH, replace=False)
    stem = work / f"{HAN}-{fingerprint(lab.identity('prototype', 0))}"
    return hasher, np.ascontiguousarray(items[rows]), stem


def sets_to_decide(
    sizes: tuple[int, ...], data_work: Path | None, work: Path, *, quick: bool
) -> list[tuple[str, Callable[[], tuple[Any, np.ndarray, Path]]]]:
    def synthetic(size: int) -> tuple[Any, np.ndarray, Path]:
        from hashcade import Hasher

        folder = work / str(size)
        return Hasher.load(folder / "model"), make_queries(size, BATCH), folder / "graph"

    largest = sizes[-1]
    sets = [(f"gaussian, {largest:,} classes", lambda: synthetic(largest))]
    if quick:
        return sets
    return [("Han characters, 20,902 classes", lambda: han(data_work, work)), *sets]


# -- the run ---------------------------------------------------------------------------------------


def main() -> int:
    from experiments.__main__ import default_work

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", default="growth,decide", help="also: graphs, only built")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="few classes, few rounds")
    parser.add_argument("--again", action="store_true", help="also what was measured before")
    parser.add_argument("--out", type=Path, help="(default: docs/results, with --quick build/)")
    parser.add_argument("--work", type=Path, help="for models and graphs (default: ~/.cache)")
    parser.add_argument("--experiments", type=Path, help="--work of python -m experiments.classes")
    parser.add_argument("--process", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        process(**options.process)
        return 0
    sizes, rounds = (QUICK_SIZES, 3) if options.quick else (SIZES, options.rounds)
    out = options.out or (BUILD if options.quick else RESULTS)
    work = options.work or default_work().parent / "bench-classes"
    work = work / ("quick" if options.quick else "full")
    file = out / "classes-growth.json"
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"growth": [], "decide": []}
    if file.exists():
        results |= json.loads(file.read_text(encoding="utf-8"))
    parts = options.parts.split(",")

    def store() -> None:
        if len(results["growth"]) > 1:
            results["exponents"] = exponents(results["growth"])
        results["about"] = {
            "machine": machine(),
            "versions": versions("hashcade", "numpy", "torch", "faiss-cpu"),
            "rounds": rounds,
            "quick": options.quick,
        }
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    if "growth" in parts:
        stored = [] if options.again else results["growth"]
        for last in range(1, len(sizes) + 1):  # stored after each size
            stored = results["growth"] = grow(sizes[:last], work, stored, rounds)
            store()
    done = set() if options.again else {row["data"] for row in results["decide"]}
    sets = sets_to_decide(sizes, options.experiments, work, quick=options.quick)
    for name, load in sets:
        if "graphs" in parts:
            hasher, queries, stem = load()
            graphs(hasher.prototypes_, hasher.embed(queries), stem)
        if "decide" in parts and name not in done:
            say(f"decide: {name}")
            hasher, queries, stem = load()
            row = decide(name, hasher, queries, stem, rounds)
            say(json.dumps(row))
            results["decide"] = [r for r in results["decide"] if r["data"] != name] + [row]
            store()
    if "exponents" in results and parts != ["graphs"]:
        print(write_page(results, out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
