"""Compute the rows of an experiment that are missing, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hashcade.report._row import ResultRow, RowKey, fingerprint
from hashcade.reproduce._base import Base, base_identity, make_base
from hashcade.reproduce._jobs import LOSSES, Job, ablation_jobs, chosen, search_jobs
from hashcade.reproduce._measure import (
    FittedTable,
    evaluation_settings,
    figures_of,
    job_settings,
)
from hashcade.reproduce._presets import make_recipe
from hashcade.reproduce._progress import Progress
from hashcade.reproduce._recipe import LEARNED, Recipe
from hashcade.reproduce._solver_time import (
    CLASSES,
    SOLVERS,
    WIDTHS,
    solver_seconds,
    solver_settings,
)
from hashcade.reproduce._store import RowStore
from hashcade.reproduce._versions import machine, versions
from hashcade.reproduce._work import WorkFolder
from hashcade.reproduce._world import World, load_world

_CURVE_POINTS = {"paper": 0, "cpu": 3, "smoke": 1}  # all of them elsewhere


@dataclass(eq=False)
class Experiment:
    """An experiment under a preset, ready to be run.

    Attributes
    ----------
    name, preset
        Which one.
    world
        Its data.
    recipes
        Settings by loss.
    work
        Where intermediate results are kept.
    """

    name: str
    preset: str
    world: World
    recipes: dict[str, Recipe]
    work: WorkFolder
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
        world = load_world(name, preset, data, work)
        losses = ("triplet",) if name == "imagenet-split" else LOSSES
        recipes = {
            loss: make_recipe(name, preset, loss, is_sample=world.is_sample).limited(max_steps)
            for loss in losses
        }
        if max_steps is not None:
            cut = f"Training was cut to {max_steps} steps a stage."
            world = replace(world, note=f"{world.note} {cut}".strip())
        return cls(name, preset, world, recipes, WorkFolder(work), verbose)

    def jobs(self, seeds: Sequence[int], only: Sequence[str] | None) -> list[Job]:
        """All jobs, stored or not."""
        if self.name == "ablation":
            recipe = self.recipes["npairs"]
            return chosen(ablation_jobs(seeds=seeds, n_outputs=recipe.width * recipe.depth), only)
        jobs = search_jobs(self.name, seeds=seeds, points=_CURVE_POINTS.get(self.preset))
        return chosen((job for job in jobs if self._has_room(job)), only)

    def _has_room(self, job: Job) -> bool:
        """Whether there are items and buckets for a point of a curve."""
        recipe = self.recipes[job.loss]
        n_items = min(len(self.world.train), len(self.world.test))
        n_codes = int(job.change.get("n_codes", 0))
        n_centroids = int(job.change.get("n_centroids", 0))
        if job.method == "ours+" and n_codes:  # parts of classes, a slot for each
            n_classes = self.world.train.n_classes
            return n_classes < n_codes <= min(n_classes * (recipe.width - 1), n_items)
        return n_codes <= recipe.width**recipe.depth and max(n_codes, n_centroids) <= n_items

    def base(self, loss: str, seed: int) -> Base:
        """The base of a loss and seed; one is kept in memory."""
        if (loss, seed) not in self._bases:
            self._bases.clear()
            recipe = self.recipes[loss]
            self._bases[loss, seed] = make_base(
                self.world, recipe, loss, seed, self.work, verbose=self._inner
            )
        return self._bases[loss, seed]

    @property
    def _inner(self) -> bool | None:
        """Whether training says where it stands: on a terminal, if anything is said at all."""
        return None if self.verbose else False

    def keys(self, job: Job) -> dict[RowKey, dict[str, Any]]:
        """The rows of a job, with all settings of each."""
        recipe = self.recipes[job.loss]
        identity = base_identity(self.world, recipe, job.loss, job.seed)
        identity["method"] = job_settings(job, recipe)
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
            ): {**identity, "evaluation": evaluation_settings(n_probe)}
            for variant, n_probe in job.variants()
            for database in job.databases
        }

    def fitted(self, job: Job) -> FittedTable:
        """The table of a job, fitted or found."""
        recipe = self.recipes[job.loss]
        base = self.base(job.loss, job.seed)
        return FittedTable(job, recipe, base, self.work, verbose=self._inner)

    def measure(self, job: Job, wanted: Sequence[RowKey]) -> list[ResultRow]:
        """Compute rows of a job."""
        settings = self.keys(job)
        base = self.base(job.loss, job.seed)
        begun = time.process_time()
        table = self.fitted(job)
        rows = []
        for key in wanted:
            start = time.perf_counter()
            n_probe = settings[key]["evaluation"]["n_probe"]
            figures = figures_of(table.evaluate(key.database, n_probe))
            details = {} if n_probe else table.details(key.database, self.world.groups)
            details["data"] = {"note": self.world.note, "is_sample": self.world.is_sample}
            details["machine"] = machine()
            processor = {"base": base.seconds, "table": time.process_time() - begun}
            details["processor_seconds"] = processor
            seconds = {**table.seconds, "evaluate": time.perf_counter() - start}
            rows.append(
                ResultRow(
                    key=key,
                    settings=settings[key],
                    figures=figures,
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
        kind = "learned" if job.method in LEARNED else "other"
        return max(alike) if alike else float(self.recipes[job.loss].seconds.get(kind, 10.0))


def run_jobs(experiment: Experiment, jobs: Sequence[Job], store: RowStore) -> int:
    """Compute and store what is missing; how many rows that were."""
    stored = store.rows()
    fingerprints = {row.key: row.fingerprint for row in stored}
    todo = []
    for job in jobs:
        keys = experiment.keys(job)
        missing = [k for k, s in keys.items() if fingerprints.get(k) != fingerprint(s)]
        if missing:
            todo.append((job, missing, experiment.expected_seconds(job, stored)))
    bases = {(job.loss, job.seed) for job, _, _ in todo}
    base_seconds = {
        (loss, seed): float(experiment.recipes[loss].seconds.get("base", 0.0))
        for loss, seed in bases
    }
    expected = sum(s for _, _, s in todo) + sum(base_seconds.values())
    progress = Progress(expected, len(todo), verbose=experiment.verbose)
    n_rows = 0
    for job, missing, seconds in todo:
        progress.begin(job.name)
        for row in experiment.measure(job, missing):
            store.put(row)
            n_rows += 1
        progress.end(seconds + base_seconds.pop((job.loss, job.seed), 0.0))
    return n_rows


def run_solver_time(
    store: RowStore, preset: str, *, seeds: Sequence[int], only: Sequence[str] | None, verbose: bool
) -> int:
    """Measure the solvers on the grid; how many rows were computed."""
    repetitions, step = (3, 3) if preset == "smoke" else (20, 1)
    solvers = [s for s in SOLVERS if s != "ortools" or find_spec("ortools") is not None]
    unknown = [word for word in only or () if word not in SOLVERS]
    if unknown:
        raise ValueError(f"only={unknown[0]!r} must be one of {', '.join(SOLVERS)}")
    todo = []
    for seed in seeds:
        for n_classes in CLASSES[::step]:
            for width in WIDTHS[::step]:
                settings = solver_settings(n_classes, width, repetitions)
                for solver in [s for s in solvers if not only or s in only]:
                    key = RowKey(
                        experiment="solver-time",
                        preset=preset,
                        method=solver,
                        loss="none",
                        sparsity=1,
                        database="random",
                        variant=f"{n_classes}x{width}",
                        seed=seed,
                    )
                    if store.get(key, fingerprint(settings)) is None:
                        todo.append((key, settings))
    progress = Progress(0.2 * len(todo), len(todo), verbose=verbose)
    for key, settings in todo:
        progress.begin(f"{key.method} {key.variant}")
        seconds = solver_seconds(
            key.method,
            settings["n_classes"],
            settings["width"],
            repetitions=repetitions,
            seed=key.seed,
        )
        store.put(
            ResultRow(key=key, settings=settings, figures={"seconds": seconds}, versions=versions())
        )
        progress.end(0.2)
    return len(todo)
