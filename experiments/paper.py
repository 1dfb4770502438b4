"""The paper's results, to show beside ours."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

METRICS = ("suf", "pr_1", "pr_4", "pr_16")
PaperKey = tuple[str, str, str, str, int]  # experiment, loss, database, method, sparsity


def paper_metrics(
    experiment: str, *, loss: str, method: str, sparsity: int, database: str
) -> Mapping[str, float]:
    """Metrics of one row of the paper's tables; empty if the paper has no such row.

    Exhaustive search has one row for all sparsities. There is an ``nmi`` at sparsity 1 only.

    Examples
    --------
    >>> row = paper_metrics("cifar100", loss="npairs", method="ours", sparsity=1, database="test")
    >>> row["suf"], row["pr_1"], row["nmi"]
    (101.1, 58.28, 71.3)
    """
    k_s = 0 if method == "metric" else sparsity
    return paper_rows().get((experiment, loss, database, method, k_s), MappingProxyType({}))


def paper_solver_seconds() -> dict[tuple[int, int], float]:
    """Seconds of one minimum cost flow in the supplement, by number of classes and width.

    Examples
    --------
    >>> paper_solver_seconds()[512, 128]
    0.64261
    """
    stored = _stored()["solver-time"]
    return {
        (int(n_classes), width): seconds
        for n_classes, row in stored["seconds"].items()
        for width, seconds in zip(stored["widths"], row, strict=True)
    }


@cache
def paper_rows() -> dict[PaperKey, Mapping[str, float]]:
    """All rows of the paper's tables."""
    rows: dict[PaperKey, Mapping[str, float]] = {}
    for experiment, losses in _stored().items():
        if experiment == "solver-time":
            continue
        for loss, databases in losses.items():
            for database, table in databases.items():
                for sparsity, method, *values in table["rows"]:
                    row = dict(zip(METRICS, values, strict=True))
                    if sparsity == 1 and method in table.get("nmi", {}):
                        row["nmi"] = table["nmi"][method]
                    key = (experiment, loss, database, method, sparsity)
                    rows[key] = MappingProxyType(row)
    return rows


@cache
def _stored() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("paper.toml").read_text("utf-8"))
