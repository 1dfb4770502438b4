"""Tables with the paper's figures beside ours: Markdown, LaTeX and JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hashcade.report._paper import paper_figures
from hashcade.report._row import ResultRow

METHODS = {  # in the order of the paper's tables
    "metric": "Metric",
    "lsh": "LSH",
    "dch": "DCH",
    "th": "Th",
    "vq": "VQ",
    "vq-train": "VQ-train",
    "vq-test": "VQ-test",
    "flat": "Jeong & Song",
    "ours-r": "Ours-r",
    "ours": "Ours",
    "ours+": "Ours+",
    "ours+adapt": "Ours+, adapted",
}
SEARCH_FIGURES = {
    "suf": "SUF",
    "pr_1": "Pr@1",
    "pr_4": "Pr@4",
    "pr_16": "Pr@16",
    "suf_16": "SUF at Pr@16",
}


@dataclass(frozen=True)
class Cell:
    """A figure over the seeds, and the paper's.

    Attributes
    ----------
    values
        One per seed, possibly none.
    paper
        The paper's figure, None where it has none.
    best
        Whether no other method of the block has a better one.
    """

    values: tuple[float, ...]
    paper: float | None = None
    best: bool = False

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
        if self.mean is None:
            ours = "–"
        else:
            ours = f"**{self.mean:.2f}**" if self.best else f"{self.mean:.2f}"
        if self.spread is not None:
            ours += f" ± {self.spread:.2f}"
        return ours if self.paper is None else f"{ours} ({self.paper:.2f})"

    def to_latex(self) -> str:
        """The same for LaTeX."""
        if self.mean is None:
            ours = "--"
        else:
            ours = f"\\textbf{{{self.mean:.2f}}}" if self.best else f"{self.mean:.2f}"
        if self.spread is not None:
            ours += f" $\\pm$ {self.spread:.2f}"
        return ours if self.paper is None else f"{ours} ({self.paper:.2f})"

    def to_plain(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "values": list(self.values),
            "mean": self.mean,
            "spread": self.spread,
            "paper": self.paper,
        }


@dataclass(frozen=True)
class TableRow:
    """A line of a table: its name in several parts, and its cells."""

    heads: tuple[str, ...]
    cells: tuple[Cell, ...]
    begins_block: bool = False


@dataclass(frozen=True)
class Table:
    """A table that can be written in three ways.

    Attributes
    ----------
    title
        One line.
    heads, columns
        Titles of the naming columns and of the columns of figures.
    rows
        The lines.
    """

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

    def to_json(self) -> str:
        """The table as JSON text."""
        return json.dumps(self.to_plain(), indent=1, ensure_ascii=False) + "\n"


def search_table(
    rows: Iterable[ResultRow],
    *,
    experiment: str,
    loss: str,
    database: str,
    figures: Mapping[str, str] = SEARCH_FIGURES,
    title: str | None = None,
) -> Table:
    """A table as the paper has it: methods by sparsity, SUF and Pr@k, mean and spread over seeds.

    Parameters
    ----------
    rows
        Stored results; other experiments, losses and databases, and variants, are left out.
    experiment, loss, database
        Which table.
    figures
        Which figures, and what their columns are called.
    """
    groups: dict[tuple[int, str], list[ResultRow]] = {}
    for row in rows:
        key = row.key
        if (key.experiment, key.loss, key.database, key.variant) != (
            experiment,
            loss,
            database,
            "",
        ):
            continue
        groups.setdefault((key.sparsity, key.method), []).append(row)
    lines: list[TableRow] = []
    for sparsity in sorted({sparsity for sparsity, _ in groups}):
        block = []
        for method, label in METHODS.items():
            if (sparsity, method) in groups:
                paper = paper_figures(
                    experiment, loss=loss, method=method, sparsity=sparsity, database=database
                )
                cells = _cells(groups[sparsity, method], paper, figures)
                block.append((label, cells))
        best = [
            _best(cell.mean for cell in column)
            for column in zip(*(c for _, c in block), strict=True)
        ]
        for number, (label, cells) in enumerate(block):
            marked = tuple(
                Cell(cell.values, cell.paper, len(block) > 1 and _same(cell.mean, top))
                for cell, top in zip(cells, best, strict=True)
            )
            head = (str(sparsity) if number == 0 and sparsity else "", label)
            lines.append(TableRow(head, marked, begins_block=number == 0))
    name = title or f"{experiment}, {loss}, queries of test against {database}"
    return Table(name, ("k_s", "Method"), tuple(figures.values()), tuple(lines))


def nmi_table(
    rows: Iterable[ResultRow], *, experiment: str, losses: Sequence[str], databases: Sequence[str]
) -> Table:
    """The paper's table 3: NMI of the buckets at sparsity 1, a column per loss and database."""
    chosen = [r for r in rows if r.key.experiment == experiment and not r.key.variant]
    columns = [(loss, database) for loss in losses for database in databases]
    lines = []
    for method, label in METHODS.items():
        cells = []
        for loss, database in columns:
            wanted = (method, loss, database, 1)
            values = [
                (r.key.seed, r.figures["nmi"])
                for r in chosen
                if (r.key.method, r.key.loss, r.key.database, r.key.sparsity) == wanted
                and "nmi" in r.figures
            ]
            paper = paper_figures(
                experiment, loss=loss, method=method, sparsity=1, database=database
            )
            cells.append(Cell(tuple(v for _, v in sorted(values)), paper.get("nmi")))
        if any(cell.values for cell in cells):
            lines.append((label, cells))
    best = [
        _best(cell.mean for cell in column) for column in zip(*(c for _, c in lines), strict=True)
    ]
    body = tuple(
        TableRow(
            (label,),
            tuple(
                Cell(cell.values, cell.paper, _same(cell.mean, top))
                for cell, top in zip(cells, best, strict=True)
            ),
            begins_block=number == 0,
        )
        for number, (label, cells) in enumerate(lines)
    )
    titles = tuple(f"{loss}, {database}" for loss, database in columns)
    return Table(f"{experiment}: NMI of the buckets", ("Method",), titles, body)


# -- helpers -----------------------------------------------------------------------------------


def _cells(
    rows: Sequence[ResultRow], paper: Mapping[str, float], figures: Mapping[str, str]
) -> list[Cell]:
    by_seed = sorted(rows, key=lambda row: row.key.seed)
    return [
        Cell(tuple(r.figures[name] for r in by_seed if name in r.figures), paper.get(name))
        for name in figures
    ]


def _best(means: Iterable[float | None]) -> float | None:
    return max((mean for mean in means if mean is not None), default=None)


def _same(mean: float | None, best: float | None) -> bool:
    """Whether a figure is the best, as far as can be read off the table."""
    return mean is not None and best is not None and f"{mean:.2f}" == f"{best:.2f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    for sign in "&%_#":
        text = text.replace(sign, f"\\{sign}")
    return text
