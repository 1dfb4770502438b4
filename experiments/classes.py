"""Many classes: our assignments beside the methods that a user with labels would try first.

    python -m experiments.classes --data-set clinc150 --seed 0 1 2

Rows go to OUTPUT/rows/classes.jsonl as soon as they are measured and are not computed again while
their settings stay the same, so an interrupted run resumes. The page OUTPUT/classes.md is then
written from all stored rows; text outside of its two "generated" markers is left as it is. Fitted
methods are kept in the folder WORK (models/classes-*, arrays/classes-*) by their settings alone:
remove them there, and the rows, when the code that fits has changed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments import rivals
from experiments.__main__ import RESULTS, default_data, default_work, report
from experiments.cache import Cache
from experiments.classes_page import write_page
from experiments.datasets import EMBEDDINGS, load_embeddings
from experiments.progress import Progress, machine, versions
from experiments.rows import ResultRow, RowFile, RowKey, fingerprint
from hashcade.codes import CodeShape
from hashcade.evaluate import Evaluation, evaluate_index
from hashcade.index import Encoded, HashIndex
from hashcade.learn import Hasher

OURS = ("prototype", "codebook", "path", "triplet")
RANKS_GIVEN = "prototype-given"  # the same model, which ranks candidates by the given embeddings
WITHOUT_CODES = ("prototype-flat", "prototype-hnsw")  # prototypes searched in other ways
METHODS = ("exhaustive", "means", "kmeans", "softmax", *OURS, *WITHOUT_CODES)
RERANKS, PLACES = ("given", "learned"), ("label", "network")
HIDDEN_SIZE = {"cifar100": 1024, "clinc150": 1024, "han-2000": 512, "han-20902": 512}
N_PROBE = 32  # classes that are ranked for a query

_CHUNK = 8192  # items at a time
_UNPLACED = ("kmeans", "path", "triplet")  # their buckets belong to no class
_TOO_LONG = {("han-20902", method) for method in ("codebook", "path", "triplet")}  # only if named
_SECONDS = {"softmax": 120.0, "prototype": 60.0, "codebook": 90.0, "path": 60.0}
_SAMPLE = 2000  # training items on which HNSW is matched with the codes
_ALONE, _BATCHES, _BATCH = 300, 7, 1000  # queries that are timed

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A method to fit, and where its queries are searched."""

    data_set: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.data_set} {self.method} seed {self.seed}"

    @property
    def databases(self) -> tuple[str, ...]:
        """Of Han characters, three others of a class in the test set are too few to find."""
        return ("train",) if self.data_set.startswith("han-") else ("test", "train")

    @property
    def n_neighbors(self) -> tuple[int, int]:
        """Han characters have ten items a class."""
        return (1, 4) if self.data_set.startswith("han-") else (1, 16)

    def places(self) -> tuple[str, ...]:
        """What may decide where an item lies."""
        if self.method == "exhaustive":
            return ("",)
        return ("network",) if self.method in _UNPLACED else PLACES


# -- what is fitted ------------------------------------------------------------------------------


def method_settings(data_set: str, method: str, seed: int) -> dict[str, Any]:
    """All settings of a method, as plain values."""
    hidden = {"hidden_size": HIDDEN_SIZE[data_set], "random_state": seed}
    if method == "prototype":
        # As the classifier, it is trained on all items.
        return {"assignment": method, "rerank": "learned", "validation_fraction": 0.0, **hidden}
    if method == RANKS_GIVEN:
        return {**method_settings(data_set, "prototype", seed), "rerank": "given"}
    if method == "triplet":
        return {"assignment": "path", "loss": method, **hidden}
    if method in OURS:
        return {"assignment": method, **hidden}
    if method == "softmax":
        return {
            **hidden, "regularizations": list(map(list, rivals.REGULARIZATIONS)),
            "mixups": list(rivals.MIXUPS), "epochs": rivals.EPOCHS, "min_steps": rivals.MIN_STEPS,
            "batch": rivals.BATCH, "learning_rate": rivals.LEARNING_RATE,
            "most_classes": rivals.MOST_CLASSES, "budget": rivals.BUDGET,
        }  # fmt: skip
    if method in WITHOUT_CODES:
        return {"prototype": method_settings(data_set, "prototype", seed)}
    return {"random_state": seed} if method == "kmeans" else {}


@dataclass(frozen=True, eq=False)
class Fitted:
    """A method at work, and what is known of its fit."""

    model: Any  # a Hasher or a Rival; None for exhaustive search
    seconds: float
    details: dict[str, float] = field(default_factory=dict)

    def hash(self, items: Floats) -> Encoded:
        """As a search does it: slot scores only if the method needs them."""
        encoded: Encoded
        if isinstance(self.model, Hasher):
            encoded = self.model.encode(items, scores=False)
        else:
            encoded = self.model.encode(items)
        return encoded

    def bucket_ids(self, items: Floats) -> Ints:
        """Where the method puts items, int64[n, 1]."""
        return np.concatenate([self.model.encode(part).bucket_ids for part in _chunks(items)])

    def decided_right(self, queries: Encoded, labels: Ints) -> float | None:
        """Share of queries whose first bucket is that of their class, in percent."""
        if not hasattr(self.model, "codebook_") and not getattr(self.model, "has_classes", False):
            return None
        own = self.place(queries, labels).bucket_ids
        return 100.0 * float((queries.bucket_ids == own).all(axis=1).mean())

    def place(self, encoded: Encoded, labels: Ints) -> Encoded:
        """Items in the buckets of their classes."""
        known: Any = labels.astype(object) if isinstance(self.model, Hasher) else labels
        result: Encoded = self.model.place(encoded, known)
        return result


class Laboratory:
    """A data set and what is fitted on it, from the cache if it was fitted before."""

    def __init__(self, data_set: str, data: Path | None, cache: Cache) -> None:
        self.name, self.dataset, self._cache = data_set, load_embeddings(data_set, data), cache
        self._learned: tuple[int, tuple[Floats, Floats]] | None = None

    def fit(self, method: str, seed: int) -> Fitted:
        """Fit a method on the training set."""
        train = self.dataset.train
        if method == "exhaustive":
            return Fitted(None, 0.0)
        if method in (*OURS, RANKS_GIVEN):
            return self._hasher(method, seed)
        if method in WITHOUT_CODES:
            return self._without_codes(method, seed)
        kind, fit = {
            "means": (rivals.ClassMeans, rivals.fit_means),
            "kmeans": (rivals.Centroids, rivals.fit_kmeans),
            "softmax": (rivals.Softmax, self._softmax),
        }[method]

        def compute() -> dict[str, npt.NDArray[Any]]:
            start = time.perf_counter()
            state = fit(train.items, train.labels, seed).state
            return {"seconds": np.asarray(time.perf_counter() - start), **state}

        identity = self.identity(method, seed)
        state = self._cache.arrays(f"classes-{self.name}-{method}", identity, compute)
        numbers = {name: float(value) for name, value in state.items() if value.ndim == 0}
        return Fitted(kind(state), numbers.pop("seconds"), numbers)

    def identity(self, method: str, seed: int) -> dict[str, Any]:
        """All that a fit depends on."""
        settings = method_settings(self.name, method, seed)
        return {"data": self.dataset.identity, "method": method, **settings}

    def learned_vectors(self, seed: int) -> tuple[Floats, Floats]:
        """Points of the prototype model: of the training set, and of the test set."""
        if self._learned is None or self._learned[0] != seed:
            model = self.fit("prototype", seed).model
            train, test = (
                np.concatenate([model.embed(part) for part in _chunks(each.items)])
                for each in (self.dataset.train, self.dataset.test)
            )
            self._learned = seed, (train, test)
        return self._learned[1]

    def _softmax(self, X: Floats, y: Ints, seed: int) -> rivals.Softmax:
        return rivals.fit_softmax(X, y, seed, hidden_size=HIDDEN_SIZE[self.name])

    def _hasher(self, method: str, seed: int) -> Fitted:
        train, identity = self.dataset.train, self.identity(method, seed)
        settings, name = method_settings(self.name, method, seed), f"classes-{self.name}-{method}"

        def fit(run_dir: Path) -> Hasher:
            return Hasher(**settings, run_dir=run_dir).fit(train.items, train.labels)

        hasher = self._cache.hasher(name, identity, fit)
        details = {"width": float(hasher.shape_.width), "depth": float(hasher.shape_.depth)}
        return Fitted(hasher, self._cache.elapsed_seconds(name, identity), details)

    def _without_codes(self, method: str, seed: int) -> Fitted:
        prototype = self.fit("prototype", seed)
        flat = rivals.FlatPrototypes(prototype.model)
        rng = np.random.default_rng(seed)
        items = self.dataset.train.items
        items = items[rng.choice(len(items), min(_SAMPLE, len(items)), replace=False)]
        classes = flat.rank(items, 1)[:, 0]
        same = prototype.bucket_ids(items) == prototype.model.codebook_[classes]
        agreement = float(same.all(axis=1).mean())
        if method == "prototype-flat":
            return Fitted(flat, prototype.seconds, {"agreement_of_codes": agreement})
        # All decisions alike would be a matter of the last digit.
        graph = rivals.HnswPrototypes(prototype.model, items, min(agreement, 0.999))
        details = {"ef": float(graph.ef), "agreement": graph.agreement}
        return Fitted(graph, prototype.seconds, details)


# -- what is measured ----------------------------------------------------------------------------


def row_settings(lab: Laboratory, job: Job) -> dict[RowKey, dict[str, Any]]:
    """The rows of a job, with all settings of each."""
    evaluation = {"n_neighbors": list(job.n_neighbors), "protocol": "paper", "n_probe": 1}
    rows = {}
    for database in job.databases:
        for place in job.places():
            for rerank in RERANKS:
                words = {"rerank": rerank, "place": place}
                key = RowKey(
                    experiment="classes",
                    preset=job.data_set,
                    method=job.method,
                    loss="none",
                    sparsity=int(job.method != "exhaustive"),
                    database=database,
                    variant=",".join(f"{name}={word}" for name, word in words.items() if word),
                    seed=job.seed,
                )
                settings = {**lab.identity(job.method, job.seed), "evaluation": evaluation, **words}
                if rerank == "learned":
                    settings["vectors"] = method_settings(job.data_set, "prototype", job.seed)
                rows[key] = settings
    return rows


def measure(lab: Laboratory, job: Job, keys: Sequence[RowKey]) -> Iterator[ResultRow]:
    """Compute rows of a job."""
    train, test = lab.dataset.train, lab.dataset.test
    fitted = lab.fit(job.method, job.seed)
    common: dict[str, float] = {}
    if fitted.model is None:
        shape = CodeShape(width=1, depth=1)
        nowhere = np.zeros((len(test), 1), np.int64)
        queries = Encoded(test.items, nowhere, None, False)
        item_buckets = {
            part: np.zeros((len(each), 1), np.int64)
            for part, each in (("train", train), ("test", test))
        }
    else:
        shape = fitted.model.shape_
        queries = fitted.model.encode(test.items, n_probe=N_PROBE)
        item_buckets = {"test": queries.bucket_ids}
        if any(key.database == "train" and "label" not in key.variant for key in keys):
            item_buckets["train"] = fitted.bucket_ids(train.items)
        decided = fitted.decided_right(queries, test.labels)
        common = {} if decided is None else {"decided": decided}
        common |= hash_microseconds(fitted.hash, test.items)
    settings = row_settings(lab, job)
    for key in keys:
        start = time.perf_counter()
        items = test if key.database == "test" else train
        vectors = (train.items, test.items)
        if settings[key]["rerank"] == "learned":
            vectors = lab.learned_vectors(job.seed)
        item_vectors = vectors[key.database == "test"]
        if settings[key]["place"] == "label":
            unplaced = Encoded(item_vectors, np.zeros((len(items), 1), np.int64), None, False)
            buckets = fitted.place(unplaced, items.labels).bucket_ids
        else:
            buckets = item_buckets[key.database]
        index = HashIndex.build(buckets, item_vectors, labels=items.labels, shape=shape)
        result = evaluate_index(
            index,
            replace(queries, vectors=vectors[1]),
            test.labels,
            exclude=np.arange(len(test)) if key.database == "test" else None,
            n_neighbors=job.n_neighbors,
        )
        seconds = {"fit": fitted.seconds, "evaluate": time.perf_counter() - start}
        yield ResultRow(
            key=key,
            settings=settings[key],
            metrics={**metrics_of(result), **common},
            details={"title": lab.dataset.name, "machine": machine(), **fitted.details},
            seconds=seconds,
            versions=versions(),
        )


def metrics_of(result: Evaluation) -> dict[str, float]:
    """The metrics of a row, from the search; ``suf`` is of one neighbour."""
    metrics = {"suf": result.speedup[1]}
    return metrics | {f"pr_{k}": result.precision[k] for k in result.n_neighbors}


def hash_microseconds(encode: Callable[[Floats], Encoded], items: Floats) -> dict[str, float]:
    """Median time from an item to its bucket on one core: one alone, and one of a batch."""

    def microseconds(parts: Sequence[Floats]) -> float:
        times = []
        for part in parts:
            start = time.perf_counter()
            encode(part)
            times.append((time.perf_counter() - start) / len(part))
        return 1e6 * float(np.median(times))

    alone = [items[row : row + 1] for row in range(min(_ALONE, len(items)))]
    with one_core():
        encode(alone[0])
        return {
            "alone_us": microseconds(alone),
            "batch_us": microseconds([items[:_BATCH]] * _BATCHES),
        }


@contextmanager
def one_core() -> Iterator[None]:
    """Let this process use one core alone."""
    from threadpoolctl import threadpool_limits

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        os.sched_setaffinity(0, before)


def _chunks(items: Floats) -> list[Floats]:
    return [items[at : at + _CHUNK] for at in range(0, len(items), _CHUNK)]


# -- the run -------------------------------------------------------------------------------------


def run(
    *,
    data_sets: Sequence[str] = EMBEDDINGS,
    seeds: Sequence[int] = (0,),
    methods: Sequence[str] | None = None,
    data: Path | None = None,
    output: Path = RESULTS,
    work: Path | None = None,
    render_only: bool = False,
    verbose: bool = True,
) -> tuple[int, Path | None]:
    """Measure what is missing and write the page; how many rows are new, and the page."""
    for kind, names, allowed in (
        ("data set", data_sets, EMBEDDINGS),
        ("method", methods or (), METHODS),
    ):
        for name in set(names) - set(allowed):
            raise ValueError(f"{kind} {name!r} must be one of {', '.join(allowed)}")
    file = RowFile(output / "rows" / "classes.jsonl")
    n_new = 0
    for data_set in () if render_only else data_sets:
        lab = Laboratory(data_set, data or default_data(), Cache(work or default_work()))
        jobs = [
            Job(data_set=data_set, method=method, seed=seed)
            for seed in seeds
            for method in methods or METHODS
            if methods or (data_set, method) not in _TOO_LONG
        ]
        n_new += _run_jobs(lab, jobs, file, verbose=verbose)
    rows = file.rows()
    return n_new, write_page(output, rows) if rows else None


def _run_jobs(lab: Laboratory, jobs: Sequence[Job], file: RowFile, *, verbose: bool) -> int:
    stored = file.rows()
    fingerprints = {row.key: row.fingerprint for row in stored}
    todo = []
    for job in jobs:
        settings = row_settings(lab, job)
        keys = [k for k, s in settings.items() if fingerprints.get(k) != fingerprint(s)]
        if keys:
            alike = [
                row.seconds["fit"] + 4 * row.seconds["evaluate"]
                for row in stored
                if (row.key.preset, row.key.method) == (job.data_set, job.method)
            ]
            todo.append((job, keys, max(alike, default=_SECONDS.get(job.method, 10.0))))
    progress = Progress(sum(s for _, _, s in todo), len(todo), verbose=verbose)
    n_rows = 0
    for job, keys, seconds in todo:
        progress.begin(job.name)
        for row in measure(lab, job, keys):
            file.append(row)
            n_rows += 1
        progress.end(seconds)
    return n_rows


def argument_parser(
    program: str, description: str | None, methods: Iterable[str], usual: str
) -> argparse.ArgumentParser:
    """The arguments of an experiment on embeddings; ``usual`` are the methods by default."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # fmt: off
    option = parser.add_argument
    option("--data-set", action="extend", nargs="+", metavar="NAME",
           help=f"of {', '.join(EMBEDDINGS)} (default: all)")
    option("--seed", type=int, action="extend", nargs="+", metavar="N", help="(default: 0)")
    option("--method", action="extend", nargs="+", metavar="NAME",
           help=f"of {', '.join(methods)} (default: {usual})")
    option("--data", type=Path, metavar="DIR",
           help="folder with the embeddings (default: the variable HASHCADE_DATA)")
    option("--output", type=Path, metavar="DIR", default=RESULTS,
           help="folder for rows, page and plots (default: docs/results)")
    option("--work", type=Path, metavar="DIR",
           help="folder for what was fitted (default: in ~/.cache/hashcade)")
    option("--render-only", action="store_true", help="write the page from the stored rows alone")
    option("--quiet", action="store_true", help="no progress on stderr")
    # fmt: on
    return parser


def run_command(
    experiment: Callable[..., tuple[int, Path | None]], options: argparse.Namespace, **more: Any
) -> int:
    """Run an experiment by the options of :func:`argument_parser`; its exit code."""

    def work() -> tuple[str, Path | None]:
        n_new, page = experiment(
            data_sets=options.data_set or EMBEDDINGS, seeds=options.seed or (0,),
            data=options.data, output=options.output, work=options.work,
            render_only=options.render_only, verbose=not options.quiet, **more,
        )  # fmt: skip
        return f"{n_new} new rows", page

    return report(work)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run by the arguments of a command line."""
    usual = "all that end within an hour"
    parser = argument_parser("experiments.classes", __doc__, METHODS, usual)
    options = parser.parse_args(arguments)
    return run_command(run, options, methods=options.method)


if __name__ == "__main__":
    sys.exit(main())
