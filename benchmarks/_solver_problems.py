"""The problems of the solver benchmark, and the comparison of two solutions of one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from _paper_network import PaperNetwork
from _score_sets import ScoreSet
from _solver_results import PENALTIES, Cell

from hashcade import code_energy, solve_level

GRID_CLASSES = (64, 128, 256, 512)
GRID_WIDTHS = (16, 32, 64, 128)
SPARSITIES = (1, 2, 4)
LEVELS = (1, 2)
LARGE = (2048, 512)  # n_classes, width


def all_cells(sets: Sequence[str], penalties: Sequence[str], quick: bool) -> list[Cell]:
    """Every cell of a run: the grid of supplement B, then the larger problem."""
    step = 2 if quick else 1
    kinds = list(product(sets, penalties, LEVELS, SPARSITIES[::step]))
    sizes = list(product(GRID_CLASSES[::step], GRID_WIDTHS[::step]))
    large = [k for k in kinds if k[3] == 1]
    return [
        *(_cell(kind, size, on_grid=True) for kind in kinds for size in sizes),
        *(_cell(kind, LARGE, on_grid=False) for kind in (large[: len(LEVELS)] if quick else large)),
    ]


def _cell(kind: tuple[str, str, int, int], size: tuple[int, int], *, on_grid: bool) -> Cell:
    score_set, penalties, level, sparsity = kind
    n_classes, width = size
    return Cell(
        on_grid=on_grid,
        score_set=score_set,
        penalties=penalties,
        level=level,
        sparsity=sparsity,
        n_classes=n_classes,
        width=width,
    )


class Problem:
    """A new problem of a cell: the scores of one level, and what goes with them.

    Equal seeds make equal problems. On level 2 the siblings are those that level 1 of the same
    batch, solved with sparsity 1, really produced.
    """

    def __init__(self, cell: Cell, scores: ScoreSet, seed: Sequence[int]) -> None:
        rng = np.random.default_rng(seed)
        levels = scores.level_scores(rng, cell.n_classes, cell.width, cell.level)
        alpha, beta = PENALTIES[cell.penalties]
        groups = None
        if cell.level == 2:
            groups = solve_level(levels[0], collision_penalty=beta).argmax(axis=1)
        self.scores = levels[-1]  # (n_classes, width)
        self.sparsity = cell.sparsity
        self.terms = {
            "sibling_groups": groups,
            "sibling_penalty": alpha,
            "collision_penalty": beta,
        }

    def ours(self) -> np.ndarray:
        return solve_level(self.scores, sparsity=self.sparsity, **self.terms)

    def network(self) -> PaperNetwork:
        return PaperNetwork(self.scores, sparsity=self.sparsity, **self.terms)

    def energy(self, codes: np.ndarray) -> float:
        return code_energy(codes, self.scores, **self.terms)

    def magnitude(self, codes: np.ndarray) -> float:
        """Sum of the absolute terms of the energy, to which rounding errors are relative."""
        return code_energy(codes, -np.abs(self.scores), **self.terms)


def compare_energies(
    problem: Problem, codes: np.ndarray, network: PaperNetwork
) -> tuple[float, str]:
    """Our energy minus that of OR-tools, and what is wrong with it, if anything."""
    peer_codes = network.codes()
    peer_energy = problem.energy(peer_codes)
    gap = problem.energy(codes) - peer_energy
    magnitude = problem.magnitude(peer_codes)
    # A rounded cost is off by half a unit at most: half a unit for each active slot of its
    # solution, which looked better than it is, and half for each of the best, which looked worse.
    rounding = codes.sum() / network.scale + 1e-9 * abs(peer_energy)
    for name, z in (("our", codes), ("OR-tools'", peer_codes)):
        if not (z.sum(axis=1) == problem.sparsity).all():
            return gap, f"{name} codes do not have sparsity={problem.sparsity} in every row"
    if gap > 1e-12 * magnitude:
        return gap, f"hashcade is higher by {gap:.3g}, energy {peer_energy:.9g}"
    if -gap > rounding:
        return gap, f"OR-tools' is higher by {-gap:.3g}, energy {peer_energy:.9g}"
    return gap, ""
