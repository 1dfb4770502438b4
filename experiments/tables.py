"""Tables with the paper's results beside ours: Markdown, LaTeX and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.paper import paper_metrics
from experiments.rows import ResultRow

METHODS = {  # in the order of the paper's tables
    "metric": "Metric",
    "lsh": "LSH",
    "dch": "DCH",
    "th": "Th",
    "vq": "VQ",
    "vq-train": "VQ-train",
    "vq-test": "VQ-test",
    "flat": "Jeong & Song",
    "softmax": "Softmax classifier",
    "ours-r": "Ours-r",
    "ours": "Ours",
    "ours-end-to-end": "Ours, end to end",
    "ours+": "Ours+",
    "prototype": "Ours+, prototypes",
    "prototype-learned": "Ours+, prototypes, own vectors",
    "ours+adapt": "Ours+, adapted",
}
SEARCH_METRICS = {
    "suf": "SUF",
    "pr_1": "Pr@1",
    "pr_4": "Pr@4",
    "pr_16": "Pr@16",
    "suf_16": "SUF at Pr@16",
}
METRIC_NAMES = {**SEARCH_METRICS, "nmi": "NMI"}


@dataclass(frozen=True)
class Cell:
    """A metric over the seeds, possibly none of them, and the paper's."""

    values: tuple[float, ...]
    paper: float | None = None
    best: bool = False  # no other method of the block is better

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; None without a value."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def to_markdown(self) -> str:
        """``**58.12** ± 0.10 (58.28)``: ours, its spread, the paper's."""
        return self._text(missing="–", bold="**{}**", spread=" ± {:.2f}")

    def to_latex(self) -> str:
        """The same for LaTeX."""
        return self._text(missing="--", bold=r"\textbf{{{}}}", spread=r" $\pm$ {:.2f}")

    def _text(self, *, missing: str, bold: str, spread: str) -> str:
        ours = missing if self.mean is None else f"{self.mean:.2f}"
        if self.best:
            ours = bold.format(ours)
        if self.spread is not None:
            ours += spread.format(self.spread)
        return ours if self.paper is None else f"{ours} ({self.paper:.2f})"

    def to_plain(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "values": list(self.values),
            "mean": self.mean,
            "spread": self.spread,
            "paper": self.paper,
        }


Line = tuple[tuple[str, ...], Sequence[Cell]]  # entries of the naming columns, and cells


@dataclass(frozen=True)
class TableRow:
    """A line of a table: the entries of its naming columns, and its cells."""

    heads: tuple[str, ...]
    cells: tuple[Cell, ...]
    begins_block: bool = False


@dataclass(frozen=True)
class Table:
    """A table that can be written in three ways; ``heads`` are its naming columns."""

    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]

    def to_markdown(self) -> str:
        """A Markdown table, ending with a line break."""
        titles = [*self.heads, *self.columns]
        lines = [_line(titles), _line(["---"] * len(self.heads) + ["---:"] * len(self.columns))]
        lines += [_line([*r.heads, *(c.to_markdown() for c in r.cells)]) for r in self.rows]
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """A LaTeX table for the package booktabs, ending with a line break."""
        align = "l" * len(self.heads) + "r" * len(self.columns)
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\begin{{tabular}}{{{align}}}",
            r"\toprule",
            _latex_line([*self.heads, *self.columns]),
        ]
        for row in self.rows:
            if row.begins_block:
                lines.append(r"\midrule")
            lines.append(
                " & ".join([*map(_escaped, row.heads), *(c.to_latex() for c in row.cells)]) + r" \\"
            )
        lines += [
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_escaped(self.title)}}}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def to_plain(self) -> dict[str, Any]:
        """The table as plain values, for JSON."""
        return {
            "title": self.title,
            "rows": [
                {
                    **dict(zip(self.heads, row.heads, strict=True)),
                    **{
                        column: cell.to_plain()
                        for column, cell in zip(self.columns, row.cells, strict=True)
                    },
                }
                for row in self.rows
            ],
        }


# -- the tables --------------------------------------------------------------------------------


def search_table(rows: Iterable[ResultRow], *, experiment: str, loss: str, database: str) -> Table:
    """A table as the paper has it: methods by sparsity, SUF and Pr@k, mean and spread over seeds.

    Rows of other experiments, losses and databases, and variants, are left out.
    """
    groups: dict[tuple[int, str], list[ResultRow]] = {}
    for row in rows:
        key = row.key
        place = (key.experiment, key.loss, key.database, key.variant)
        if place == (experiment, loss, database, ""):
            groups.setdefault((key.sparsity, key.method), []).append(row)
    lines: list[TableRow] = []
    for sparsity in sorted({sparsity for sparsity, _ in groups}):
        block: list[Line] = []
        for method, label in METHODS.items():
            if (sparsity, method) in groups:
                paper = paper_metrics(
                    experiment, loss=loss, method=method, sparsity=sparsity, database=database
                )
                by_seed = sorted(groups[sparsity, method], key=lambda row: row.key.seed)
                cells = [
                    Cell(tuple(r.metrics[m] for r in by_seed if m in r.metrics), paper.get(m))
                    for m in SEARCH_METRICS
                ]
                block.append(((str(sparsity) if not block and sparsity else "", label), cells))
        lines += table_block(block, mark_best=len(block) > 1)
    title = f"{experiment}, {loss}, queries of test against {database}"
    return Table(title, ("k_s", "Method"), tuple(SEARCH_METRICS.values()), tuple(lines))


def nmi_table(
    rows: Iterable[ResultRow], *, experiment: str, losses: Sequence[str], databases: Sequence[str]
) -> Table:
    """The paper's table 3: NMI of the buckets at sparsity 1, a column per loss and database."""
    values: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    for row in rows:
        key = row.key
        in_table = (key.experiment, key.sparsity, key.variant) == (experiment, 1, "")
        if in_table and "nmi" in row.metrics:
            place = (key.method, key.loss, key.database)
            values.setdefault(place, []).append((key.seed, row.metrics["nmi"]))
    columns = [(loss, database) for loss in losses for database in databases]
    block: list[Line] = []
    for method, label in METHODS.items():
        cells = []
        for loss, database in columns:
            paper = paper_metrics(
                experiment, loss=loss, method=method, sparsity=1, database=database
            )
            by_seed = sorted(values.get((method, loss, database), []))
            cells.append(Cell(tuple(value for _, value in by_seed), paper.get("nmi")))
        if any(cell.values for cell in cells):
            block.append(((label,), cells))
    titles = tuple(f"{loss}, {database}" for loss, database in columns)
    lines = tuple(table_block(block, mark_best=True))
    return Table(f"{experiment}: NMI of the buckets", ("Method",), titles, lines)


def table_block(block: Sequence[Line], *, mark_best: bool) -> list[TableRow]:
    """Lines under a rule; the best of each column is marked, as far as the digits shown tell."""
    shown = [[None if c.mean is None else f"{c.mean:.2f}" for c in cells] for _, cells in block]
    best = [
        max((v for v in column if v), key=float, default=None)
        for column in zip(*shown, strict=True)
    ]
    return [
        TableRow(
            heads,
            tuple(
                replace(cell, best=mark_best and text is not None and text == top)
                for cell, text, top in zip(cells, texts, best, strict=True)
            ),
            begins_block=number == 0,
        )
        for number, ((heads, cells), texts) in enumerate(zip(block, shown, strict=True))
    ]


# -- the ablation ------------------------------------------------------------------------------

_VARIANTS = {
    "": "as in the tables",
    "joint_steps=0": "the book alone, not trained for it",
}
_SWEPT = {
    "depth": "depth",
    "sibling_penalty": "α (siblings)",
    "collision_penalty": "β (collisions)",
}


def ablation_table(rows: Sequence[ResultRow]) -> Table:
    """A line per variant, mean and spread over seeds."""
    groups: dict[tuple[str, str], list[ResultRow]] = {}
    for row in sorted(rows, key=lambda row: row.key.seed):
        groups.setdefault((row.key.method, row.key.variant), []).append(row)
    order = list(METHODS)
    lines = []
    previous = None
    for method, variant in sorted(
        groups, key=lambda k: (_setting(k[1]), order.index(k[0]), _value(k[1]))
    ):
        group = groups[method, variant]
        cells = tuple(Cell(tuple(r.metrics[name] for r in group)) for name in METRIC_NAMES)
        heads = (METHODS[method], _VARIANTS.get(variant, variant.replace(",", ", ")))
        lines.append(TableRow(heads, cells, begins_block=_setting(variant) != previous))
        previous = _setting(variant)
    title = "Ablation: npairs, k_s = 1, test against test"
    return Table(title, ("Method", "Changed"), tuple(METRIC_NAMES.values()), tuple(lines))


def ablation_sweeps(rows: Sequence[ResultRow]) -> dict[str, list[dict[str, Any]]]:
    """Points of the swept settings, for the plot."""
    sweeps: dict[str, list[dict[str, Any]]] = {}
    for name, title in _SWEPT.items():
        values: dict[float, list[ResultRow]] = {}
        for row in rows:
            if row.key.method == "ours" and _setting(row.key.variant) == name:
                values.setdefault(_value(row.key.variant), []).append(row)
        if values:
            sweeps[title] = [
                {
                    "value": value,
                    **{
                        metric: statistics.fmean(r.metrics[metric] for r in values[value])
                        for metric in METRIC_NAMES
                    },
                }
                for value in sorted(values)
            ]
    return sweeps


def _setting(variant: str) -> str:
    """Name of the first setting that is changed."""
    return variant.partition("=")[0]


def _value(variant: str) -> float:
    value = variant.partition("=")[2].partition(",")[0]
    return float(value) if value else 0.0


# -- helpers -----------------------------------------------------------------------------------


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    for sign in "&%_#":
        text = text.replace(sign, f"\\{sign}")
    return text
