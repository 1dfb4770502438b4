"""One call for an experiment of the paper."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashcade.errors import DataError
from hashcade.report._row import ResultRow
from hashcade.report._tree import draw_tree
from hashcade.reproduce._jobs import EXPERIMENTS as _EXPERIMENTS
from hashcade.reproduce._jobs import SEARCHED, Job
from hashcade.reproduce._page import write_page
from hashcade.reproduce._presets import PRESETS as _PRESETS
from hashcade.reproduce._run import Experiment, run_jobs, run_solver_time
from hashcade.reproduce._store import RowStore

EXPERIMENTS = _EXPERIMENTS
PRESETS = tuple(_PRESETS)
_TITLES = {
    "cifar100": "Cifar-100",
    "imagenet": "ImageNet 32×32",
    "imagenet-split": "ImageNetSplit: classes that were never learned",
    "solver-time": "Time of the solver",
    "ablation": "Ablation",
}
_TREE_LEAVES = 36


@dataclass(frozen=True)
class Reproduction:
    """What a run gave.

    Attributes
    ----------
    rows
        All stored rows of the experiment and preset.
    page
        The page that was written; None if there are no rows, or none was asked for.
    n_computed
        Rows that were computed now; the others were there.
    seconds
        Time of this run.
    """

    rows: tuple[ResultRow, ...]
    page: Path | None
    n_computed: int
    seconds: float


def reproduce(
    experiment: str,
    preset: str,
    *,
    out: str | os.PathLike[str] = "docs/results",
    work: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    seeds: Sequence[int] = (0,),
    only: Sequence[str] | None = None,
    max_steps: int | None = None,
    page: str | None = None,
    render_only: bool = False,
    verbose: bool = True,
) -> Reproduction:
    """Run an experiment of the paper under a preset, or go on where a run stopped.

    The rows of a table are stored as soon as they are measured. Rows that are there and were
    measured with the same settings are not computed again.

    Parameters
    ----------
    experiment
        ``"cifar100"``, ``"imagenet"``, ``"imagenet-split"``, ``"solver-time"`` or ``"ablation"``.
    preset
        ``"paper"`` (for a GPU), ``"cpu"`` (from scratch), ``"transfer"`` (on features of
        EfficientNet-Lite0) or ``"smoke"`` (digits, two minutes).
    out
        Folder for the page, its plots and tables; the rows go to ``rows`` in it.
    work
        Folder for what can be computed again: features, models, checkpoints. Default:
        ``reproduce`` in the cache folder of hashcade.
    data
        Folder with the official files. Default: HASHCADE_DATA.
    seeds
        The first for all rows, the others for Metric, VQ, flat, Ours and Ours+.
    only
        Restrict to methods, losses and sparsities: ``["ours", "npairs", "k1"]``.
    max_steps
        Cut every stage of training to so many steps, to see that a preset runs. The rows say so,
        and are replaced when the whole is run.
    page
        Name of the page. Default: from experiment and preset.
    render_only
        Compute nothing: write the page from the rows that are there.
    verbose
        Progress and the time left on stderr.

    Raises
    ------
    ValueError
        For an unknown experiment, preset or restriction.
    DataError
        If the data are not there.
    KeyboardInterrupt
        After Ctrl-C; the same call goes on where this one stopped.
    """
    # ---- everything is checked first
    if experiment not in EXPERIMENTS:
        raise ValueError(f"experiment={experiment!r} must be one of {', '.join(EXPERIMENTS)}")
    if preset not in PRESETS:
        raise ValueError(f"preset={preset!r} must be one of {', '.join(PRESETS)}")
    if not seeds:
        raise ValueError("seeds is empty, must name at least one")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps={max_steps} must be >= 1")
    start = time.monotonic()
    results = Path(out)
    store = RowStore(results / "rows" / f"{experiment}-{preset}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hashcade"
    workplace = Path(work) if work is not None else cache / "reproduce"
    named = data if data is not None else os.environ.get("HASHCADE_DATA")
    n_computed = 0

    # ---- the rows
    if experiment == "solver-time":
        if not render_only:
            n_computed = run_solver_time(store, preset, seeds=seeds, only=only, verbose=verbose)
    elif not render_only:
        running = Experiment.load(
            experiment,
            preset,
            data=None if named is None else Path(named),
            work=workplace,
            max_steps=max_steps,
            verbose=verbose,
        )
        jobs = running.jobs(seeds, only)
        n_computed = run_jobs(running, jobs, store)
        name = page or page_name(experiment, preset, is_sample=running.world.is_sample)
        _draw_tree(running, jobs, results / f"{name}-tree.png")
    rows = store.rows()

    # ---- the page
    if not rows:
        if render_only:
            raise DataError(f"{store.folder}: there are no rows to write a page from")
        return Reproduction((), None, n_computed, time.monotonic() - start)
    about: list[dict[str, Any]] = [row.details.get("data", {}) for row in rows]
    notes = sorted({data.get("note", "") for data in about} - {""})  # of all rows, old ones too
    is_sample = any(data.get("is_sample", False) for data in about)
    name = page or page_name(experiment, preset, is_sample=is_sample)
    written = write_page(
        results,
        name,
        rows,
        title=f"{_TITLES[experiment]}, preset {preset}",
        note=" ".join(notes),
        command=_command(experiment, preset, rows),
    )
    return Reproduction(tuple(rows), written, n_computed, time.monotonic() - start)


def page_name(experiment: str, preset: str, *, is_sample: bool) -> str:
    """``cifar100-transfer``, ``imagenet-sample``, ``imagenet-sample-cpu``, ``solver-time``."""
    if experiment == "solver-time":
        return experiment if preset != "smoke" else "solver-time-smoke"
    if experiment.startswith("imagenet") and is_sample and preset != "smoke":
        return f"{experiment}-sample" + ("" if preset == "transfer" else f"-{preset}")
    return f"{experiment}-{preset}"


def _command(experiment: str, preset: str, rows: Sequence[ResultRow]) -> str:
    seeds = " ".join(f"--seed {seed}" for seed in sorted({row.key.seed for row in rows}))
    return f"hashcade reproduce {experiment} --preset {preset} {seeds}"


def _draw_tree(running: Experiment, jobs: Sequence[Job], path: Path) -> None:
    """Draw the tree of the faithful method if there are images, and it is not there yet."""
    if running.name not in SEARCHED or not running.world.has_images or path.is_file():
        return
    for job in jobs:
        if (job.method, job.sparsity, job.variant) == ("ours", 1, "") and job.loss == "npairs":
            table = running.fitted(job)
            test = running.world.test
            database = job.databases[0]
            draw_tree(
                path,
                test.items,
                test.labels,
                table.shape,
                table.buckets(database)[:, 0],
                class_names=test.class_names,
                max_leaves=_TREE_LEAVES,
                min_items=max(2, len(test) // (10 * test.n_classes)),
            )
            return
