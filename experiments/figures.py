"""Plots of stored results. Each function draws a figure, writes it to a file and returns it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.rows import ResultRow
from experiments.tables import METHODS, SEARCH_METRICS

_STYLES = {  # colour and marker, the same in every plot
    "metric": ("black", "_"),
    "lsh": ("tab:brown", "v"),
    "dch": ("tab:purple", "^"),
    "th": ("tab:gray", "x"),
    "vq": ("tab:blue", "s"),
    "vq-train": ("tab:blue", "s"),
    "vq-test": ("tab:cyan", "D"),
    "flat": ("tab:green", "P"),
    "softmax": ("limegreen", "X"),
    "ours-r": ("tab:olive", "<"),
    "ours": ("tab:orange", "o"),
    "ours-end-to-end": ("tab:orange", "D"),
    "ours+": ("tab:red", "*"),
    "prototype": ("crimson", "p"),
    "prototype-learned": ("darkred", "H"),
    "ours+adapt": ("tab:pink", "h"),
}
PANELS = ("pr_1", "pr_16")
Point = tuple[float, float]


def curve_points(
    rows: Iterable[ResultRow], *, loss: str, database: str, metric: str
) -> dict[str, list[Point]]:
    """Points (SUF, metric) of each method, by SUF: all sparsities and variants, mean over seeds.

    The SUF is that of the same number of neighbours where a row has it (``suf_16`` for
    ``pr_16``): candidates of the buckets that were visited to fill up count.
    """
    groups: dict[tuple[str, int, str], list[Point]] = {}
    for row in rows:
        key = row.key
        if (key.loss, key.database) == (loss, database) and metric in row.metrics:
            speedup = row.metrics.get(metric.replace("pr_", "suf_"), row.metrics["suf"])
            place = (key.method, key.sparsity, key.variant)
            groups.setdefault(place, []).append((speedup, row.metrics[metric]))
    points: dict[str, list[Point]] = {}
    for (method, _, _), values in groups.items():
        speedup, height = np.mean(values, axis=0)
        points.setdefault(method, []).append((float(speedup), float(height)))
    return {method: sorted(points[method]) for method in METHODS if method in points}


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both, by SUF."""
    best: list[Point] = []
    for speedup, height in sorted(points, reverse=True):
        if not best or height > best[-1][1]:
            best.append((speedup, height))
    return best[::-1]


def height_at(points: Sequence[Point], speedup: float) -> float | None:
    """The best metric with at least this SUF; None if there is none.

    A step function: no table is assumed between two that were measured.
    """
    return max((height for suf, height in points if suf >= speedup), default=None)


def plot_precision_speedup(
    path: Path,
    rows: Iterable[ResultRow],
    *,
    loss: str,
    database: str,
    title: str = "",
    paper: Mapping[str, Mapping[str, float]] | None = None,
) -> Figure:
    """Draw precision against SUF for all methods: points, and the line of the best ones.

    There is a panel for each of ``PANELS``. The paper's values by method are empty marks.
    """
    stored = list(rows)
    canvas = Figure(figsize=(5.2 * len(PANELS), 4.4), layout="constrained")
    for axes, name in zip(np.ravel(canvas.subplots(1, len(PANELS))), PANELS, strict=True):
        curves = curve_points(stored, loss=loss, database=database, metric=name)
        for method, points in curves.items():
            colour, marker = _STYLES[method]
            if method == "metric":
                axes.axhline(points[0][1], color=colour, linewidth=0.8, linestyle=":")
            best = frontier(points)
            axes.plot(*zip(*best, strict=True), color=colour, linewidth=1.2, alpha=0.8)
            axes.plot(*zip(*points, strict=True), marker, color=colour, label=METHODS[method],
                      markersize=9 if marker == "*" else 5)  # fmt: skip
        for method, values in (paper or {}).items():
            if name in values and method in _STYLES:
                colour, marker = _STYLES[method]
                axes.plot(values["suf"], values[name], marker, markersize=7,
                          markerfacecolor="none", markeredgecolor=colour)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlabel("SUF (items / candidates)")
        axes.set_ylabel(f"{SEARCH_METRICS.get(name, name)}, %")
        axes.grid(visible=True, which="both", alpha=0.25)
        axes.legend(fontsize=7)
    canvas.suptitle(title, fontsize=10)
    return _save(canvas, path)


def plot_occupancy(
    path: Path, histograms: Mapping[str, Sequence[tuple[int, int]]], *, title: str = ""
) -> Figure:
    """Draw how full buckets are: sizes by rank, and the share of items in buckets of a size.

    A histogram has pairs (items in a bucket, buckets with so many).
    """
    canvas = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = canvas.subplots(1, 2)
    for method, histogram in histograms.items():
        colour, _ = _STYLES.get(method, ("tab:gray", "o"))
        pairs = np.array(sorted(histogram), dtype=np.int64).reshape(-1, 2)
        items = pairs[:, 0] * pairs[:, 1]
        label = f"{METHODS.get(method, method)} ({pairs[:, 1].sum()} buckets)"
        sizes = np.repeat(pairs[:, 0], pairs[:, 1])[::-1]
        left.plot(np.arange(1, len(sizes) + 1), sizes, color=colour, label=label, linewidth=1.2)
        share = 100.0 * items.cumsum() / max(1, items.sum())
        right.step(pairs[:, 0], share, where="post", color=colour, linewidth=1.2)
    left.set(xlabel="bucket, by size", ylabel="items in it", xscale="log", yscale="log")
    right.set(xlabel="items in the bucket", ylabel="items in such or smaller buckets, %")
    right.set_xscale("log")
    for axes in (left, right):
        axes.grid(visible=True, alpha=0.25)
    if histograms:
        left.legend(fontsize=7)
    canvas.suptitle(title, fontsize=10)
    return _save(canvas, path)


def plot_ablation(path: Path, sweeps: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw the effect of settings, a panel for each: points ``{"value": 0.05, "pr_1": 58.0}``."""
    n_columns = max(1, len(sweeps))
    canvas = Figure(figsize=(4.0 * n_columns, 3.6), layout="constrained")
    for axes, (setting, points) in zip(
        np.ravel(canvas.subplots(1, n_columns)), sweeps.items(), strict=False
    ):
        values = [point["value"] for point in points]
        positions = range(len(values))
        twin = axes.twinx()
        for name in (*PANELS, "suf"):
            panel = twin if name.startswith("suf") else axes
            style = "--" if name.startswith("suf") else "-"
            heights = [point[name] for point in points]
            panel.plot(positions, heights, style, marker="o", markersize=4, linewidth=1.2,
                       label=SEARCH_METRICS.get(name, name),
                       color="0.5" if name.startswith("suf") else None)  # fmt: skip
        axes.set_xticks(list(positions), [f"{value:g}" if isinstance(value, float) else str(value)
                                          for value in values])  # fmt: skip
        axes.set(xlabel=setting, ylabel="precision, %")
        twin.set_ylabel("SUF")
        lines = [*axes.get_lines(), *twin.get_lines()]
        axes.legend(lines, [line.get_label() for line in lines], fontsize=7)
        axes.grid(visible=True, alpha=0.25)
    return _save(canvas, path)


def plot_solver_seconds(
    path: Path, seconds: Mapping[str, Mapping[tuple[int, int], float]]
) -> Figure:
    """Draw seconds by (classes, width) of each solver, a panel per number of classes."""
    n_classes = sorted({classes for grid in seconds.values() for classes, _ in grid})
    canvas = Figure(figsize=(3.2 * len(n_classes), 3.4), layout="constrained")
    panels = np.ravel(canvas.subplots(1, len(n_classes), sharey=True))
    for axes, classes in zip(panels, n_classes, strict=True):
        for solver, grid in seconds.items():
            points = sorted((width, 1e3 * s) for (n, width), s in grid.items() if n == classes)
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=solver)
        axes.set(title=f"{classes} classes", xlabel="width d", xscale="log", yscale="log")
        axes.grid(visible=True, which="both", alpha=0.25)
    panels[0].set_ylabel("milliseconds")
    panels[0].legend(fontsize=7)
    return _save(canvas, path)


def _save(canvas: Figure, path: Path) -> Figure:
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=120)
    return canvas
