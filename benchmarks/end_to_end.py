"""From an embedding to the nearest items, as a user would choose: ``make bench-end-to-end``.

Writes docs/results/end-to-end: precision by labels against microseconds a query, one query per call
and in batches, one thread, all methods by turns. Every method is given the embedding of the query;
whatever else it needs, such as a network, is part of its time. On Cifar-100 embeddings, sentences
of CLINC150 and Han characters: the training items are the database, the queries are test items.

- ``HashTable`` with all settings by default;
- the same prototypes without codes: all of them compared, or through a graph;
- what else a user with labels would try: a softmax classifier, or the nearest class mean, says in
  which class to look; candidates are ranked by the given embeddings;
- indexes that use no labels: faiss flat, IVF and HNSW, hnswlib and usearch; hnswlib also over
  learned vectors.

Models are those of ``python -m experiments.classes``, and are fitted if they are not there yet.

    PYTHONPATH=. python benchmarks/end_to_end.py
    PYTHONPATH=. python benchmarks/end_to_end.py --quick  # to see that it runs, into build/
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from _end_to_end_page import write_page
from _graphs import faiss_graph, hnswlib, hnswlib_graph
from _timing import interleaved, machine, quartiles, ratio, say, versions
from threadpoolctl import threadpool_limits
from usearch.index import Index

from experiments.__main__ import default_data, default_work
from experiments.cache import Cache
from experiments.classes import Laboratory
from experiments.rows import fingerprint
from hashcade import CodeShape, HashIndex, HashTable, Matches, SearchResult

ROOT = Path(__file__).resolve().parent.parent
RESULTS, BUILD = ROOT / "docs" / "results", ROOT / "build" / "results"
DATA_SETS = {
    "cifar100": (1, 10),
    "clinc150": (1, 10),
    "han-20902": (1, 4),
}  # with the k of precision@k
N_NEIGHBORS = 10
PROBES = (1, 2, 4, 8)
ALONE, BATCH = 200, 5000  # queries
OURS, USUAL = "HashTable", "n_probe=1"

# From queries to ids of items, and how many items were compared with a query on average, if known.
Search = Callable[[np.ndarray], tuple[np.ndarray, float | None]]
Key = tuple[str, str]  # method and setting


@dataclass(frozen=True, eq=False)
class Data:
    """A data set, what was fitted on it, and where graphs are kept."""

    lab: Laboratory
    graphs: Path

    @property
    def items(self) -> np.ndarray:
        return self.lab.dataset.train.items

    @property
    def labels(self) -> np.ndarray:
        return self.lab.dataset.train.labels

    def graph(self, what: str, vectors: str = "") -> Path:
        identity = self.lab.identity("prototype", 0) if vectors else self.lab.dataset.identity
        return self.graphs / f"{self.lab.name}{vectors}-{fingerprint(identity)}.{what}"


def found(result: Matches | SearchResult) -> tuple[np.ndarray, float]:
    return result.ids, float(result.candidates.mean())


# -- with labels -----------------------------------------------------------------------------------


def add_tables(searches: dict[Key, Search], data: Data) -> np.ndarray:
    """Our table, and the same one with its prototypes searched without codes; its vectors."""
    hasher = data.lab.fit("prototype", 0).model
    table = HashTable.from_parts(hasher)
    table.add(data.items, labels=data.labels)
    for n_probe in PROBES:
        searches[OURS, f"n_probe={n_probe}"] = lambda Q, p=n_probe: found(
            table.search(Q, N_NEIGHBORS, n_probe=p, threads=1)
        )

    def search(Q: np.ndarray, rival: Any, n_probe: int) -> tuple[np.ndarray, float]:
        points = rival.points(Q)
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        buckets = hasher.codebook_[rival.nearest(points, n_probe), 0]
        return found(
            table.index.search(points, bucket_ids=buckets, n_neighbors=N_NEIGHBORS, threads=1)
        )

    for name in ("flat", "hnsw") if hnswlib else ("flat",):
        rival = data.lab.fit(f"prototype-{name}", 0).model
        for n_probe in (1, 4):
            searches[f"prototypes, {name}", f"classes={n_probe}"] = lambda Q, r=rival, p=n_probe: (
                search(Q, r, p)
            )
    return hasher.embed(data.items)


def add_classifiers(searches: dict[Key, Search], data: Data) -> None:
    """Methods that name classes; candidates are ranked by the given embeddings."""
    shape = CodeShape(width=data.lab.dataset.train.n_classes, depth=1)
    index = HashIndex.build(data.labels[:, None], data.items, shape=shape)
    for method, name in (("softmax", "softmax classifier"), ("means", "class means")):
        rival = data.lab.fit(method, 0).model
        for n_probe in PROBES:
            searches[name, f"classes={n_probe}"] = lambda Q, r=rival, p=n_probe: found(
                index.search(Q, bucket_ids=r.rank(Q, p), n_neighbors=N_NEIGHBORS, threads=1)
            )


# -- without labels --------------------------------------------------------------------------------


def add_lists(searches: dict[Key, Search], data: Data) -> list[Any]:
    """All items, and IVF of faiss with as many lists as is usual, and with fewer.

    Quantizers must be kept.
    """
    n, dim = data.items.shape
    flat = faiss.IndexFlatL2(dim)
    flat.add(data.items)
    searches["faiss flat", "all items"] = lambda Q: (flat.search(Q, N_NEIGHBORS)[1], float(n))
    usual = 2 ** round(np.log2(4 * n**0.5))
    quantizers = []
    for n_lists in (usual // 8, usual):
        quantizer = faiss.IndexFlatL2(dim)
        ivf = faiss.IndexIVFFlat(quantizer, dim, n_lists)
        ivf.train(data.items)
        ivf.add(data.items)
        quantizers.append(quantizer)

        def search(Q: np.ndarray, n_probe: int, ivf: Any = ivf) -> tuple[np.ndarray, float]:
            ivf.nprobe = n_probe
            stats = faiss.cvar.indexIVF_stats
            before = stats.ndis
            ids = ivf.search(Q, N_NEIGHBORS)[1]
            return ids, (stats.ndis - before) / len(Q)

        for n_probe in (1, 2, 4, 8, 16, 32):
            key = (f"faiss IVF{n_lists}", f"nprobe={n_probe}")
            searches[key] = lambda Q, s=search, p=n_probe: s(Q, p)
    return quantizers


def add_graphs(searches: dict[Key, Search], data: Data, learned: np.ndarray) -> None:
    """HNSW as its libraries build it by default: faiss 32 links and 40, hnswlib 16 and 200."""
    theirs = faiss_graph(data.items, 40, data.graph("faiss"), n_links=32)

    def search_faiss(Q: np.ndarray, ef: int) -> tuple[np.ndarray, float]:
        theirs.hnsw.efSearch = ef
        stats = faiss.cvar.hnsw_stats
        before = stats.ndis
        ids = theirs.search(Q, N_NEIGHBORS)[1]
        return ids, (stats.ndis - before) / len(Q)

    for ef in (16, 32, 64, 128):
        searches["faiss HNSW", f"ef={ef}"] = lambda Q, ef=ef: search_faiss(Q, ef)
    graph = Index(ndim=data.items.shape[1], metric="l2sq", dtype="f32")
    graph.add(np.arange(len(data.items)), data.items, threads=2)

    def search_usearch(Q: np.ndarray, ef: int) -> tuple[np.ndarray, float]:
        graph.expansion_search = ef
        result = graph.search(Q, N_NEIGHBORS, threads=1)
        ids = np.asarray(result.keys).astype(np.int64).reshape(len(Q), -1)
        return ids, result.computed_distances / len(Q)

    for ef in (16, 64):
        searches["usearch", f"ef={ef}"] = lambda Q, ef=ef: search_usearch(Q, ef)
    if hnswlib is None:
        say("hnswlib is not installed and is left out")
        return
    embed = data.lab.fit("prototype", 0).model.embed
    for name, vectors, prepare in (
        ("hnswlib", data.items, lambda Q: Q),
        ("hnswlib, learned vectors", learned, embed),
    ):
        kind = "-learned" if vectors is learned else ""
        known = hnswlib_graph(vectors, 200, data.graph("hnswlib", kind))

        def search(Q: np.ndarray, ef: int, known: Any = known, of: Any = prepare) -> np.ndarray:
            known.set_ef(ef)
            return known.knn_query(of(Q), N_NEIGHBORS, num_threads=1)[0]

        for ef in (10, 20, 40, 80):
            searches[name, f"ef={ef}"] = lambda Q, s=search, ef=ef: (s(Q, ef), None)


# -- the run ---------------------------------------------------------------------------------------


def measure(data: Data, ranks: tuple[int, int], rounds: int) -> dict[str, Any]:
    """Precision once, then times by turns."""
    searches: dict[Key, Search] = {}
    faiss.omp_set_num_threads(2)
    learned = add_tables(searches, data)
    add_classifiers(searches, data)
    kept = add_lists(searches, data)
    add_graphs(searches, data, learned)
    test = data.lab.dataset.test
    rows = np.random.default_rng(0).permutation(len(test.items))[:BATCH]
    queries, wanted = np.ascontiguousarray(test.items[rows]), test.labels[rows]
    faiss.omp_set_num_threads(1)
    say("measuring")
    with threadpool_limits(1):
        precision, candidates = {}, {}
        for key, search in searches.items():
            ids, candidates[key] = search(queries)
            ids = np.asarray(ids, np.int64)
            right = (data.labels[ids] == wanted[:, None]) & (ids >= 0)
            precision[key] = [100.0 * float(right[:, :k].mean()) for k in ranks]

        def one_by_one(search: Search) -> None:
            for row in range(ALONE):
                search(queries[row : row + 1])

        alone = interleaved({k: lambda s=s: one_by_one(s) for k, s in searches.items()}, rounds)
        batch = interleaved({k: lambda s=s: s(queries) for k, s in searches.items()}, rounds)
    del kept
    ours = (OURS, USUAL)
    return {
        "data": data.lab.name,
        "title": data.lab.dataset.name,
        "items": len(data.items),
        "queries": len(queries),
        "ranks": ranks,
        "points": [
            {
                "method": key[0],
                "setting": key[1],
                "precision": precision[key],
                "candidates": candidates[key],
                "alone_us": quartiles([1e6 * s / ALONE for s in alone[key]]),
                "batch_us": quartiles([1e6 * s / len(queries) for s in batch[key]]),
                "alone_ratio": ratio(alone[ours], alone[key]),  # ours over theirs
                "batch_ratio": ratio(batch[ours], batch[key]),
            }
            for key in searches
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-set", action="append", choices=DATA_SETS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="Cifar-100, few rounds")
    parser.add_argument("--out", type=Path, help="(default: docs/results, with --quick build/)")
    parser.add_argument("--work", type=Path, help="as for python -m experiments.classes")
    options = parser.parse_args()
    names = options.data_set or (["cifar100"] if options.quick else list(DATA_SETS))
    rounds = 3 if options.quick else options.rounds
    out = options.out or (BUILD if options.quick else RESULTS)
    work = options.work or default_work()
    graphs = default_work().parent / "bench-end-to-end" if options.work is None else work / "graphs"
    graphs.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    file = out / "end-to-end.json"
    results: dict[str, Any] = {"sets": []}
    if file.exists():
        stored = json.loads(file.read_text(encoding="utf-8"))
        results["sets"] = stored.get("sets", [])
    for name in names:
        say(f"-- {name}")
        lab = Laboratory(name, default_data(), Cache(work))
        measured = measure(Data(lab, graphs), DATA_SETS[name], rounds)
        others = [other for other in results["sets"] if other["data"] != name]
        results["sets"] = sorted(
            [*others, measured], key=lambda s: list(DATA_SETS).index(s["data"])
        )
        results["about"] = {
            "machine": machine(),
            "versions": versions(
                "hashcade", "numpy", "faiss-cpu", "usearch", *["hnswlib"] * bool(hnswlib)
            ),
            "rounds": rounds,
            "quick": options.quick,
        }
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(write_page(results, out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
