"""What the solver benchmark stores: one record per cell, and the run around them, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

# α and β per ordered pair of classes: the values of the authors' code, for their two losses.
PENALTIES = {"triplet": (50.0, 0.5), "npairs": (50.0, 0.05)}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One kind of problem at one size."""

    on_grid: bool  # of supplement B; the one larger problem is not
    score_set: str
    penalties: str
    level: int
    sparsity: int
    n_classes: int
    width: int

    @property
    def size(self) -> int:
        """Number of class scores."""
        return self.n_classes * self.width

    def __str__(self) -> str:
        return (
            f"{self.score_set}, {self.penalties}, level {self.level}, sparsity {self.sparsity}, "
            f"{self.n_classes} × {self.width}"
        )


@dataclass(frozen=True, kw_only=True)
class CellResult(Cell):
    """What was measured in a cell. Times in milliseconds; quartiles are the first and the third."""

    repetitions: int
    ours_ms: float  # median
    ours_quartiles_ms: tuple[float, float]
    ortools_ms: float  # median
    ortools_quartiles_ms: tuple[float, float]
    ratio: float  # ortools_ms / ours_ms
    ratio_quartiles: tuple[float, float]  # of the ratios of single repetitions
    ratio_range: tuple[float, float]
    energies_equal: bool
    largest_energy_gap: float  # |ours - OR-tools|
    energy_violations: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the benchmark: everything that its table, summary and figure are made from."""

    date: str
    settings: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    skipped: tuple[str, ...]  # score sets that were not there, with the reason
    import_seconds: float
    first_call_seconds: float
    first_call_with_imports_seconds: float
    cells: tuple[CellResult, ...]

    @property
    def grid(self) -> list[CellResult]:
        return [c for c in self.cells if c.on_grid]

    @property
    def beyond_grid(self) -> list[CellResult]:
        return [c for c in self.cells if not c.on_grid]

    @property
    def unequal(self) -> list[CellResult]:
        return [c for c in self.cells if not c.energies_equal]


def write_json(run: Run, file: Path) -> None:
    """Store a run, a line per entry and per cell, so that two runs can be compared by eye."""
    entries = [
        f" {json.dumps(f.name)}: {json.dumps(_rounded(getattr(run, f.name)))}"
        for f in fields(run)
        if f.name != "cells"
    ]
    cells = ",\n  ".join(json.dumps(_rounded(asdict(cell))) for cell in run.cells)
    entries.append(f' "cells": [\n  {cells}\n ]')
    file.write_text("{\n" + ",\n".join(entries) + "\n}\n")


def read_json(file: Path) -> Run:
    """The run that `write_json` stored."""
    stored = json.loads(file.read_text())
    cells = tuple(CellResult(**cell) for cell in stored.pop("cells"))
    return Run(**stored, cells=cells)


def _rounded(value: Any) -> Any:
    """Floats to six digits; more of them would be noise."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
