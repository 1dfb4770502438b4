"""Where we stand: against the paper's figures, against lines to reach, and against each other."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hashcade.report._paper import paper_figures
from hashcade.report._plots import curve_points, height_at
from hashcade.report._row import ResultRow
from hashcade.report._table import METHODS, SEARCH_FIGURES

_COMPARED = ("suf", "pr_1", "pr_4", "pr_16")
_SPEEDUPS = (20, 30, 50, 75, 97, 150, 200, 300)
_RIVALS = ("vq", "vq-train", "vq-test", "lsh", "dch", "th", "flat")
_NAMES = {**SEARCH_FIGURES, "nmi": "NMI"}
_MOST_LISTED = 16  # cells under the paper's: more are no news one by one


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line to reach: a figure of a row must be at least so much."""

    method: str
    loss: str
    sparsity: int
    database: str
    figure: str
    at_least: float


def _lines(database: str, figures: dict[str, float]) -> list[Line]:
    return [
        Line(method="ours+", loss="npairs", sparsity=1, database=database, figure=name, at_least=v)
        for name, v in figures.items()
    ]


LINES: dict[tuple[str, str], list[Line]] = {
    ("cifar100", "transfer"): [
        *_lines("test", {"suf": 97, "pr_1": 61.5, "pr_4": 60.5, "pr_16": 58.5, "nmi": 71.3}),
        *_lines("train", {"suf": 97, "pr_1": 66.5, "pr_4": 65.5, "pr_16": 65.0, "nmi": 91}),
    ],
    ("cifar100", "cpu"): [
        Line(method="ours", loss=loss, sparsity=1, database="test", figure="suf", at_least=90)
        for loss in ("npairs", "triplet")
    ],
}


def lines_reached(rows: Sequence[ResultRow], experiment: str, preset: str) -> list[str]:
    """A line of Markdown per line to reach."""
    found = []
    for line in LINES.get((experiment, preset), []):
        where = (line.method, line.loss, line.sparsity, line.database)
        value = mean_figure(rows, *where, line.figure)
        name = f"{METHODS[line.method]}, {line.loss}, k_s = {line.sparsity}, {line.database}"
        wanted = f"{_NAMES[line.figure]} ≥ {line.at_least:g}"
        if value is None:
            found.append(f"- {name}: {wanted}: not measured yet")
        else:
            verdict = "reached" if value >= line.at_least else "**not reached**"
            found.append(f"- {name}: {wanted}: {value:.2f}, {verdict}")
    return found


def against_paper(
    rows: Sequence[ResultRow], experiment: str, method: str, losses: Iterable[str],
    databases: Iterable[str],
) -> str:  # fmt: skip
    """How many cells of a method are at or above the paper's Ours, and which are under it."""
    over, under = 0, []
    for loss in losses:
        for database in databases:
            for sparsity in (1, 2, 3, 4):
                paper = paper_figures(
                    experiment, loss=loss, method="ours", sparsity=sparsity, database=database
                )
                for figure in _COMPARED:
                    value = mean_figure(rows, method, loss, sparsity, database, figure)
                    if value is None or figure not in paper:
                        continue
                    if value >= paper[figure]:
                        over += 1
                    else:
                        under.append(
                            f"{loss} k_s = {sparsity} {database} {_NAMES[figure]} "
                            f"{value:.2f} ({paper[figure]:.2f})"
                        )
    if not over and not under:
        return ""
    text = (
        f"{METHODS[method]} is at or above the paper's Ours in {over} of {over + len(under)} cells"
    )
    if len(under) > _MOST_LISTED:
        return f"{text}; the tables show where it is under it."
    return f"{text}; under it in: {'; '.join(under)}." if under else f"{text}."


def against_rivals(
    rows: Sequence[ResultRow], *, loss: str, database: str, method: str = "ours+"
) -> tuple[str, list[str]]:
    """Compare at several SUF: a Markdown table, and where the method is not above all others."""
    head = "| SUF at least | figure | " + METHODS[method] + " | best other | margin |"
    table = [head, "|---:|---|---:|---:|---:|"]
    lost = []
    for figure in ("pr_1", "pr_16"):
        points = curve_points(rows, loss=loss, database=database, figure=figure)
        for speedup in _SPEEDUPS:
            ours = height_at(points.get(method, []), speedup)
            others = [
                (height, name)
                for name in _RIVALS
                if (height := height_at(points.get(name, []), speedup)) is not None
            ]
            if ours is None and not others:
                continue
            best, rival = max(others, default=(None, ""))
            named = "–" if best is None else f"{best:.2f} ({METHODS[rival]})"
            margin = "–" if ours is None or best is None else f"{ours - best:+.2f}"
            mine = "–" if ours is None else f"{ours:.2f}"
            table.append(f"| {speedup} | {_NAMES[figure]} | {mine} | {named} | {margin} |")
            if best is not None and (ours is None or ours < best):
                lost.append(f"{_NAMES[figure]} at SUF {speedup} ({METHODS[rival]}, {margin})")
    return "\n".join(table) + "\n", lost


def mean_figure(
    rows: Iterable[ResultRow], method: str, loss: str, sparsity: int, database: str, figure: str
) -> float | None:
    """Mean over the seeds of a figure of the tables; None if there is none."""
    wanted = (method, loss, sparsity, database, "")
    values = [
        row.figures[figure]
        for row in rows
        if (row.key.method, row.key.loss, row.key.sparsity, row.key.database, row.key.variant)
        == wanted
        and figure in row.figures
    ]
    return statistics.fmean(values) if values else None


def at_own_speedup(
    rows: Sequence[ResultRow], *, loss: str, database: str, method: str, rival: str
) -> list[str]:
    """Whether a method is under a rival at its own SUF, for every row of the tables."""
    found = []
    for figure in ("pr_1", "pr_4", "pr_16"):
        points = curve_points(rows, loss=loss, database=database, figure=figure).get(rival, [])
        for sparsity in (1, 2, 3):
            where = (method, loss, sparsity, database)
            height = mean_figure(rows, *where, figure)
            speedup = mean_figure(rows, *where, figure.replace("pr_", "suf_"))
            if height is None or speedup is None:
                continue
            there = height_at(points, speedup)
            name = f"{METHODS[method]} k_s = {sparsity}, SUF {speedup:.1f}, {_NAMES[figure]}"
            if there is None:
                found.append(f"- {name}: {height:.2f}; {METHODS[rival]} does not reach that SUF")
            else:
                verdict = "not under" if height >= there else "**under**"
                found.append(f"- {name}: {height:.2f}, {verdict} {METHODS[rival]} {there:.2f}")
    return found


def remapping(rows: Sequence[ResultRow], losses: Sequence[str], database: str) -> list[str]:
    """What remapping of labels does: Ours beside Ours-r on the seeds that both have."""
    found = []
    for loss in losses:
        seeds = {
            method: {
                row.key.seed
                for row in rows
                if (row.key.method, row.key.loss, row.key.sparsity) == (method, loss, 1)
                and (row.key.database, row.key.variant) == (database, "")
            }
            for method in ("ours", "ours-r")
        }
        common = seeds["ours"] & seeds["ours-r"]
        same = [row for row in rows if row.key.seed in common]
        figures = {
            method: [mean_figure(same, method, loss, 1, database, name) for name in ("suf", "pr_1")]
            for method in ("ours", "ours-r")
        }
        if not common or None in [*figures["ours"], *figures["ours-r"]]:
            continue
        sides = [
            f"{METHODS[method]} SUF {values[0]:.1f}, Pr@1 {values[1]:.2f}"
            for method, values in figures.items()
        ]
        equal = " (no code is shared, so there is nothing to remap)"
        note = equal if figures["ours"] == figures["ours-r"] else ""
        names = ", ".join(map(str, sorted(common)))
        found.append(f"- {loss}, k_s = 1, {database}, seed {names}: {'; '.join(sides)}{note}")
    return found
