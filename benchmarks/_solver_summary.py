"""The solver benchmark with its targets, from a stored run. Nothing is measured here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from _solver_results import CellResult, Run

MEAN_RATIO = 20.0  # at least, geometric mean over the grid
CELL_RATIO = 5.0  # at least, in every cell of the grid
LARGE_RATIO = 10.0  # at least, beyond the grid
EXPONENT = 1.0  # at most, of n_classes and of width
FIRST_CALL = 1.0  # seconds, under
IMPORT = 0.3  # seconds, under


@dataclass(frozen=True)
class Line:
    """A line of the summary. Without a target it only informs."""

    what: str
    measured: str
    target: str = ""
    is_met: bool = True

    @property
    def verdict(self) -> str:
        return "" if not self.target else "ok" if self.is_met else "MISSED"


def summary(run: Run) -> list[Line]:
    """All results with their targets."""
    n_unequal = len(run.unequal)
    return [
        Line("cells with unequal energy", f"{n_unequal} of {len(run.cells)}", "0", n_unequal == 0),
        *_ratio_lines(run),
        *_growth_lines(run),
        Line(
            "first call of a process",
            f"{run.first_call_seconds:.2f} s",
            f"< {FIRST_CALL:g} s",
            run.first_call_seconds < FIRST_CALL,
        ),
        Line(
            "the same including `from hashcade import solve_level`",
            f"{run.first_call_with_imports_seconds:.2f} s",
        ),
        Line(
            "`import hashcade`",
            f"{run.import_seconds:.3f} s",
            f"< {IMPORT:g} s",
            run.import_seconds < IMPORT,
        ),
    ]


def _ratio_lines(run: Run) -> Iterable[Line]:
    mean = geometric_mean(run.grid)
    yield Line("ratio, geometric mean", f"{mean:.1f}", f"≥ {MEAN_RATIO:g}", mean >= MEAN_RATIO)
    for name, cells in by_conditions(run.grid):
        yield Line(f"ratio, geometric mean, {name}", f"{geometric_mean(cells):.1f}")
    smallest = min(run.grid, key=lambda c: c.ratio)
    n_under = sum(c.ratio < CELL_RATIO for c in run.grid)
    yield Line(
        "smallest ratio of a cell",
        f"{smallest.ratio:.2f} ({smallest}); {n_under} of {len(run.grid)} cells are "
        f"under {CELL_RATIO:g}",
        f"≥ {CELL_RATIO:g}",
        n_under == 0,
    )
    for cell in run.beyond_grid:
        is_met = cell.ratio >= LARGE_RATIO
        yield Line(f"ratio, {cell}", f"{cell.ratio:.1f}", f"≥ {LARGE_RATIO:g}", is_met)


def _growth_lines(run: Run) -> Iterable[Line]:
    kinds = sorted({(c.level, c.sparsity) for c in run.grid})
    groups = [("", run.grid)] + [
        (
            f", level {level}, sparsity {sparsity}",
            [c for c in run.grid if (c.level, c.sparsity) == (level, sparsity)],
        )
        for level, sparsity in kinds
    ]
    for name, cells in groups:
        ours = exponents(cells, "ours_ms")
        peer = exponents(cells, "ortools_ms")
        is_met = all(e <= EXPONENT for e in ours)
        measured = f"{_power(*ours)} (OR-tools: {_power(*peer)})"
        yield Line(f"growth{name}", measured, f"each ≤ {EXPONENT:g}", is_met)
    for level in sorted({c.level for c in run.beyond_grid}):
        line = _beyond_grid_growth(run, level)
        if line:
            yield line


def _beyond_grid_growth(run: Run, level: int) -> Line | None:
    """Growth from the largest cell of the grid to the one beyond it."""
    large = [c for c in run.beyond_grid if c.level == level]
    size = max(c.size for c in run.grid)
    conditions = {(c.score_set, c.penalties, c.sparsity) for c in large}
    corner = [
        c
        for c in run.grid
        if c.level == level
        and c.size == size
        and (c.score_set, c.penalties, c.sparsity) in conditions
    ]
    if len(corner) != len(large):
        return None
    start, end = corner[0], large[0]
    return Line(
        f"growth from {start.n_classes} × {start.width} to {end.n_classes} × {end.width}, "
        f"level {level}",
        f"{_mean_growth(corner, large, 'ours_ms'):.1f} times the time "
        f"(OR-tools: {_mean_growth(corner, large, 'ortools_ms'):.1f}) "
        f"for {end.size / start.size:g} times the scores",
    )


def _mean_growth(start: Sequence[CellResult], end: Sequence[CellResult], time: str) -> float:
    logs = [[math.log(getattr(c, time)) for c in cells] for cells in (start, end)]
    return math.exp(float(np.mean(logs[1]) - np.mean(logs[0])))


def _power(n_classes: float, width: float) -> str:
    return f"n_classes^{n_classes:.2f} · width^{width:.2f}"


def geometric_mean(cells: Sequence[CellResult]) -> float:
    """Geometric mean of the cells' ratios."""
    return math.exp(float(np.mean([math.log(c.ratio) for c in cells])))


def exponents(cells: Sequence[CellResult], time: str) -> tuple[float, float]:
    """Exponents a, b of the least squares fit log time = const + a log n_classes + b log width.

    The cells are a full grid for each kind of problem, so one constant for all kinds gives the
    same exponents as a constant for each.
    """
    logs = np.log([[c.n_classes, c.width] for c in cells])
    logs -= logs.mean(axis=0)
    times = np.log([getattr(c, time) for c in cells])
    a, b = np.linalg.lstsq(logs, times - times.mean(), rcond=None)[0]
    return float(a), float(b)


def by_conditions(cells: Sequence[CellResult]) -> list[tuple[str, list[CellResult]]]:
    """Cells of each score set and penalties, under the name of the two."""
    sets = dict.fromkeys(c.score_set for c in cells)
    penalties = dict.fromkeys(c.penalties for c in cells)
    return [
        (f"{s}, {p}", [c for c in cells if (c.score_set, c.penalties) == (s, p)])
        for s, p in product(sets, penalties)
    ]
