"""The figure of the solver benchmark, from a stored run: supplement B of the paper, and growth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _solver_results import CellResult, Run
from _solver_summary import exponents
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

# Supplement B: average seconds of OR-tools per mini-batch, by n_classes, over PAPER_WIDTHS.
PAPER_WIDTHS = (16, 32, 64, 128)
PAPER_SECONDS = {
    64: (0.00970, 0.01895, 0.03714, 0.07361),
    128: (0.01952, 0.03868, 0.07517, 0.15410),
    256: (0.03956, 0.07795, 0.15434, 0.31331),
    512: (0.08018, 0.15851, 0.32678, 0.64261),
}
OURS = {"linestyle": "-", "marker": "o"}
ORTOOLS = {"linestyle": "--", "marker": "s"}
PAPER = {"linestyle": ":", "marker": "^"}


def draw(run: Run, file: Path) -> None:
    """Write the figure."""
    figure = Figure(figsize=(11, 9.5), layout="constrained")
    panels = figure.subplots(2, 2, sharey="row")
    score_set, penalties = _shown(run)
    for level in (1, 2):
        cells = [
            c
            for c in run.grid
            if (c.level, c.sparsity, c.score_set, c.penalties) == (level, 1, score_set, penalties)
        ]
        _draw_supplement_b(panels[0, level - 1], cells)
        panels[0, level - 1].set_title(
            f"level {level}, sparsity 1 ({score_set} scores, {penalties} penalties)"
        )
        _draw_growth(panels[1, level - 1], [c for c in run.cells if c.level == level])
        panels[1, level - 1].set_title(f"level {level}, all cells")
    panels[0, 0].set_ylabel("time (ms)")
    panels[1, 0].set_ylabel("time (ms)")
    figure.savefig(file, dpi=120)


def _shown(run: Run) -> tuple[str, str]:
    """Score set and penalties of the upper row: real embeddings and triplet, if measured."""
    sets = {c.score_set for c in run.grid}
    penalties = {c.penalties for c in run.grid}
    return (
        "cifar100" if "cifar100" in sets else min(sets),
        "triplet" if "triplet" in penalties else min(penalties),
    )


def _draw_supplement_b(axes: Axes, cells: Sequence[CellResult]) -> None:
    """Time against width, a colour per n_classes, a style per solver."""
    shades = colormaps["viridis"](np.linspace(0.0, 0.85, len(PAPER_SECONDS)))
    colours = dict(zip(PAPER_SECONDS, shades, strict=True))
    for n_classes, seconds in PAPER_SECONDS.items():
        line = sorted((c for c in cells if c.n_classes == n_classes), key=lambda c: c.width)
        widths = [c.width for c in line]
        look = {"color": colours[n_classes], "markersize": 5}
        axes.plot(PAPER_WIDTHS, 1e3 * np.array(seconds), **look, **PAPER, linewidth=1)
        axes.plot(widths, [c.ortools_ms for c in line], **look, **ORTOOLS, linewidth=1.2)
        axes.plot(widths, [c.ours_ms for c in line], **look, **OURS, linewidth=2)
    axes.set(xscale="log", yscale="log", xlabel="width")
    axes.set_xticks(PAPER_WIDTHS, [str(w) for w in PAPER_WIDTHS])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    solvers = {"OR-tools, in the paper": PAPER, "OR-tools, here": ORTOOLS, "hashcade": OURS}
    handles = [
        *(Line2D([], [], color=colours[n], linewidth=4, label=f"n_classes = {n}") for n in colours),
        *(Line2D([], [], color="0.3", label=name, **look) for name, look in solvers.items()),
    ]
    axes.legend(handles=handles, fontsize=8, ncols=2, loc="upper left", framealpha=0.9)
    # Room for the legend above the lines of the paper; both panels share the axis.
    axes.set_ylim(top=6e3)


def _draw_growth(axes: Axes, cells: Sequence[CellResult]) -> None:
    """Time against the number of scores, with straight lines of proportional growth."""
    grid = [c for c in cells if c.on_grid]
    sizes = np.array(sorted({c.size for c in cells}))
    for name, time, colour in (
        ("OR-tools", "ortools_ms", "tab:orange"),
        ("hashcade", "ours_ms", "tab:blue"),
    ):
        times = np.array([getattr(c, time) for c in cells])
        a, b = exponents(grid, time)
        label = f"{name}: fit n_classes^{a:.2f} · width^{b:.2f}"
        axes.plot([c.size for c in cells], times, ".", color=colour, alpha=0.5, label=label)
        # Through the middle of the smallest cells: what lies below has grown more slowly.
        start = np.median(times[[c.size == sizes[0] for c in cells]])
        axes.plot(sizes, start * sizes / sizes[0], color=colour, linewidth=1)
    axes.plot([], [], color="0.5", linewidth=1, label="growth like n_classes · width")
    axes.set(xscale="log", yscale="log", xlabel="n_classes · width")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")
