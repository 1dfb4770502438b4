"""End to end, as a user would choose: ``make bench-end-to-end`` writes docs/results/end-to-end.

Queries per second against label precision@10, one thread, in one interleaved run. The database are
the base embeddings of the training items of Cifar-100, the queries those of all test items.
Every method is given the query's embedding; the time for anything else it needs is counted. Ours+
needs slot scores, and there are two ways to get them:

- ``Ours+``: the hash network of the results page, from the same features that the base network
  takes to the embedding (its copy below, and its head);
- ``Ours+ on embeddings``: a small head on the embedding itself, for users who only have embeddings.

    python benchmarks/end_to_end.py                    # needs the rows of `make reproduce-transfer`
    python benchmarks/end_to_end.py --preset smoke     # to see that it runs
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from _timing import machine, versions
from threadpoolctl import threadpool_limits

from hashcade import Hasher, HashIndex

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # for experiments, which is not installed
from experiments.__main__ import default_data, default_work  # noqa: E402
from experiments.run import Experiment  # noqa: E402

RESULTS = ROOT / "docs" / "results"
N_NEIGHBORS = 10
PROBES = (1, 2, 3, 4, 6, 8)
Search = Callable[[], np.ndarray]


def say(*words: object) -> None:
    print(*words, file=sys.stderr, flush=True)


# -- ours ------------------------------------------------------------------------------------------


def add_ours(
    searches: dict[tuple[str, str], Search], name: str, hasher: Hasher, train: Any, test: Any,
    vectors: np.ndarray, queries: np.ndarray,
) -> None:  # fmt: skip
    """Searches over n_probe; the time of the hash network is part of each."""
    index = HashIndex.build(hasher.transform(train), vectors, shape=hasher.shape_)
    for n_probe in PROBES:
        searches[name, f"n_probe={n_probe}"] = lambda p=n_probe: (
            index.search(
                queries, scores=hasher.scores(test), n_probe=p, n_neighbors=N_NEIGHBORS, threads=1
            ).ids
        )


def small_head(train: np.ndarray, labels: np.ndarray, *, steps: int | None) -> Hasher:
    """A table learned from the embeddings alone."""
    return Hasher(
        width=32, assignment="codebook", hidden_size=128, steps=steps, joint_steps=steps
    ).fit(train, labels)


# -- peers -----------------------------------------------------------------------------------------


def add_faiss(
    searches: dict[tuple[str, str], Search], vectors: np.ndarray, queries: np.ndarray
) -> list[Any]:
    """Exhaustive, IVF and HNSW of faiss; what is returned must be kept alive."""
    dim = vectors.shape[1]
    flat = faiss.IndexFlatL2(dim)
    flat.add(vectors)
    searches["faiss flat", ""] = lambda: flat.search(queries, N_NEIGHBORS)[1]
    kept: list[Any] = [flat]
    for n_lists in (64, 128, 256, 512):
        if 4 * n_lists > len(vectors):
            continue
        quantizer = faiss.IndexFlatL2(dim)
        ivf = faiss.IndexIVFFlat(quantizer, dim, n_lists)
        ivf.train(vectors)
        ivf.add(vectors)
        kept += [quantizer, ivf]

        def search_ivf(n_probe: int, ivf: Any = ivf) -> np.ndarray:
            ivf.nprobe = n_probe
            return ivf.search(queries, N_NEIGHBORS)[1]

        for n_probe in (1, 2, 4, 8, 16):
            key = (f"faiss IVF{n_lists}", f"nprobe={n_probe}")
            searches[key] = lambda p=n_probe, search=search_ivf: search(p)
    hnsw = faiss.IndexHNSWFlat(dim, 16)
    hnsw.hnsw.efConstruction = 200
    hnsw.add(vectors)
    kept.append(hnsw)

    def search_hnsw(ef: int) -> np.ndarray:
        hnsw.hnsw.efSearch = ef
        return hnsw.search(queries, N_NEIGHBORS)[1]

    for ef in (10, 20, 40, 80):
        searches["faiss HNSW", f"ef={ef}"] = lambda ef=ef: search_hnsw(ef)
    return kept


def add_graphs(
    searches: dict[tuple[str, str], Search], vectors: np.ndarray, queries: np.ndarray
) -> None:
    """hnswlib, if it is installed, and usearch."""
    n, dim = vectors.shape
    try:
        import hnswlib
    except ImportError:
        say("hnswlib is not installed and is left out")
    else:
        graph = hnswlib.Index("l2", dim)
        graph.init_index(n, M=16, ef_construction=200, random_seed=0)
        graph.add_items(vectors)

        def search_hnswlib(ef: int) -> np.ndarray:
            graph.set_ef(ef)
            return graph.knn_query(queries, N_NEIGHBORS, num_threads=1)[0]

        for ef in (10, 20, 40, 80):
            searches["hnswlib", f"ef={ef}"] = lambda ef=ef: search_hnswlib(ef)
    from usearch.index import Index

    other = Index(ndim=dim, metric="l2sq", dtype="f32", connectivity=16, expansion_add=200)
    other.add(np.arange(n), vectors)

    def search_usearch(ef: int) -> np.ndarray:
        other.expansion_search = ef
        return other.search(queries, N_NEIGHBORS, threads=1).keys

    for ef in (16, 32, 64, 128):
        searches["usearch", f"ef={ef}"] = lambda ef=ef: search_usearch(ef)


# -- the run ---------------------------------------------------------------------------------------


def measure(
    searches: dict[tuple[str, str], Search], labels: np.ndarray, wanted: np.ndarray, rounds: int
) -> list[dict[str, Any]]:
    """Precision once, then times in interleaved rounds."""
    times: dict[tuple[str, str], list[float]] = {key: [] for key in searches}
    precision = {}
    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)
    with threadpool_limits(1):
        for key, search in searches.items():
            ids = np.asarray(search(), np.int64)
            precision[key] = float(((labels[ids] == wanted[:, None]) & (ids >= 0)).mean())
        for number in range(rounds):
            for key, search in searches.items():
                start = time.perf_counter()
                search()
                times[key].append(time.perf_counter() - start)
            say(f"round {number + 1} of {rounds}")
    return [
        {
            "method": method,
            "setting": setting,
            "precision": precision[method, setting],
            "us": 1e6 * statistics.median(seconds) / len(wanted),
        }
        for (method, setting), seconds in times.items()
    ]


def is_ours(point: dict[str, Any]) -> bool:
    return str(point["method"]).startswith("Ours")


def beaten_by(point: dict[str, Any], points: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Another index that is at least as precise and at least as fast, the fastest of them."""
    better = [
        p
        for p in points
        if not is_ours(p) and p["precision"] >= point["precision"] and p["us"] <= point["us"]
    ]
    return min(better, key=lambda p: p["us"], default=None)


# -- the page --------------------------------------------------------------------------------------


def write(results: dict[str, Any], out: Path) -> None:
    points = results["points"]
    out.mkdir(parents=True, exist_ok=True)
    (out / "end-to-end.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(points, out / "end-to-end.png")
    free = [p for p in points if is_ours(p) and beaten_by(p, points) is None]
    names = "; ".join(f"{p['method']} {p['setting']}" for p in free) or "none"
    lines = [
        "# End to end: queries per second, including the hash network, against precision",
        "",
        f"Written by `{results['command']}`. {results['about']}",
        "",
        "![Queries per second against label precision@10](end-to-end.png)",
        "",
        "Settings of hashcade that no other index dominates (at least as precise and as fast): "
        f"{names}.",
        "",
        "| method | setting | precision@10 | µs per query | queries/s | dominated by |",
        "|---|---|---:|---:|---:|---|",
    ]
    for p in sorted(points, key=lambda p: (not is_ours(p), p["method"], p["us"])):
        rival = beaten_by(p, points) if is_ours(p) else None
        by = "" if rival is None else f"{rival['method']} {rival['setting']}"
        mark = "**" if is_ours(p) else ""
        lines.append(
            f"| {mark}{p['method']}{mark} | {p['setting']} | {p['precision']:.4f} | {p['us']:.1f} "
            f"| {1e6 / p['us']:,.0f} | {by or ('none' if is_ours(p) else '')} |"
        )
    (out / "end-to-end.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw(points: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.subplots()
    for method in dict.fromkeys(p["method"] for p in points):
        line = sorted((p["precision"], 1e6 / p["us"]) for p in points if p["method"] == method)
        ours = method.startswith("Ours")
        axes.plot(*zip(*line, strict=True), marker="*" if ours else "o", label=method,
                  markersize=10 if ours else 4, linewidth=2 if ours else 1)  # fmt: skip
    axes.set(xlabel="label precision@10", ylabel="queries per second, one thread", yscale="log")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", default="transfer", help="of the base (default: transfer)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, help="of the small head, to see that it runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, help="as for python -m experiments")
    options = parser.parse_args()
    work = options.work or default_work()
    experiment = Experiment.load("cifar100", options.preset, data=default_data(), work=work)
    base = experiment.base("npairs", 0)
    (job,) = (j for j in experiment.jobs([0], ["ours+", "npairs", "k1"]) if not j.change)
    table = experiment.fitted(job)
    vectors, queries = base.train_vectors, base.test_vectors
    searches: dict[tuple[str, str], Search] = {}
    arguments = (vectors, queries)
    add_ours(searches, "Ours+", table.hasher, base.train_items, base.test_items, *arguments)
    head = small_head(vectors, base.train_labels, steps=options.steps)
    add_ours(searches, "Ours+ on embeddings", head, vectors, queries, *arguments)
    say("building the peers")
    kept = add_faiss(searches, *arguments)
    add_graphs(searches, *arguments)
    points = measure(searches, base.train_labels, base.test_labels, options.rounds)
    del kept
    here = machine()
    packages = versions("hashcade", "faiss-cpu", "usearch", "torch")
    about = (
        f"{experiment.dataset.name}, {len(vectors):,} × {vectors.shape[1]} base embeddings (preset "
        f"{options.preset}, npairs), {len(queries):,} queries in one batch, one thread, median of "
        f"{options.rounds} rounds. {here['cpu']}; "
        + ", ".join(f"{name} {value}" for name, value in packages.items())
        + f". {experiment.dataset.note}"
    )
    command = "python benchmarks/end_to_end.py" + (
        "" if options.preset == "transfer" else f" --preset {options.preset}"
    )
    write({"command": command, "about": about.strip(), "points": points}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
