"""The ablation: one setting changed at a time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from hashcade.report._row import ResultRow
from hashcade.report._table import METHODS, SEARCH_FIGURES, Cell, Table, TableRow

_FIGURES = {**SEARCH_FIGURES, "nmi": "NMI"}
_TITLES = {
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
    for row in rows:
        groups.setdefault((row.key.method, row.key.variant), []).append(row)
    order = list(METHODS)
    lines = []
    before = None
    for method, variant in sorted(
        groups, key=lambda k: (_kind(k[1]), order.index(k[0]), _value(k[1]))
    ):
        here = sorted(groups[method, variant], key=lambda row: row.key.seed)
        cells = tuple(Cell(tuple(r.figures[name] for r in here)) for name in _FIGURES)
        lines.append(
            TableRow(
                (METHODS[method], _TITLES.get(variant, variant.replace(",", ", "))),
                cells,
                begins_block=_kind(variant) != before,
            )
        )
        before = _kind(variant)
    title = "Ablation: npairs, k_s = 1, test against test"
    return Table(title, ("Method", "Changed"), tuple(_FIGURES.values()), tuple(lines))


def ablation_sweeps(rows: Sequence[ResultRow]) -> dict[str, list[dict[str, Any]]]:
    """Points of the swept settings, for the plot."""
    sweeps: dict[str, list[dict[str, Any]]] = {}
    for name, title in _SWEPT.items():
        values: dict[float, list[ResultRow]] = {}
        for row in rows:
            if row.key.method == "ours" and _kind(row.key.variant) == name:
                values.setdefault(_value(row.key.variant), []).append(row)
        if values:
            sweeps[title] = [
                {
                    "value": value,
                    **{f: statistics.fmean(r.figures[f] for r in values[value]) for f in _FIGURES},
                }
                for value in sorted(values)
            ]
    return sweeps


def _kind(variant: str) -> str:
    """Name of the first setting that is changed."""
    return variant.partition("=")[0]


def _value(variant: str) -> float:
    value = variant.partition("=")[2].partition(",")[0]
    return float(value) if value else 0.0
