"""Precision over SUF and over microseconds: prototypes beside classifier, class means and indexes.

    python -m experiments.curves --data-set clinc150
    python -m experiments.curves --again times      # on a quiet machine: the times alone

Settings go from SUF 20 to five times the number of classes. Up to the number of classes a method
looks into one or several buckets; beyond it classes are split into parts. Rows go to
OUTPUT/rows/curves.jsonl as soon as they are measured, so an interrupted run resumes; the page
OUTPUT/curves.md and its plots are then written from all stored rows, text outside of the two
"generated" markers is left as it is. Fitted models are those of :mod:`experiments.classes`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.__main__ import RESULTS, default_data, default_work
from experiments.cache import Cache
from experiments.classes import (
    RANKS_GIVEN,
    RERANKS,
    Job,
    Laboratory,
    argument_parser,
    one_core,
    run_command,
)
from experiments.curves_page import POINTS, TIMES, write_page
from experiments.datasets import EMBEDDINGS
from experiments.progress import Progress, machine, versions
from experiments.rivals import ClassMeans, Rival, nearest_part, split_classes
from experiments.rows import ResultRow, RowFile, RowKey, fingerprint
from hashcade.codes import CodeShape
from hashcade.evaluate import evaluate_index, precision_at
from hashcade.index import Encoded, HashIndex
from hashcade.learn import Hasher

METHODS = ("prototype", "softmax", "means", "kmeans", "hnsw")
PROBES = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
PARTS = (2, 3, 4, 5, 8)  # of a class; they differ in size, five give less than five times
LISTS = (1, 2, 5)  # of k-means, times the number of classes
EF = (16, 32, 64, 128, 256)  # of HNSW
LOWEST_SUF = 20
MOST_QUERIES = 10_000
ROUNDS, ALONE, BATCH = 7, 40, 1000  # of the times; queries of a round

# Of 20,902 classes: to split them takes minutes, and a round of k-means compares all items with
# all centroids.
_FEW_PARTS = {"han-20902": (2, 5)}
_FEW_LISTS = {"han-20902": (1,)}
_ROUNDS_OF_KMEANS = {"han-20902": 10}  # 25 elsewhere
_FILLING = 15  # buckets that are ranked beyond those visited, as our own models do
_SECONDS = 4.0  # a row

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Setting:
    """A method, how finely it divides items, and how far it looks."""

    method: str
    size: int = 1  # parts of a class, or lists of k-means for each class
    n_probe: int = 1  # buckets; of HNSW ef

    @property
    def name(self) -> str:
        """``"parts=2,n_probe=1"``."""
        if self.method == "hnsw":
            return f"ef={self.n_probe}"
        kind = "lists" if self.method == "kmeans" else "parts"
        return f"{kind}={self.size},n_probe={self.n_probe}"


def settings_of(data_set: str, method: str, n_classes: int) -> list[Setting]:
    """The points of a curve."""
    if method == "hnsw":
        return [Setting(method, 1, ef) for ef in EF]
    if method == "kmeans":
        sizes = _FEW_LISTS.get(data_set, LISTS)
        return [Setting(method, s, n) for s in sizes for n in probes(s * n_classes)]
    whole = [Setting(method, 1, n) for n in probes(n_classes)]
    return [*whole, *(Setting(method, size) for size in _FEW_PARTS.get(data_set, PARTS))]


def probes(n_buckets: int) -> list[int]:
    """Numbers of buckets to look into, down to the lowest SUF."""
    most = max(1, n_buckets // LOWEST_SUF)
    return [*(n for n in PROBES if 1.2 * n < most), most]


# -- where methods look ----------------------------------------------------------------------------


class Ours:
    """Prototypes, of classes or of their parts."""

    def __init__(self, hasher: Hasher) -> None:
        self._hasher, self.shape_ = hasher, hasher.shape_

    def encode(self, items: Floats, n_probe: int, n_more: int) -> Encoded:
        """Queries; some more buckets are always ranked."""
        return self._hasher.encode(items, n_probe=n_probe, scores=False)

    def place(self, items: Floats, vectors: Floats, labels: Ints | None) -> Ints:
        """Buckets of items of a table; of known labels in those of the labels."""
        known = None if labels is None else labels.astype(object)
        return self._hasher.place_items(items, known)[1]


class Theirs:
    """A rival that ranks classes, or centroids; a class may have parts.

    ``vectors_of`` makes what candidates are ranked by. ``parts``, float32[n_classes, n, size], are
    centroids of parts of classes, in the space of these vectors.
    """

    def __init__(
        self, rival: Rival, vectors_of: Callable[[Floats], Floats], parts: Floats | None,
        *, ranks_vectors: bool = False,
    ) -> None:  # fmt: skip
        self._rival, self._vectors_of, self._parts = rival, vectors_of, parts
        self._ranks_vectors = ranks_vectors  # and not the items as they are given
        n_parts = 1 if parts is None else parts.shape[1]
        self.shape_ = CodeShape(width=rival.shape_.n_buckets * n_parts, depth=1)

    def encode(self, items: Floats, n_probe: int, n_more: int) -> Encoded:
        """Queries, with ``n_more`` buckets ranked beyond those probed."""
        vectors = self._vectors_of(items)
        ranked = self._rank(vectors if self._ranks_vectors else items, vectors, n_probe + n_more)
        return Encoded(vectors, ranked[:, :1], None, False, ranked)

    def place(self, items: Floats, vectors: Floats, labels: Ints | None) -> Ints:
        """Buckets of items of a table; of known labels in those of the labels."""
        if labels is None:
            ranks = vectors if self._ranks_vectors else items
            return np.concatenate(
                [self._rank(ranks[rows], vectors[rows], 1) for rows in _slices(len(items))]
            )
        if self._parts is None:
            return labels[:, None]
        part = nearest_part(vectors, labels, self._parts)
        return np.asarray(labels * self._parts.shape[1] + part)[:, None]

    def _rank(self, items: Floats, vectors: Floats, n: int) -> Ints:
        """The first class first, of which the nearest part first, as ours are ranked."""
        if self._parts is None:
            return self._rival.rank(items, n)
        n_parts = self._parts.shape[1]
        classes = self._rival.rank(items, -(-n // n_parts))
        gaps = np.square(vectors[:, None, None] - self._parts[classes]).sum(axis=3)
        order = np.argsort(gaps, axis=2, kind="stable")
        ranked: Ints = (classes[:, :, None] * n_parts + order).reshape(len(items), -1)
        return ranked[:, :n]


class Bench:
    """A data set, what is fitted on it, and tables of one kind of vectors."""

    def __init__(self, lab: Laboratory, seed: int, rerank: str, cache: Cache) -> None:
        self.lab, self.seed, self.rerank, self._cache = lab, seed, rerank, cache
        self.data = lab.dataset
        rows = np.random.default_rng(0).permutation(len(self.data.test))[:MOST_QUERIES]
        self.query_rows = np.sort(rows)
        self._model = "prototype" if rerank == "learned" else RANKS_GIVEN
        self.hasher: Hasher = lab.fit(self._model, seed).model
        vectors = (self.data.train.items, self.data.test.items)
        self.vectors = vectors if rerank == "given" else lab.learned_vectors(seed)
        self._made: dict[Any, Any] = {}

    def identity(self, setting: Setting, what: str) -> dict[str, Any]:
        """All that a row depends on."""
        fit = "means" if setting.method == "hnsw" else setting.method
        identity = self.lab.identity(fit, self.seed)
        if self.rerank == "learned":
            identity["vectors"] = self.lab.identity("prototype", self.seed)
        rounds = {"rounds": self._rounds} if setting.method == "kmeans" else {}
        return {
            **identity, "method": setting.method, "setting": setting.name, "rerank": self.rerank,
            "seed": self.seed, "n_queries": len(self.query_rows), "what": what, **rounds,
        }  # fmt: skip

    def encoder(self, setting: Setting) -> Any:
        """What says where to look."""
        method, size = setting.method, setting.size
        return self._once(("encoder", method, size), lambda: self._make_encoder(method, size))

    def index(self, setting: Setting, database: str) -> Any:
        """Items of known labels in their buckets, others where the method puts them."""

        def make() -> HashIndex:
            encoder = self.encoder(setting)
            items = self.data.train if database == "train" else self.data.test
            vectors = self.vectors[database == "test"]
            known = items.labels if database == "train" and setting.method != "kmeans" else None
            buckets = encoder.place(items.items, vectors, known)
            return HashIndex.build(buckets, vectors, labels=items.labels, shape=encoder.shape_)

        return self._once((setting.method, setting.size, database), make)

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def vectors_of(self, items: Floats) -> Floats:
        """What candidates are ranked by."""
        return items if self.rerank == "given" else self.hasher.embed(items)

    def lists(self, size: int) -> Any:
        """The lists of k-means over the training set, in faiss."""

        def make() -> Any:
            import faiss

            centroids, vectors = self._centroids(size), np.ascontiguousarray(self.vectors[0])
            quantizer = faiss.IndexFlatL2(centroids.shape[1])
            quantizer.add(centroids)
            lists = faiss.IndexIVFFlat(quantizer, centroids.shape[1], len(centroids))
            lists.train(vectors)  # leaves the centroids as they are
            lists.add(vectors)
            return lists

        return self._once(("lists", size), make)

    def graph(self) -> Any:
        """HNSW over the training set."""
        return self._once("graph", self._make_graph)

    def _make_graph(self) -> Any:
        import hnswlib

        vectors = self.vectors[0]
        identity = self.identity(Setting("hnsw"), "graph")
        file = self._cache.path / "graphs" / f"{self.lab.name}-{fingerprint(identity)}.hnswlib"
        graph = hnswlib.Index("l2", vectors.shape[1])
        if file.is_file():
            graph.load_index(str(file), max_elements=len(vectors))
            return graph
        graph.init_index(len(vectors), M=16, ef_construction=200, random_seed=0)
        graph.add_items(vectors, num_threads=1)
        file.parent.mkdir(parents=True, exist_ok=True)
        graph.save_index(f"{file}.part")
        Path(f"{file}.part").replace(file)
        return graph

    def _make_encoder(self, method: str, size: int) -> Any:
        if method == "prototype":
            return Ours(self._refined(size))
        if method == "kmeans":
            centroids = ClassMeans({"centres": self._centroids(size)})
            return Theirs(centroids, self.vectors_of, None, ranks_vectors=True)
        rival = self.lab.fit(method, self.seed).model
        return Theirs(rival, self.vectors_of, None if size == 1 else self._parts(size))

    def _refined(self, size: int) -> Hasher:
        if size == 1:
            return self.hasher
        train, n_codes = self.data.train, size * self.data.train.n_classes
        identity = {**self.lab.identity(self._model, self.seed), "n_codes": n_codes}

        def refine(run_dir: Path) -> Hasher:
            return self.hasher.refine(train.items, train.labels, n_codes=n_codes)

        return self._cache.hasher(f"curves-{self.lab.name}-parts", identity, refine)

    def _parts(self, size: int) -> Floats:
        identity = self.identity(Setting("means", size), "parts")
        labels = self.data.train.labels

        def compute() -> Floats:
            return split_classes(self.vectors[0], labels, size, seed=self.seed)

        return self._cache.array(f"curves-{self.lab.name}-parts", identity, compute)

    @property
    def _rounds(self) -> int:
        return _ROUNDS_OF_KMEANS.get(self.lab.name, 25)

    def _centroids(self, size: int) -> Floats:
        import faiss

        identity = self.identity(Setting("kmeans", size), "centroids")
        vectors, n = self.vectors[0], size * self.data.train.n_classes

        def compute() -> Floats:
            kmeans = faiss.Kmeans(
                vectors.shape[1], n, niter=self._rounds, seed=self.seed,
                max_points_per_centroid=len(vectors), min_points_per_centroid=1,
            )  # fmt: skip
            kmeans.train(vectors)
            return np.asarray(kmeans.centroids)

        return self._cache.array(f"curves-{self.lab.name}-kmeans", identity, compute)


def _slices(n: int) -> list[slice]:
    return [slice(at, at + 4096) for at in range(0, n, 4096)]


# -- what is measured ------------------------------------------------------------------------------


def row_keys(bench: Bench, what: str, methods: Sequence[str]) -> dict[RowKey, Setting]:
    """The rows of a bench."""
    databases = Job(data_set=bench.lab.name, method="", seed=0).databases
    if what == TIMES:
        databases = ("train",)
    rows = {}
    for method in methods:
        for setting in settings_of(bench.lab.name, method, bench.data.train.n_classes):
            for database in databases if method != "hnsw" else ("train",):
                key = RowKey(
                    experiment=what,
                    preset=bench.lab.name,
                    method=method,
                    loss="none",
                    sparsity=1,
                    database=database,
                    variant=f"rerank={bench.rerank},{setting.name}",
                    seed=bench.seed,
                )
                rows[key] = setting
    return rows


def neighbors(bench: Bench) -> tuple[int, int]:
    """Numbers of neighbours: few of Han characters, which have ten items a class."""
    return Job(data_set=bench.lab.name, method="", seed=0).n_neighbors


def measure_point(bench: Bench, setting: Setting, database: str) -> dict[str, float]:
    """Precision, and SUF for the same number of neighbours."""
    rows, test = bench.query_rows, bench.data.test
    labels, numbers = test.labels[rows], neighbors(bench)
    if setting.method == "hnsw":
        ids = graph_search(bench, setting, max(numbers))(test.items[rows])
        found = bench.data.train.labels
        return {f"pr_{k}": precision_at(ids[:, :k], labels, found) for k in numbers}
    queries = bench.encoder(setting).encode(test.items[rows], setting.n_probe, _FILLING)
    result = evaluate_index(
        bench.index(setting, database),
        queries,
        labels,
        exclude=rows if database == "test" else None,
        n_neighbors=numbers,
        n_probe=setting.n_probe,
    )
    speedups = {f"suf_{k}": result.speedup[k] for k in numbers}
    return speedups | {f"pr_{k}": result.precision[k] for k in numbers}


def measure_times(bench: Bench, settings: Sequence[Setting]) -> list[dict[str, float]]:
    """Microseconds a query from the given vector to ids, one core: alone, and in a batch.

    All settings once, then all again, so that what else the machine does falls on all alike.
    """
    searches = [_search(bench, setting) for setting in settings]
    items = bench.data.test.items[bench.query_rows]
    alone: list[list[float]] = [[] for _ in settings]
    batch: list[list[float]] = [[] for _ in settings]
    with one_core():
        for number in range(ROUNDS + 1):
            rows = (np.arange(ALONE) + number * ALONE) % len(items)
            for which, search in enumerate(searches):
                single = [_microseconds(search, items[row : row + 1]) for row in rows]
                together = _microseconds(search, items[:BATCH])
                if number > 0:  # the first round warms up
                    alone[which] += single
                    batch[which].append(together)
    return [
        {"alone_us": float(np.median(a)), "batch_us": float(np.median(b))}
        for a, b in zip(alone, batch, strict=True)
    ]


def _microseconds(search: Callable[[Floats], Ints], items: Floats) -> float:
    start = time.perf_counter()
    search(items)
    return 1e6 * (time.perf_counter() - start) / len(items)


def _search(bench: Bench, setting: Setting) -> Callable[[Floats], Ints]:
    """From queries to ids of items, each method by its fastest program."""
    k = max(neighbors(bench))
    if setting.method == "hnsw":
        return graph_search(bench, setting, k)
    if setting.method == "kmeans":
        lists = bench.lists(setting.size)

        def search_lists(items: Floats) -> Ints:
            lists.nprobe = setting.n_probe
            return np.asarray(lists.search(bench.vectors_of(items), k)[1])

        return search_lists
    encoder, index = bench.encoder(setting), bench.index(setting, "train")

    def search(items: Floats) -> Ints:
        encoded = encoder.encode(items, setting.n_probe, 0)
        where = encoded.where_to_look(setting.n_probe)
        result: Ints = index.search(encoded.vectors, **where, n_neighbors=k, threads=1).ids
        return result

    return search


def graph_search(bench: Bench, setting: Setting, k: int) -> Callable[[Floats], Ints]:
    """Search the graph."""
    graph = bench.graph()

    def search(items: Floats) -> Ints:
        graph.set_ef(max(setting.n_probe, k))
        return np.asarray(graph.knn_query(bench.vectors_of(items), k, num_threads=1)[0], np.int64)

    return search


# -- the run ---------------------------------------------------------------------------------------


def run(
    *,
    data_sets: Sequence[str] = EMBEDDINGS,
    seeds: Sequence[int] = (0,),
    methods: Sequence[str] = METHODS,
    again: str | None = None,
    times: bool = True,
    data: Path | None = None,
    output: Path = RESULTS,
    work: Path | None = None,
    render_only: bool = False,
    verbose: bool = True,
) -> tuple[int, Path | None]:
    """Measure what is missing and write the page; how many rows are new, and the page.

    ``again="times"`` measures the times again, and nothing else; without ``times`` none.
    """
    for kind, names, allowed in (
        ("data set", data_sets, EMBEDDINGS),
        ("method", methods, METHODS),
        ("again", [again or "times"], ("times",)),
    ):
        for name in set(names) - set(allowed):
            raise ValueError(f"{kind} {name!r} must be one of {', '.join(allowed)}")
    file = RowFile(output / "rows" / "curves.jsonl")
    n_new = 0
    for data_set in () if render_only else data_sets:
        cache = Cache(work or default_work())
        lab = Laboratory(data_set, data or default_data(), cache)
        for seed in seeds:
            for rerank in RERANKS:
                bench = Bench(lab, seed, rerank, cache)
                for row in _new_rows(bench, methods, file, again, times=times, verbose=verbose):
                    file.append(row)
                    n_new += 1
    rows = file.rows()
    return n_new, write_page(output, rows) if rows else None


def _new_rows(
    bench: Bench, methods: Sequence[str], file: RowFile, again: str | None, *, times: bool,
    verbose: bool,
) -> Iterator[ResultRow]:  # fmt: skip
    stored = {row.key: row.fingerprint for row in file.rows()}
    title = bench.data.name

    def is_new(key: RowKey, setting: Setting) -> bool:
        return stored.get(key) != fingerprint(bench.identity(setting, key.experiment))

    def row(key: RowKey, setting: Setting, metrics: dict[str, float], seconds: float) -> ResultRow:
        return ResultRow(
            key=key,
            settings=bench.identity(setting, key.experiment),
            metrics=metrics,
            details={"title": title, "machine": machine()},
            seconds={"measure": seconds},
            versions=versions(),
        )

    points = {} if again else row_keys(bench, POINTS, methods)
    todo = [(key, setting) for key, setting in points.items() if is_new(key, setting)]
    progress = Progress(_SECONDS * len(todo), len(todo), verbose=verbose)
    for key, setting in todo:
        progress.begin(f"{key.preset} {key.method} {key.database} {key.variant}")
        start = time.perf_counter()
        yield row(
            key, setting, measure_point(bench, setting, key.database), time.perf_counter() - start
        )
        progress.end(_SECONDS)

    # All times of a bench are measured together, or none; only of settings that have a point.
    found = {row.key for row in file.rows()}
    clocks = {
        key: setting
        for key, setting in row_keys(bench, TIMES, methods).items()
        if replace(key, experiment=POINTS) in found
    }
    is_due = again is not None or any(is_new(*each) for each in clocks.items())
    if times and bench.seed == 0 and clocks and is_due:
        if verbose:
            print(f"times of {bench.lab.name}, {bench.rerank}", file=sys.stderr)
        start = time.perf_counter()
        measured = measure_times(bench, list(clocks.values()))
        seconds = (time.perf_counter() - start) / len(clocks)
        for (key, setting), metrics in zip(clocks.items(), measured, strict=True):
            yield row(key, setting, metrics, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run by the arguments of a command line."""
    parser = argument_parser("experiments.curves", __doc__, METHODS, "all")
    again = "measure the times again, and nothing else"
    parser.add_argument("--again", choices=("times",), help=again)
    parser.add_argument("--no-times", action="store_true", help="measure no times")
    options = parser.parse_args(arguments)
    methods, times = options.method or METHODS, not options.no_times
    return run_command(run, options, methods=methods, again=options.again, times=times)


if __name__ == "__main__":
    sys.exit(main())
