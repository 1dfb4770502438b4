"""The paper's figures, to stand beside ours."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

FIGURES = ("suf", "pr_1", "pr_4", "pr_16")


def paper_figures(
    experiment: str, *, loss: str, method: str, sparsity: int, database: str
) -> Mapping[str, float]:
    """Figures of one row of the paper's tables; empty if the paper has no such row.

    Parameters
    ----------
    experiment
        ``"cifar100"``, ``"imagenet"`` or ``"imagenet-split"``.
    loss
        ``"npairs"`` or ``"triplet"``.
    method
        ``"metric"``, ``"lsh"``, ``"dch"``, ``"th"``, ``"vq"``, ``"vq-train"``, ``"vq-test"``,
        ``"flat"`` (Jeong & Song 2018), ``"ours-r"`` or ``"ours"``.
    sparsity
        The paper's k_s. Exhaustive search has one row for all of them.
    database
        What the table was built on: ``"test"``, ``"train"`` or ``"val"``.

    Returns
    -------
    mapping
        ``suf`` (a factor), ``pr_1``, ``pr_4``, ``pr_16`` and, at sparsity 1, ``nmi`` (in percent).

    Examples
    --------
    >>> row = paper_figures("cifar100", loss="npairs", method="ours", sparsity=1, database="test")
    >>> row["suf"], row["pr_1"], row["nmi"]
    (101.1, 58.28, 71.3)
    """
    place = 0 if method == "metric" else sparsity
    return _rows().get((experiment, loss, database, method, place), MappingProxyType({}))


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
def _stored() -> dict[str, Any]:
    return tomllib.loads(files("hashcade.report").joinpath("paper.toml").read_text("utf-8"))


@cache
def _rows() -> dict[tuple[str, str, str, str, int], Mapping[str, float]]:
    rows: dict[tuple[str, str, str, str, int], Mapping[str, float]] = {}
    for experiment, losses in _stored().items():
        if experiment == "solver-time":
            continue
        for loss, databases in losses.items():
            for database, table in databases.items():
                for sparsity, method, *figures in table["rows"]:
                    row = dict(zip(FIGURES, figures, strict=True))
                    if sparsity == 1 and method in table.get("nmi", {}):
                        row["nmi"] = table["nmi"][method]
                    key = (experiment, loss, database, method, sparsity)
                    rows[key] = MappingProxyType(row)
    return rows
