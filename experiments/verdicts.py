"""Verdicts computed from the rows: against the paper, against exhaustive search and the baselines.

Each function returns lines of Markdown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiments.figures import curve_points, height_at
from experiments.paper import METRICS, paper_metrics
from experiments.rows import ResultRow, mean_metric
from experiments.tables import METHODS, METRIC_NAMES

_SPEEDUPS = (20, 30, 50, 75, 97, 150, 200, 300)
_BASELINES = ("vq", "vq-train", "vq-test", "lsh", "dch", "th", "flat", "softmax")
_MAX_LISTED = 16  # cells below the paper's: beyond that the tables are easier to read


def against_paper(
    rows: Sequence[ResultRow], experiment: str, method: str, losses: Iterable[str],
    databases: Sequence[str],
) -> list[str]:  # fmt: skip
    """How many cells of a method are at or above the paper's Ours, and which are below it."""
    over, below = 0, []
    for loss in losses:
        for database in databases:
            for sparsity in (1, 2, 3, 4):
                paper = paper_metrics(
                    experiment, loss=loss, method="ours", sparsity=sparsity, database=database
                )
                for metric in METRICS:
                    value = mean_metric(rows, method, loss, sparsity, database, metric)
                    if value is None or metric not in paper:
                        continue
                    if value >= paper[metric]:
                        over += 1
                    else:
                        below.append(
                            f"{loss} k_s = {sparsity} {database} {METRIC_NAMES[metric]} "
                            f"{value:.2f} ({paper[metric]:.2f})"
                        )
    if not over and not below:
        return []
    total = over + len(below)
    text = f"{METHODS[method]} is at or above the paper's Ours in {over} of {total} cells"
    if len(below) > _MAX_LISTED:
        return [f"{text}; the tables show where it is below."]
    return [f"{text}; below in: {'; '.join(below)}." if below else f"{text}."]


def against_exhaustive(
    rows: Sequence[ResultRow], losses: Iterable[str], databases: Sequence[str]
) -> list[str]:
    """Whether Ours finds as much as exhaustive search over the same vectors does."""
    lines = []
    for loss in losses:
        for database in databases:
            exact = mean_metric(rows, "metric", loss, 0, database, "pr_1")
            ours = mean_metric(rows, "ours", loss, 1, database, "pr_1")
            if exact is not None and ours is not None:
                verdict = "not below" if ours >= exact else "**below**"
                lines.append(
                    f"- Ours, {loss}, k_s = 1, {database}: Pr@1 {ours:.2f}, {verdict} exhaustive "
                    f"search on the same base ({exact:.2f})"
                )
    return lines


def against_classifier(
    rows: Sequence[ResultRow], losses: Iterable[str], databases: Sequence[str]
) -> list[str]:
    """Prototypes beside the softmax classifier and Ours+ at sparsity 1, by the same vectors."""
    lines = []
    for loss in losses:
        for database in databases:
            for metric in ("pr_1", "pr_16", "nmi"):
                ours, *others = (
                    mean_metric(rows, method, loss, 1, database, metric)
                    for method in ("prototype", "softmax", "ours+")
                )
                names = [
                    f"{'not below' if ours >= other else '**below**'} {METHODS[method]} {other:.2f}"
                    for method, other in zip(("softmax", "ours+"), others, strict=True)
                    if ours is not None and other is not None
                ]
                if names:
                    place = f"{loss}, k_s = 1, {database}, {METRIC_NAMES[metric]}"
                    lines.append(f"- {METHODS['prototype']}, {place}: {ours:.2f}, "
                                 + ", ".join(names))  # fmt: skip
    return lines


def against_baselines(rows: Sequence[ResultRow], *, loss: str, database: str) -> list[str]:
    """Compare Ours+ at several SUF: a table, and a sentence on where it is not above all."""
    head = f"| SUF at least | metric | {METHODS['ours+']} | best other | margin |"
    table = [head, "|---:|---|---:|---:|---:|"]
    lost = []
    for metric in ("pr_1", "pr_16"):
        points = curve_points(rows, loss=loss, database=database, metric=metric)
        for speedup in _SPEEDUPS:
            ours = height_at(points.get("ours+", []), speedup)
            others = [
                (height, name)
                for name in _BASELINES
                if (height := height_at(points.get(name, []), speedup)) is not None
            ]
            if ours is None and not others:
                continue
            best, baseline = max(others, default=(None, ""))
            other = "–" if best is None else f"{best:.2f} ({METHODS[baseline]})"
            margin = "–" if ours is None or best is None else f"{ours - best:+.2f}"
            mine = "–" if ours is None else f"{ours:.2f}"
            table.append(f"| {speedup} | {METRIC_NAMES[metric]} | {mine} | {other} | {margin} |")
            if best is not None and (ours is None or ours < best):
                place = f"{METRIC_NAMES[metric]} at SUF {speedup}"
                lost.append(f"{place} ({METHODS[baseline]}, {margin})")
    verdict = (
        f"{METHODS['ours+']} is not above all others in: {'; '.join(lost)}."
        if lost
        else f"{METHODS['ours+']} is at or above every other at each of these."
    )
    return [*table, "", verdict]


def at_same_speedup(
    rows: Sequence[ResultRow], *, loss: str, database: str, method: str, baseline: str
) -> list[str]:
    """Whether a method is below a baseline at its SUF, for every row of the tables."""
    lines = []
    for metric in ("pr_1", "pr_4", "pr_16"):
        points = curve_points(rows, loss=loss, database=database, metric=metric).get(baseline, [])
        for sparsity in (1, 2, 3):
            place = (method, loss, sparsity, database)
            height = mean_metric(rows, *place, metric)
            speedup = mean_metric(rows, *place, metric.replace("pr_", "suf_"))
            if height is None or speedup is None:
                continue
            other = height_at(points, speedup)
            name = f"{METHODS[method]} k_s = {sparsity}, SUF {speedup:.1f}, {METRIC_NAMES[metric]}"
            if other is None:
                lines.append(f"- {name}: {height:.2f}; {METHODS[baseline]} does not reach that SUF")
            else:
                verdict = "not below" if height >= other else "**below**"
                lines.append(f"- {name}: {height:.2f}, {verdict} {METHODS[baseline]} {other:.2f}")
    return lines


def effect_of_remapping(
    rows: Sequence[ResultRow], losses: Iterable[str], database: str
) -> list[str]:
    """Ours beside Ours-r, on the seeds that both have."""
    lines = []
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
        metrics = {
            method: [mean_metric(same, method, loss, 1, database, name) for name in ("suf", "pr_1")]
            for method in ("ours", "ours-r")
        }
        if not common or None in [*metrics["ours"], *metrics["ours-r"]]:
            continue
        sides = [
            f"{METHODS[method]} SUF {values[0]:.1f}, Pr@1 {values[1]:.2f}"
            for method, values in metrics.items()
        ]
        equal = " (no code is shared, so there is nothing to remap)"
        note = equal if metrics["ours"] == metrics["ours-r"] else ""
        names = ", ".join(map(str, sorted(common)))
        lines.append(f"- {loss}, k_s = 1, {database}, seed {names}: {'; '.join(sides)}{note}")
    return lines


def related_siblings(rows: Sequence[ResultRow]) -> list[str]:
    """How often sibling classes share a coarse class, by method and seed."""
    lines = []
    for row in rows:
        siblings = row.details.get("siblings")
        if not row.key.variant and row.key.sparsity == 1 and siblings and siblings["n_pairs"]:
            lines.append(
                f"- {METHODS[row.key.method]}, {row.key.loss}, seed {row.key.seed}: "
                f"{siblings['related']:.1f} % of {siblings['n_pairs']} pairs of sibling classes "
                f"share a coarse class, {siblings['chance']:.1f} % of all pairs do "
                f"(p = {siblings['p_value']:.2g} over random rearrangements)"
            )
    return lines
