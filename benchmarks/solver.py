"""The code solver against OR-tools, on the grid of supplement B of the paper.

    python benchmarks/solver.py            # all of it, about five minutes on one core
    python benchmarks/solver.py --quick    # a small part, to see that it runs
    python benchmarks/solver.py --from-json docs/results/solver.json    # draw again

Measured for every cell, that is one kind of problem at one size:
- hashcade: `hashcade.solve_level`, the whole public call, input checks included;
- OR-tools: its solve call only, on the network of the paper, built beforehand.
Each repetition is a new problem, so that no cache and no branch predictor can learn it. Small
problems come in blocks: both solvers run each block, and take turns in going first, so that neither
is slowed down because the other evicted its code from the cache. Then their energies are compared.

Progress goes to stderr; every cell and a summary with its targets go to stdout. A missed target
is reported and no error; an energy that is not equal is one (exit code 1).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

# Before numpy is imported: threads of a matrix product linger and disturb what is timed next.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from _score_sets import ROOT, RandomScores, ScoreSet, load_cifar100
from _solver_figure import draw
from _solver_problems import GRID_CLASSES, GRID_WIDTHS, Problem, all_cells, compare_energies
from _solver_report import markdown_page, terminal_text
from _solver_results import PENALTIES, Cell, CellResult, Run, read_json, write_json
from _timing import Progress, import_seconds, machine, quartiles, run_python, say, timed, versions

BLOCK = 8  # problems of a block, at most ...
BLOCK_SCORES = 262_144  # ... and the scores in it
SECONDS_PER_SCORE = 3e-6  # of a repetition, roughly; only to foretell the time left

# ---------------------------------------------------------------------------- the measurement


def measure_cell(
    cell: Cell, scores: ScoreSet, *, seconds: float, at_least: int, seed: int
) -> CellResult:
    """Repeat with new problems until ``seconds`` are over, and ``at_least`` so many times."""
    ours, peer, gaps, violations = [], [], [], []
    name = str(cell).encode()  # a part of the seed: no two cells have a problem in common
    block = max(1, min(BLOCK, BLOCK_SCORES // cell.size))
    start = time.perf_counter()
    while len(ours) < at_least or time.perf_counter() - start < seconds:
        repetitions = range(len(ours), len(ours) + block)
        problems = [Problem(cell, scores, [seed, r, *name]) for r in repetitions]
        networks = [problem.network() for problem in problems]
        if len(ours) // block % 2 == 0:
            our_runs = [timed(problem.ours) for problem in problems]
            peer_runs = [timed(network.solve) for network in networks]
        else:
            peer_runs = [timed(network.solve) for network in networks]
            our_runs = [timed(problem.ours) for problem in problems]
        ours += [1e3 * seconds_taken for _, seconds_taken in our_runs]
        peer += [1e3 * seconds_taken for _, seconds_taken in peer_runs]
        for r, problem, network, (codes, _) in zip(
            repetitions, problems, networks, our_runs, strict=True
        ):
            gap, violation = compare_energies(problem, codes, network)
            gaps.append(abs(gap))
            if violation:
                violations.append(f"repetition {r}: {violation}")
    return _cell_result(cell, ours, peer, gaps, violations)


def _cell_result(
    cell: Cell,
    ours: Sequence[float],
    peer: Sequence[float],
    gaps: Sequence[float],
    violations: Sequence[str],
) -> CellResult:
    ratios = [b / a for a, b in zip(ours, peer, strict=True)]
    our_first, our_median, our_third = quartiles(ours)
    peer_first, peer_median, peer_third = quartiles(peer)
    ratio_first, _, ratio_third = quartiles(ratios)
    return CellResult(
        **vars(cell),
        repetitions=len(ours),
        ours_ms=our_median,
        ours_quartiles_ms=(our_first, our_third),
        ortools_ms=peer_median,
        ortools_quartiles_ms=(peer_first, peer_third),
        ratio=peer_median / our_median,
        ratio_quartiles=(ratio_first, ratio_third),
        ratio_range=(min(ratios), max(ratios)),
        energies_equal=not violations,
        largest_energy_gap=max(gaps),
        energy_violations=tuple(violations),
    )


def measure_cells(
    cells: Sequence[Cell], sets: dict[str, ScoreSet], *, seconds: float, quick: bool, seed: int
) -> Iterator[CellResult]:
    """Measure one cell after the other."""
    at_least = [5 if c.on_grid else 1 if quick else 3 for c in cells]
    plan = list(zip(cells, at_least, strict=True))
    progress = Progress([max(seconds, n * SECONDS_PER_SCORE * c.size) for c, n in plan], "cells")
    for c, n in plan:
        yield measure_cell(c, sets[c.score_set], seconds=seconds, at_least=n, seed=seed)
        progress.step()


def warm_up(sets: dict[str, ScoreSet], penalties: Sequence[str]) -> None:
    """Compile or load all kernels, and let OR-tools solve once."""
    for cell in all_cells(list(sets), penalties, quick=True):
        if (cell.n_classes, cell.width) == (GRID_CLASSES[0], GRID_WIDTHS[0]):
            measure_cell(cell, sets[cell.score_set], seconds=0, at_least=1, seed=2**31)


FIRST_CALL = """
import time
start = time.perf_counter()
from hashcade import solve_level
imported = time.perf_counter()
solve_level([[0.9, 0.2, 0.0], [0.8, 0.7, 0.1]], collision_penalty=0.5)
end = time.perf_counter()
print(end - imported, end - start)
"""


def first_call_seconds(repetitions: int = 3) -> tuple[float, float]:
    """Seconds of the first call of a process, alone and with the import of its name."""
    run_python(FIRST_CALL)  # whatever is not compiled yet is compiled here
    runs = [run_python(FIRST_CALL)[0].split() for _ in range(repetitions)]
    alone, with_import = (
        statistics.median(map(float, column)) for column in zip(*runs, strict=True)
    )
    return alone, with_import


# -------------------------------------------------------------------------------- the program


def measure(options: argparse.Namespace) -> Run:
    """The whole run."""
    sets, skipped = load_score_sets(options.scores, options.images_per_class)
    penalties = list(PENALTIES) if options.penalties == "both" else [options.penalties]
    cells = all_cells(list(sets), penalties, options.quick)
    seconds = options.cell_seconds
    if seconds is None:
        seconds = 0.1 if options.quick else 0.5
    say("first call and import, in fresh processes")
    first_call, first_call_with_imports = first_call_seconds()
    import_time = import_seconds("hashcade")
    say("warming up")
    warm_up(sets, penalties)
    results = measure_cells(cells, sets, seconds=seconds, quick=options.quick, seed=options.seed)
    return Run(
        date=date.today().isoformat(),
        settings={
            "command": command_of(options),
            "penalties": penalties,
            "score_sets": list(sets),
            "images_per_class": options.images_per_class,
            "cell_seconds": seconds,
            "seed": options.seed,
            "quick": options.quick,
        },
        versions=versions("hashcade", "numpy", "numba", "ortools"),
        machine=machine(),
        skipped=tuple(skipped),
        import_seconds=import_time,
        first_call_seconds=first_call,
        first_call_with_imports_seconds=first_call_with_imports,
        cells=tuple(results),
    )


def load_score_sets(wanted: str, images_per_class: int) -> tuple[dict[str, ScoreSet], list[str]]:
    """Score sets by name, and reasons for those that are not there."""
    sets: dict[str, ScoreSet] = {}
    skipped = []
    if wanted in ("random", "both"):
        sets["random"] = RandomScores()
    if wanted in ("cifar100", "both"):
        try:
            sets["cifar100"] = load_cifar100(images_per_class)
        except FileNotFoundError as missing:
            skipped.append(f"cifar100: {missing}")
            say(f"score set left out: {skipped[-1]}")
        except ValueError as error:
            PARSER.error(str(error))
    if not sets:
        PARSER.error("no score set is left to measure with")
    return sets, skipped


def command_of(options: argparse.Namespace) -> str:
    """The command with the settings that matter: not where its results go."""
    settings = ("scores", "penalties", "images_per_class", "cell_seconds", "seed")
    changed = [
        f"--{name.replace('_', '-')} {getattr(options, name)}"
        for name in settings
        if getattr(options, name) != PARSER.get_default(name)
    ]
    quick = ["--quick"] if options.quick else []
    return " ".join(["python benchmarks/solver.py", *quick, *changed])


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a small part in about 20 s; its results are written only with --out",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the results; default: docs/results"
    )
    parser.add_argument(
        "--from-json",
        type=Path,
        metavar="FILE",
        help="measure nothing: make the page and the figure again from stored results, beside "
        "them or in --out",
    )
    parser.add_argument(
        "--scores",
        choices=["random", "cifar100", "both"],
        default="both",
        help="random directions; class means of real embeddings (from the folder $HASHCADE_DATA "
        "or ../shared/data, left out if they are not there); or both (default)",
    )
    parser.add_argument(
        "--penalties",
        choices=[*PENALTIES, "both"],
        default="both",
        help="those of the authors for their triplet loss (alpha 50, beta 0.5), for their npairs "
        "loss (alpha 50, beta 0.05), or both (default)",
    )
    parser.add_argument(
        "--images-per-class",
        type=int,
        default=2,
        metavar="M",
        help="images in a class mean of cifar100; default 2, as in the paper's batches. More of "
        "them make repeated classes nearly equal, which is harder (try 80); the files are then "
        "called solver-M-images.*",
    )
    parser.add_argument(
        "--cell-seconds",
        type=float,
        metavar="S",
        help="repeat every cell for so long, but at least 5 times (3 times beyond the grid); "
        "default 0.5, with --quick 0.1",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the random problems; default 0"
    )
    return parser


PARSER = make_parser()


def main() -> int:
    options = PARSER.parse_args()
    stem = "solver"
    if options.from_json:
        run = read_json(options.from_json)
        folder, stem = options.out or options.from_json.parent, options.from_json.stem
    else:
        if options.images_per_class != PARSER.get_default("images_per_class"):
            stem = f"solver-{options.images_per_class}-images"
        folder = options.out or (None if options.quick else ROOT / "docs" / "results")
        run = measure(options)
    print(terminal_text(run))
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        if not options.from_json:
            write_json(run, folder / f"{stem}.json")
        (folder / f"{stem}.md").write_text(markdown_page(run, f"{stem}.png"))
        draw(run, folder / f"{stem}.png")
        say(f"results are in {folder / stem}.json, .md and .png")
    return 1 if run.unequal else 0


if __name__ == "__main__":
    sys.exit(main())
