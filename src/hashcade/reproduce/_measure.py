"""From a job to its figures: fit the table, hash the items, search, count."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.baselines import make_method
from hashcade.codes._shape import CodeShape
from hashcade.evaluate import Evaluation, evaluate_search
from hashcade.learn._hasher import Hasher
from hashcade.report._siblings import sibling_figures
from hashcade.reproduce._base import Base
from hashcade.reproduce._jobs import Job
from hashcade.reproduce._recipe import LEARNED, Recipe
from hashcade.reproduce._work import WorkFolder

NEIGHBORS = (1, 4, 16)


class FittedTable:
    """A fitted method with the buckets of the items, each computed once.

    Parameters
    ----------
    job, recipe, base, work
        What, how, on what, and where to keep it.
    """

    def __init__(
        self, job: Job, recipe: Recipe, base: Base, work: WorkFolder, *, verbose: bool | None
    ) -> None:
        self._job, self._base = job, base
        self._is_learned = job.method in LEARNED
        start = time.perf_counter()
        self.hasher = fit_method(job, recipe, base, work, verbose=verbose)
        self.seconds = {"train": time.perf_counter() - start}
        self.shape: CodeShape = self.hasher.shape_
        start = time.perf_counter()
        self._scores = self.hasher.scores(self._items("test"))
        self._buckets: dict[str, npt.NDArray[np.int64]] = {
            "test": self.hasher.transform(self._items("test"))
        }
        self.seconds["hash"] = time.perf_counter() - start

    def evaluate(self, database: str, n_probe: int | None) -> Evaluation:
        """Search the test items in a database, as the paper does."""
        by_sum = getattr(self.hasher, "assignment", "path") == "codebook"
        same_set = database != "train"
        where: dict[str, Any]
        if not by_sum and n_probe is None:
            where = {"query_scores": self._scores}
        elif n_probe is None and self.shape.sparsity > 1:  # the buckets of the best code
            where = {"query_bucket_ids": self._buckets["test"]}
        else:
            where = {"query_scores": self._scores, "fill": "sum", "n_probe": n_probe or 1}
        return evaluate_search(
            self._base.test_vectors,
            self._base.test_labels,
            self._vectors(database),
            self._labels(database),
            item_bucket_ids=self.buckets(database),
            shape=self.shape,
            n_neighbors=NEIGHBORS,
            same_set=same_set,
            **where,
        )

    def buckets(self, database: str) -> npt.NDArray[np.int64]:
        """Buckets of the items of a database, int64[n, sparsity]."""
        part = "train" if database == "train" else "test"
        if part not in self._buckets:
            start = time.perf_counter()
            self._buckets[part] = np.asarray(self.hasher.transform(self._items(part)))
            self.seconds["hash"] += time.perf_counter() - start
        return self._buckets[part]

    def details(self, database: str, groups: npt.NDArray[np.int64] | None) -> dict[str, Any]:
        """What plots and texts need besides the figures."""
        first = self.buckets(database)[:, 0]
        sizes, counts = np.unique(np.unique(first, return_counts=True)[1], return_counts=True)
        found: dict[str, Any] = {
            "occupancy": [
                [int(size), int(count)] for size, count in zip(sizes, counts, strict=True)
            ]
        }
        if groups is not None and database == "test" and self._is_learned and self.shape.depth > 1:
            siblings = sibling_figures(first, self._base.test_labels, groups, self.shape)
            found["siblings"] = vars(siblings)
        if isinstance(self.hasher, Hasher):
            found["validation"] = dict(self.hasher.validation_)
        return found

    def _items(self, part: str) -> npt.NDArray[Any]:
        if self._is_learned:
            return self._base.train_items if part == "train" else self._base.test_items
        return self._vectors(part)

    def _vectors(self, part: str) -> npt.NDArray[np.float32]:
        return self._base.train_vectors if part == "train" else self._base.test_vectors

    def _labels(self, part: str) -> npt.NDArray[np.int64]:
        return self._base.train_labels if part == "train" else self._base.test_labels


def job_settings(job: Job, recipe: Recipe) -> dict[str, Any]:
    """All settings of a job's method, as plain values."""
    settings = recipe.method_settings(job.method, job.loss, job.sparsity, job.seed, job.change)
    return {
        "method": job.method,
        "width": recipe.width,
        "depth": recipe.depth,
        "sparsity": max(1, job.sparsity),
        "random_state": job.seed,
        **settings,
    }


def fit_method(
    job: Job, recipe: Recipe, base: Base, work: WorkFolder, *, verbose: bool | None
) -> Any:
    """Fit the method of a job on its base."""
    settings = job_settings(job, recipe)
    method = settings.pop("method")
    n_codes = settings.pop("n_codes", None)
    shape = {name: settings.pop(name) for name in ("width", "depth")}
    if method not in LEARNED:
        name = "vq" if method.startswith("vq") else method
        made = make_method(name, **{**shape, **settings})
        on_test = method == "vq-test"
        items = base.test_vectors if on_test else base.train_vectors
        return made.fit(items, base.test_labels if on_test else base.train_labels)

    def fit(run_dir: Path) -> Hasher:
        name = method.removesuffix("adapt")
        hasher = make_method(name, **{**shape, **settings}, run_dir=run_dir, verbose=verbose)
        assert isinstance(hasher, Hasher)
        shared = None if recipe.frozen else base.hasher
        return hasher.fit(base.train_views, base.train_labels, base=shared)

    identity = {"base": base.settings, "method": method.removesuffix("adapt"), **shape, **settings}
    hasher = work.hasher(method.removesuffix("adapt").replace("+", "plus"), identity, fit)
    if method == "ours+adapt":
        return hasher.adapt(base.test_items, n_codes=n_codes)
    if n_codes is None:
        return hasher
    return hasher.refine(base.train_items, base.train_labels, n_codes=n_codes)


def figures_of(result: Evaluation) -> dict[str, float]:
    """The figures of a row. ``suf`` is the paper's column: of one neighbour."""
    figures = {"suf": result.speedup[1]}
    for k in result.n_neighbors:
        figures[f"pr_{k}"] = result.precision[k]
        figures[f"suf_{k}"] = result.speedup[k]
    figures["map"] = result.mean_average_precision
    figures["nmi"] = result.nmi
    figures["n_occupied"] = float(result.n_occupied)
    return figures


def evaluation_settings(n_probe: int | None) -> Mapping[str, Any]:
    """What the figures depend on besides the table."""
    return {"n_neighbors": list(NEIGHBORS), "protocol": "paper", "n_probe": n_probe}
