"""Compute the rows of an experiment that are missing, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.base_network import Base, base_identity, make_base
from experiments.baselines import make_method
from experiments.cache import Cache
from experiments.datasets import Dataset, load_dataset
from experiments.jobs import LOSSES, Job, ablation_jobs, search_jobs, select_jobs
from experiments.presets import CLASSIFIERS, END_TO_END, LEARNED, Recipe, make_recipe
from experiments.progress import Progress, machine, versions
from experiments.rivals import Rival, Softmax, fit_softmax
from experiments.rows import ResultRow, RowFile, RowKey, fingerprint
from experiments.siblings import sibling_metrics
from hashcade.codes import CodeShape
from hashcade.evaluate import Evaluation, evaluate_hasher
from hashcade.index import Encoded
from hashcade.learn import Hasher

NEIGHBORS = (1, 4, 16)
_CURVE_POINTS = {"paper": 0, "cpu": 3, "scratch": 3, "smoke": 1}  # all of them elsewhere


# -- one table ---------------------------------------------------------------------------------


def job_settings(job: Job, recipe: Recipe) -> dict[str, Any]:
    """All settings of a job's method, as plain values."""
    if job.method in CLASSIFIERS:  # a bucket for each class
        settings = recipe.method_settings(job.method, job.loss, job.change)
        return {"method": job.method, "random_state": job.seed, **settings}
    return {
        "method": job.method,
        "width": recipe.width,
        "depth": recipe.depth,
        "sparsity": max(1, job.sparsity),
        "random_state": job.seed,
        **recipe.method_settings(job.method, job.loss, job.change),
    }


def fit_method(job: Job, recipe: Recipe, base: Base, cache: Cache, *, verbose: bool | None) -> Any:
    """Fit the method of a job on its base."""
    settings = job_settings(job, recipe)
    method = settings.pop("method")
    n_codes = settings.pop("n_codes", None)
    if method in CLASSIFIERS:
        return _fit_classifier(method.removesuffix("-learned"), settings, base, cache, verbose)
    if method not in (*LEARNED, *END_TO_END):
        name = "vq" if method.startswith("vq") else method
        on_test = method == "vq-test"
        items = base.test_vectors if on_test else base.train_vectors
        labels = base.test_labels if on_test else base.train_labels
        return make_method(name, **settings).fit(items, labels)

    name, whole = method.removesuffix("adapt"), method in END_TO_END
    views = base.train_images if whole else base.train_views

    def fit(run_dir: Path) -> Hasher:
        kind = name.removesuffix("-end-to-end")
        hasher = make_method(kind, **settings, run_dir=run_dir, verbose=verbose)
        assert isinstance(hasher, Hasher)
        shared = None if recipe.frozen and not whole else base.hasher
        return hasher.fit(views, base.train_labels, base=shared)

    identity = {"base": base.settings, "method": name, **settings}
    hasher = cache.hasher(name.replace("+", "plus"), identity, fit)
    if method == "ours+adapt":
        return hasher.adapt(base.test_items, n_codes=n_codes)
    if n_codes is None:
        return hasher
    return hasher.refine(base.train_items, base.train_labels, n_codes=n_codes)


def _fit_classifier(
    method: str, settings: dict[str, Any], base: Base, cache: Cache, verbose: bool | None
) -> Hasher | Softmax:
    """Fit a method that decides on a class; it gets the items of the learned tables alone."""
    shared = {name: base.settings[name] for name in ("data", "features")}
    if base.features_are_learned:
        shared["base"] = base.settings["base"]
    identity = {**shared, "method": method, **settings}
    views, labels = base.train_views, base.train_labels
    if method == "softmax":
        more = {"seed": settings["random_state"], "hidden_size": settings["hidden_size"]}
        state = cache.arrays(method, identity, lambda: fit_softmax(views, labels, **more).state)
        return Softmax(state)

    def fit(run_dir: Path) -> Hasher:
        hasher = Hasher(assignment="prototype", **settings, run_dir=run_dir, verbose=verbose)
        return hasher.fit(views, labels)

    return cache.hasher(method, identity, fit)


class FittedTable:
    """A fitted method, and both sets as it encodes them, each computed once."""

    def __init__(
        self, job: Job, recipe: Recipe, base: Base, cache: Cache, *, verbose: bool | None
    ) -> None:
        self._base = base
        self._is_learned = job.method in (*LEARNED, *END_TO_END, *CLASSIFIERS)
        self._sees_images = job.method in END_TO_END
        self._has_own_vectors = job.method == "prototype-learned"
        start = time.perf_counter()
        self.hasher = fit_method(job, recipe, base, cache, verbose=verbose)
        self.seconds = {"train": time.perf_counter() - start, "hash": 0.0}
        self.shape_: CodeShape = self.hasher.shape_
        self._encoded: dict[str, Encoded] = {}

    def encoded(self, database: str) -> Encoded:
        """The training set, or else the test set, with the base vectors for re-ranking."""
        part = "train" if database == "train" else "test"
        if part not in self._encoded:
            base = self._base
            vectors = base.train_vectors if part == "train" else base.test_vectors
            items = base.train_items if part == "train" else base.test_items
            if self._sees_images:
                items = base.train_images if part == "train" else base.test_images
            start = time.perf_counter()
            more = {"n_probe": max(NEIGHBORS)} if isinstance(self.hasher, Rival) else {}
            encoded = self.hasher.encode(items if self._is_learned else vectors, **more)
            self.seconds["hash"] += time.perf_counter() - start
            if not self._has_own_vectors:
                encoded = replace(encoded, vectors=vectors)
            self._encoded[part] = encoded
        return self._encoded[part]

    def encode(self, rows: npt.NDArray[np.int64], *, n_probe: int = 1) -> Encoded:
        """Items by their numbers, those of the test set and then those of the training set.

        This makes a fitted table an encoder that :func:`evaluate_hasher` accepts; slot scores say
        where further probes go.
        """
        n_test = len(self._base.test_labels)
        is_train = len(rows) > 0 and rows[0] >= n_test  # rows are of one set
        return self.encoded("train")[rows - n_test] if is_train else self.encoded("test")[rows]

    def evaluate(self, database: str, n_probe: int) -> Evaluation:
        """Search the test items in a database, as the paper does."""
        base = self._base
        rows = np.arange(len(base.test_labels) + len(base.train_labels))
        test, train = rows[: len(base.test_labels)], rows[len(base.test_labels) :]
        items = (train, base.train_labels) if database == "train" else ()
        fill = "sum" if n_probe > 1 else None
        return evaluate_hasher(
            self, test, base.test_labels, *items, n_neighbors=NEIGHBORS, n_probe=n_probe, fill=fill
        )

    def details(self, database: str, groups: npt.NDArray[np.int64] | None) -> dict[str, Any]:
        """What plots and texts need besides the metrics."""
        first = self.encoded(database).bucket_ids[:, 0]
        sizes, counts = np.unique(np.unique(first, return_counts=True)[1], return_counts=True)
        result: dict[str, Any] = {
            "occupancy": [
                [int(size), int(count)] for size, count in zip(sizes, counts, strict=True)
            ]
        }
        if groups is not None and database == "test" and self._is_learned and self.shape_.depth > 1:
            siblings = sibling_metrics(first, self._base.test_labels, groups, self.shape_)
            result["siblings"] = vars(siblings)
        if isinstance(self.hasher, Hasher):
            result["validation"] = dict(self.hasher.validation_)
        return result


def metrics_of(result: Evaluation) -> dict[str, float]:
    """The metrics of a row. ``suf`` is the paper's column: of one neighbour."""
    metrics = {"suf": result.speedup[1]}
    for k in result.n_neighbors:
        metrics[f"pr_{k}"] = result.precision[k]
        metrics[f"suf_{k}"] = result.speedup[k]
    metrics["map"] = result.mean_average_precision
    metrics["nmi"] = result.nmi
    metrics["n_occupied"] = float(result.n_occupied)
    return metrics


# -- an experiment -----------------------------------------------------------------------------


@dataclass(eq=False)
class Experiment:
    """An experiment under a preset, ready to run; ``recipes`` are its settings by loss."""

    name: str
    preset: str
    dataset: Dataset
    recipes: dict[str, Recipe]
    cache: Cache
    verbose: bool = True
    _bases: dict[tuple[str, int], Base] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        name: str,
        preset: str,
        *,
        data: Path | None,
        work: Path,
        max_steps: int | None = None,
        verbose: bool = True,
    ) -> Experiment:
        """Load the data and look up the settings."""
        dataset = load_dataset(name, preset, data, work)
        losses = ("triplet",) if name == "imagenet-split" else LOSSES
        recipes = {
            loss: make_recipe(name, preset, loss, is_sample=dataset.is_sample).limited(max_steps)
            for loss in losses
        }
        if max_steps is not None:
            cut = f"Training was cut to {max_steps} steps a stage."
            dataset = replace(dataset, note=f"{dataset.note} {cut}".strip())
        return cls(name, preset, dataset, recipes, Cache(work), verbose)

    def jobs(self, seeds: Sequence[int], only: Sequence[str] | None) -> list[Job]:
        """All jobs, stored or not."""
        if self.name == "ablation":
            recipe = self.recipes["npairs"]
            jobs = ablation_jobs(seeds=seeds, n_outputs=recipe.width * recipe.depth)
            return select_jobs(jobs, only)
        jobs = search_jobs(self.name, seeds=seeds, points=_CURVE_POINTS.get(self.preset))
        return select_jobs((job for job in jobs if self._is_possible(job)), only)

    def _is_possible(self, job: Job) -> bool:
        """Whether there are items and buckets enough for a point of a curve."""
        recipe = self.recipes[job.loss]
        if not recipe.has(job.method):
            return False
        n_items = min(len(self.dataset.train), len(self.dataset.test))
        n_codes = int(job.change.get("n_codes", 0))
        n_centroids = int(job.change.get("n_centroids", 0))
        if job.method == "ours+" and n_codes:  # parts of classes, a slot for each
            n_classes = self.dataset.train.n_classes
            return n_classes < n_codes <= min(n_classes * (recipe.width - 1), n_items)
        return n_codes <= recipe.width**recipe.depth and max(n_codes, n_centroids) <= n_items

    @property
    def _inner_verbose(self) -> bool | None:
        """Whether training shows progress: on a terminal, if anything is shown at all."""
        return None if self.verbose else False

    def base(self, loss: str, seed: int) -> Base:
        """The base of a loss and seed; one is held in memory."""
        if (loss, seed) not in self._bases:
            self._bases.clear()
            self._bases[loss, seed] = make_base(
                self.dataset, self.recipes[loss], loss, seed, self.cache,
                verbose=self._inner_verbose,
            )  # fmt: skip
        return self._bases[loss, seed]

    def fitted(self, job: Job) -> FittedTable:
        """The table of a job, from the cache if it was trained before."""
        recipe, base = self.recipes[job.loss], self.base(job.loss, job.seed)
        return FittedTable(job, recipe, base, self.cache, verbose=self._inner_verbose)

    def keys(self, job: Job) -> dict[RowKey, dict[str, Any]]:
        """The rows of a job, with all settings of each."""
        recipe = self.recipes[job.loss]
        identity = base_identity(self.dataset, recipe, job.loss, job.seed)
        identity["method"] = job_settings(job, recipe)
        evaluation = {"n_neighbors": list(NEIGHBORS), "protocol": "paper"}
        return {
            RowKey(
                experiment=self.name,
                preset=self.preset,
                method=job.method,
                loss=job.loss,
                sparsity=job.sparsity,
                database=database,
                variant=variant,
                seed=job.seed,
            ): {**identity, "evaluation": {**evaluation, "n_probe": n_probe}}
            for variant, n_probe in job.variants()
            for database in job.databases
        }

    def measure(self, job: Job, keys: Sequence[RowKey]) -> list[ResultRow]:
        """Compute rows of a job."""
        settings = self.keys(job)
        base = self.base(job.loss, job.seed)
        begin = time.process_time()
        table = self.fitted(job)
        rows = []
        for key in keys:
            start = time.perf_counter()
            n_probe = settings[key]["evaluation"]["n_probe"]
            metrics = metrics_of(table.evaluate(key.database, n_probe))
            details = {} if n_probe > 1 else table.details(key.database, self.dataset.groups)
            details["data"] = {"note": self.dataset.note, "is_sample": self.dataset.is_sample}
            details["machine"] = machine()
            processor = {"base": base.seconds, "table": time.process_time() - begin}
            details["processor_seconds"] = processor
            seconds = {**table.seconds, "evaluate": time.perf_counter() - start}
            rows.append(
                ResultRow(
                    key=key,
                    settings=settings[key],
                    metrics=metrics,
                    details=details,
                    seconds=seconds,
                    versions=versions(),
                )
            )
        return rows

    def expected_seconds(self, job: Job, stored: Sequence[ResultRow]) -> float:
        """How long a job will take: as long as the same took before, else what the preset says."""
        alike = [
            sum(row.seconds.values())
            for row in stored
            if (row.key.method, row.key.loss) == (job.method, job.loss)
            and row.seconds.get("train", 0.0) > 1.0
        ]
        kind = "learned" if job.method in (*LEARNED, *END_TO_END, *CLASSIFIERS) else "other"
        return max(alike) if alike else float(self.recipes[job.loss].seconds.get(kind, 10.0))


def run_jobs(experiment: Experiment, jobs: Sequence[Job], file: RowFile) -> int:
    """Compute and store the missing rows; how many there were."""
    stored = file.rows()
    fingerprints = {row.key: row.fingerprint for row in stored}
    todo = []
    for job in jobs:
        keys = experiment.keys(job)
        missing = [k for k, s in keys.items() if fingerprints.get(k) != fingerprint(s)]
        if missing:
            todo.append((job, missing, experiment.expected_seconds(job, stored)))
    base_seconds = {
        (job.loss, job.seed): float(experiment.recipes[job.loss].seconds.get("base", 0.0))
        for job, _, _ in todo
    }
    expected = sum(s for _, _, s in todo) + sum(base_seconds.values())
    progress = Progress(expected, len(todo), verbose=experiment.verbose)
    n_rows = 0
    for job, missing, seconds in todo:
        progress.begin(job.name)
        for row in experiment.measure(job, missing):
            file.append(row)
            n_rows += 1
        progress.end(seconds + base_seconds.pop((job.loss, job.seed), 0.0))
    return n_rows
