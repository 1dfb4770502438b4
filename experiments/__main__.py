"""The command line: ``python -m experiments NAME --preset PRESET``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.jobs import EXPERIMENTS, SEARCHED, Job
from experiments.presets import PRESETS
from experiments.progress import cache_folder, duration
from experiments.render import write_page
from experiments.rows import ResultRow, RowFile
from experiments.run import Experiment, run_jobs
from experiments.solver_time import run_solver_time
from experiments.tree import draw_tree
from hashcade.errors import DataError, HashcadeError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
_TITLES = {
    "cifar100": "Cifar-100",
    "imagenet": "ImageNet 32×32",
    "imagenet-split": "ImageNetSplit: classes that were never learned",
    "solver-time": "Time of the solver",
    "ablation": "Ablation",
}
_TREE_LEAVES = 36
_HELP = """
experiments:
  cifar100        tables 1 and 3, the remapping tables, precision against speed-up, the tree
  imagenet        table 2 on ImageNet 32×32, or on the sample tiny-imagenet-32.tar.xz
  imagenet-split  table 4: classes that were never learned
  ablation        one setting changed at a time, on Cifar-100
  solver-time     supplement B: seconds of one level, beside OR-tools (needs no data)

presets:
  paper           the paper's networks and iterations: about a day on a GPU
  cpu             a small network from scratch: up to 2.5 hours on two cores
  scratch         a better one, warmed up as a classifier: about two hours on two cores
  transfer        on features of EfficientNet-Lite0
  smoke           everything on scikit-learn's digits in two minutes; the numbers mean nothing

Rows are stored as soon as they are measured, in OUTPUT/rows/NAME-PRESET.jsonl, and are not computed
again while their settings stay the same: an interrupted run resumes, a finished one reports no new
row. The page OUTPUT/NAME-PRESET.md is then written from all stored rows; text outside of its two
"generated" markers is left as it is.

examples:
  python -m experiments cifar100 --preset smoke --output build/results
  python -m experiments cifar100 --preset transfer --seed 0 --seed 1 --seed 2 --data DIR
  python -m experiments ablation --preset transfer --only ours --data DIR
"""


@dataclass(frozen=True)
class Outcome:
    """All stored rows, the page that was written if there are any, and how many rows are new."""

    rows: tuple[ResultRow, ...]
    page: Path | None
    n_new: int


def run(
    name: str,
    preset: str,
    *,
    output: Path = RESULTS,
    work: Path | None = None,
    data: Path | None = None,
    seeds: Sequence[int] = (0,),
    only: Sequence[str] | None = None,
    max_steps: int | None = None,
    render_only: bool = False,
    verbose: bool = True,
) -> Outcome:
    """Run an experiment of the paper under a preset, or resume it, and write its page.

    The parameters are the options of the command line. ``work`` defaults to ``experiments`` in the
    cache folder of hashcade, ``data`` to the variable HASHCADE_DATA.
    """
    # ---- everything is checked first
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment={name!r} must be one of {', '.join(EXPERIMENTS)}")
    if preset not in PRESETS:
        raise ValueError(f"preset={preset!r} must be one of {', '.join(PRESETS)}")
    if not seeds:
        raise ValueError("seeds is empty, must name at least one")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps={max_steps} must be >= 1")
    file = RowFile(output / "rows" / f"{name}-{preset}.jsonl")

    # ---- the rows
    n_new = 0
    if name == "solver-time":
        if not render_only:
            n_new = run_solver_time(file, preset, seeds=seeds, only=only, verbose=verbose)
    elif not render_only:
        experiment = Experiment.load(
            name,
            preset,
            data=data or default_data(),
            work=work or default_work(),
            max_steps=max_steps,
            verbose=verbose,
        )
        jobs = experiment.jobs(seeds, only)
        n_new = run_jobs(experiment, jobs, file)
        page = page_name(name, preset, is_sample=experiment.dataset.is_sample)
        _draw_tree(experiment, jobs, output / f"{page}-tree.png")
    rows = file.rows()

    # ---- the page
    if not rows:
        if render_only:
            raise DataError(f"{file.path}: no rows to write a page from")
        return Outcome((), None, n_new)
    is_sample = any(row.details.get("data", {}).get("is_sample", False) for row in rows)
    page = page_name(name, preset, is_sample=is_sample)
    title = f"{_TITLES[name]}, preset {preset}"
    return Outcome(tuple(rows), write_page(output, page, rows, title=title), n_new)


def default_data() -> Path | None:
    """Folder with the official files: HASHCADE_DATA, or ``shared/data`` beside the clone."""
    if "HASHCADE_DATA" in os.environ:
        return Path(os.environ["HASHCADE_DATA"])
    beside = ROOT.parent / "shared" / "data"
    return beside if beside.is_dir() else None


def default_work() -> Path:
    """Folder for intermediate results, in the cache folder of hashcade."""
    return cache_folder() / "experiments"


def page_name(name: str, preset: str, *, is_sample: bool) -> str:
    """``cifar100-transfer``, ``imagenet-sample``, ``imagenet-sample-cpu``, ``solver-time``."""
    if name == "solver-time":
        return name if preset != "smoke" else "solver-time-smoke"
    if name.startswith("imagenet") and is_sample and preset != "smoke":
        return f"{name}-sample" + ("" if preset == "transfer" else f"-{preset}")
    return f"{name}-{preset}"


def _draw_tree(experiment: Experiment, jobs: Sequence[Job], path: Path) -> None:
    """Draw the tree of Ours if there are images, and the picture does not exist yet."""
    if experiment.name not in SEARCHED or not experiment.dataset.has_images or path.is_file():
        return
    for job in jobs:
        if (job.method, job.sparsity, job.variant, job.loss) == ("ours", 1, "", "npairs"):
            table = experiment.fitted(job)
            test = experiment.dataset.test
            draw_tree(
                path,
                test.items,
                test.labels,
                table.shape_,
                table.encoded(job.databases[0]).bucket_ids[:, 0],
                class_names=test.class_names,
                max_leaves=_TREE_LEAVES,
                min_items=max(2, len(test) // (10 * test.n_classes)),
            )
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an experiment by the arguments of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description="Run an experiment of the paper and write a page that shows it beside the "
        "paper's tables.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # fmt: off
    parser.add_argument("name", metavar="NAME", choices=EXPERIMENTS, help="see below")
    parser.add_argument("--preset", choices=PRESETS, required=True, help="see below")
    option = parser.add_argument
    option("--seed", type=int, action="append", metavar="N",
           help="first: of all rows; further: of the main methods (may be repeated; default: 0)")
    option("--data", type=Path, metavar="DIR",
           help="folder with the official files (default: the variable HASHCADE_DATA)")
    option("--output", type=Path, metavar="DIR", default=RESULTS,
           help="folder for rows, page and plots (default: docs/results)")
    option("--work", type=Path, metavar="DIR",
           help="folder for models and features, which can be computed again "
           "(default: in ~/.cache/hashcade)")
    option("--only", action="append", metavar="WORD",
           help="restrict to methods, losses, sparsities: ours, npairs, k1 (may be repeated)")
    option("--max-steps", type=int, metavar="N",
           help="cut every stage of training, to check that it runs")
    option("--render-only", action="store_true",
           help="compute nothing: write the page from the stored rows")
    option("--quiet", action="store_true", help="no progress on stderr")
    # fmt: on
    options = parser.parse_args(arguments)

    def work() -> tuple[str, Path | None]:
        outcome = run(
            options.name, options.preset, output=options.output, work=options.work,
            data=options.data, seeds=options.seed or (0,), only=options.only,
            max_steps=options.max_steps, render_only=options.render_only,
            verbose=not options.quiet,
        )  # fmt: skip
        return f"{len(outcome.rows)} rows, {outcome.n_new} new", outcome.page

    return report(work)


def report(work: Callable[[], tuple[str, Path | None]]) -> int:
    """Do work that gives a summary and a page; print these, or what went wrong; the exit code."""
    start = time.monotonic()
    try:
        summary, page = work()
    except (HashcadeError, ValueError) as error:
        hint = getattr(error, "hint", None)
        print(f"error: {error}" + (f"; {hint}" if hint else ""), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        return 130
    print(f"{summary}, {duration(time.monotonic() - start)}")
    print(f"page: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
