"""The page and the plots of :mod:`experiments.curves`, written from its stored rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.figures import Point, frontier, height_at
from experiments.render import write_embeddings_page
from experiments.rows import ResultRow
from experiments.tables import Cell, Line, Table, table_block

POINTS, TIMES = "curves", "curves-times"  # the experiments of the rows
METHODS = {  # name, colour and marker
    "prototype": ("hashcade, prototypes", "tab:red", "*"),
    "softmax": ("softmax classifier", "tab:green", "s"),
    "means": ("nearest class mean", "tab:purple", "^"),
    "kmeans": ("k-means", "tab:blue", "o"),
    "hnsw": ("HNSW", "tab:brown", "D"),
}
OURS = "prototype"
HIGHEST = 5  # SUF at which methods are compared, times the number of classes
MARKS = (0.97, 1.8, 4.0)  # of the tables, times the number of classes: parts differ in size
RERANKS = ("given", "learned")
_DATABASES = {"train": "test in train", "test": "test in test"}
_CLOCKS = {"alone_us": "one query alone", "batch_us": "batch of 1,000"}
_SAME = 1.01  # as fast, or as large a speed-up, but for this factor
_READING = (
    "*Given*, *learned*: candidates are ranked by the given embeddings, or by the points of the "
    "prototype model, the same for all methods. A point is a setting that was measured, lines join "
    "those that no other of the method beats in both. SUF is that of the same number of "
    "neighbours. *Above ours* is a point of another method with a higher precision than every "
    "point of ours that is as good in SUF, or time, up to one part in a hundred; points that "
    "another of the same method beats are left out."
)


def write_page(out: Path, rows: Sequence[ResultRow]) -> Path:
    """Write ``curves.md`` and its plots from all stored rows."""
    title = "Curves: precision over SUF and over microseconds"
    blocks_of = partial(_data_set_blocks, out)
    return write_embeddings_page(out, "curves", title, _READING, rows, blocks_of)


def _data_set_blocks(out: Path, rows: Sequence[ResultRow]) -> list[str]:
    preset, title = rows[0].key.preset, rows[0].details["title"]
    metrics = sorted({m for row in rows for m in row.metrics if m.startswith("pr_")}, key=_number)
    databases = [name for name in _DATABASES if any(row.key.database == name for row in rows)]
    blocks: list[str] = []

    # ---- over SUF
    panels: dict[tuple[str, str, str], dict[str, list[Point]]] = {
        (database, rerank, metric): suf_points(rows, database, rerank, metric)
        for database in databases
        for rerank in RERANKS
        for metric in metrics
    }
    panels = {key: curves for key, curves in panels.items() if curves}
    picture = f"curves-{preset}-suf.png"
    heads = {key: f"{_DATABASES[key[0]]}, {key[1]}, {_name(key[2])}" for key in panels}
    _plot(out / picture, {heads[key]: curves for key, curves in panels.items()},
          "SUF (items / candidates)", f"{title}: precision over SUF", 2 * len(metrics))  # fmt: skip
    blocks += ["### Over SUF", f"![Precision over SUF, {title}]({picture})"]
    n_classes = rows[0].settings["data"]["n_classes"]
    marks = [20.0, *(factor * n_classes for factor in MARKS)]
    for database in databases:
        some = {key[1:]: value for key, value in panels.items() if key[0] == database}
        blocks += [f"{_DATABASES[database].capitalize()}: the best precision with at least a SUF.",
                   suf_table(some, marks).to_markdown().rstrip()]  # fmt: skip
    lines = [
        f"- {heads[key]}: {'; '.join(found) if found else 'nothing'}."
        for key, curves in panels.items()
        for found in [above_over_suf(curves, HIGHEST * n_classes)]
    ]
    blocks.append("Above ours:\n\n" + "\n".join(lines))

    # ---- over microseconds
    clocks: dict[str, dict[str, list[Point]]] = {
        f"{text}, {rerank}, {_name(metric)}": time_points(rows, rerank, metric, clock)
        for metric in metrics
        for rerank in RERANKS
        for clock, text in _CLOCKS.items()
    }
    clocks = {head: curves for head, curves in clocks.items() if curves}
    if clocks:
        picture = f"curves-{preset}-time.png"
        faster = {h: {m: _negated(p) for m, p in c.items()} for h, c in clocks.items()}
        _plot(out / picture, faster, "microseconds a query",
              f"{title}, test in train: precision over time", 2 * len(_CLOCKS))  # fmt: skip
        lines = [
            f"- {head}: {'; '.join(found) if found else 'nothing'}."
            for head, curves in clocks.items()
            for found in [above_over_time(curves)]
        ]
        blocks += ["### Over microseconds", f"![Precision over time, {title}]({picture})",
                   "Above ours:\n\n" + "\n".join(lines)]  # fmt: skip
    return blocks


# -- points ----------------------------------------------------------------------------------------


def suf_points(
    rows: Iterable[ResultRow], database: str, rerank: str, metric: str
) -> dict[str, list[Point]]:
    """Points (SUF, precision) of each method, means over seeds."""
    groups: dict[tuple[str, str], list[Point]] = {}
    suf = metric.replace("pr_", "suf_")
    for row in rows:
        key = row.key
        is_one = (key.experiment, key.database) == (POINTS, database)
        if is_one and f"rerank={rerank}," in key.variant and suf in row.metrics:
            place = (key.method, key.variant)
            groups.setdefault(place, []).append((row.metrics[suf], row.metrics[metric]))
    return _by_method(groups)


def time_points(
    rows: Sequence[ResultRow], rerank: str, metric: str, clock: str
) -> dict[str, list[Point]]:
    """Points (microseconds, precision) of each method, where both were measured."""
    times = {
        (row.key.method, row.key.variant): row.metrics[clock]
        for row in rows
        if row.key.experiment == TIMES
    }
    groups: dict[tuple[str, str], list[Point]] = {}
    for row in rows:
        place = (row.key.method, row.key.variant)
        if (row.key.experiment, row.key.database) != (POINTS, "train") or place not in times:
            continue
        if f"rerank={rerank}," in row.key.variant:
            groups.setdefault(place, []).append((times[place], row.metrics[metric]))
    return _by_method(groups)


def _by_method(groups: dict[tuple[str, str], list[Point]]) -> dict[str, list[Point]]:
    points: dict[str, list[Point]] = {}
    for (method, _), values in groups.items():
        x, height = np.mean(values, axis=0)
        points.setdefault(method, []).append((float(x), float(height)))
    return {method: sorted(points[method]) for method in METHODS if method in points}


def _negated(points: Sequence[Point]) -> list[Point]:
    """With less time for the larger number, as SUF is better where it is larger."""
    return [(-x, height) for x, height in points]


# -- verdicts --------------------------------------------------------------------------------------


def above_over_suf(curves: dict[str, list[Point]], most: float) -> list[str]:
    """Points of others, up to a SUF, that are above ours at theirs."""
    lines = []
    for method, points in curves.items():
        found = []
        for suf, height in frontier(points) if method != OURS else ():
            ours = height_at(curves.get(OURS, []), suf / _SAME)
            if suf > most:
                continue
            if ours is None:
                found.append(f"SUF {suf:.1f} {height:.2f} (ours: none)")
            elif round(height, 2) > round(ours, 2):
                found.append(f"SUF {suf:.1f} {height:.2f} ({ours:.2f})")
        if found:
            lines.append(f"{METHODS[method][0]} at {', '.join(found)}")
    return lines


def above_over_time(curves: dict[str, list[Point]]) -> list[str]:
    """Points of others that are above ours at their time, and those faster than all of ours."""
    ours = _negated(curves.get(OURS, []))
    lines = []
    for method, points in curves.items():
        found, faster = [], []
        for negative, height in frontier(_negated(points)) if method != OURS else ():
            best = height_at(ours, negative * _SAME)
            if best is None:
                faster.append((-negative, height))
            elif round(height, 2) > round(best, 2):
                found.append(f"{-negative:.0f} µs {height:.2f} ({best:.2f})")
        if faster:
            least = f"{min(x for x, _ in faster):.0f} to " if len(faster) > 1 else ""
            most, height = max(faster)
            found.append(f"faster than any of ours, {least}{most:.0f} µs, up to {height:.2f}")
        if found:
            lines.append(f"{METHODS[method][0]} at {', '.join(found)}")
    return lines


def suf_table(
    panels: dict[tuple[str, str], dict[str, list[Point]]], marks: Sequence[float]
) -> Table:
    """The height of the curves at a few SUF; ``panels`` by vectors and metric."""
    lines = []
    for metric in dict.fromkeys(metric for _, metric in panels):
        block: list[Line] = []
        for method, (name, _, _) in METHODS.items():
            cells = []
            for rerank in RERANKS:
                points = panels.get((rerank, metric), {}).get(method, [])
                heights = [height_at(points, mark) for mark in marks]
                cells += [Cell(() if height is None else (height,)) for height in heights]
            if any(cell.values for cell in cells):
                block.append(((_name(metric) if not block else "", name), cells))
        lines += table_block(block, mark_best=True)
    titles = tuple(f"{rerank}, SUF {mark:,.0f}" for rerank in RERANKS for mark in marks)
    return Table("", ("", "Method"), titles, tuple(lines))


# -- plots -----------------------------------------------------------------------------------------


def _plot(
    path: Path, panels: dict[str, dict[str, list[Point]]], x_label: str, title: str, n_columns: int
) -> None:
    """A panel for each; where x is negative, less is better."""
    n_rows = -(-len(panels) // n_columns)
    canvas = Figure(figsize=(3.7 * n_columns, 3.2 * n_rows + 0.7), layout="constrained")
    all_axes = np.ravel(canvas.subplots(n_rows, n_columns, squeeze=False))
    handles: dict[str, Any] = {}
    for axes, (head, curves) in zip(all_axes, panels.items(), strict=False):
        worst = min(x for points in curves.values() for x, _ in points)
        for method, points in curves.items():
            name, colour, marker = METHODS[method]
            line = frontier(points)
            line = [(worst, line[0][1]), *line]  # what is reached there is enough for less
            best = [(abs(x), height) for x, height in line]
            every = [(abs(x), height) for x, height in points]
            axes.plot(*zip(*best, strict=True), color=colour, linewidth=1.2)
            handles[name] = axes.plot(*zip(*every, strict=True), marker, color=colour, label=name,
                                      markersize=9 if marker == "*" else 4)[0]  # fmt: skip
        axes.set_xscale("log")
        extent = np.abs([x for points in curves.values() for x, _ in points])
        is_wide = extent.max() > 60 * extent.min()
        axes.xaxis.set_major_locator(LogLocator(subs=(1,) if is_wide else (1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(head, fontsize=9)
        axes.grid(visible=True, which="both", alpha=0.25)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    for axes in all_axes[::n_columns]:
        axes.set_ylabel("precision, %")
    for axes in all_axes[-n_columns:]:
        axes.set_xlabel(x_label)
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    canvas.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110)


def _name(metric: str) -> str:
    return f"Pr@{_number(metric)}"


def _number(metric: str) -> int:
    return int(metric[3:])
