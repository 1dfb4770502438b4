"""The objective of the code problem (equation 5 of the paper)."""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade._validate import checked_number
from hashcade.codes.checks import checked_codes, checked_groups, checked_scores


def code_energy(
    class_codes: ArrayLike,
    class_scores: ArrayLike,
    *,
    sibling_groups: ArrayLike | None = None,
    sibling_penalty: float = 0.0,
    collision_penalty: float = 0.0,
) -> float:
    """Energy of the codes of one level, summed exactly; the solver minimises it.

    With classes p and q, scores c, codes z and the penalties α (siblings) and β (all)::

        E(z) = - Σ_p c_p·z_p  +  α Σ_{p≠q, same group} z_p·z_q  +  β Σ_{p≠q} z_p·z_q

    Pairs are ordered, as in the paper: (p, q) and (q, p) both count, so two classes in one slot
    cost 2β, and 2α + 2β if they are siblings. Codes, bool[n_classes, width], may have any number
    of active slots. For the other arguments see :func:`solve_level`.
    """
    scores = checked_scores(class_scores)  # (n_classes, width)
    codes = checked_codes(class_codes, scores.shape)  # (n_classes, width)
    alpha = checked_number("sibling_penalty", sibling_penalty)
    beta = checked_number("collision_penalty", collision_penalty)

    n_siblings = 0
    if sibling_groups is not None:
        # Only occupied cells (group, slot) are counted: memory does not exceed that of the input.
        groups = np.unique(checked_groups(sibling_groups, len(scores)), return_inverse=True)[1]
        members, slots = np.nonzero(codes)
        cells = groups[members] * scores.shape[1] + slots
        n_siblings = _ordered_pairs(np.unique(cells, return_counts=True)[1].astype(np.int64))
    n_colliding = _ordered_pairs(codes.sum(axis=0, dtype=np.int64))

    gains = scores[codes].tolist()
    try:
        energy = math.fsum([-alpha * n_siblings, -beta * n_colliding, *gains])
    except OverflowError:
        energy = math.inf
    if math.isfinite(energy):
        return 0.0 - energy  # not -energy: zero is 0.0, never -0.0
    # A term or a partial sum overflowed; the total may still be finite.
    pairs = Fraction(alpha) * n_siblings + Fraction(beta) * n_colliding
    exact = pairs - sum(map(Fraction, gains))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _ordered_pairs(counts: NDArray[np.int64]) -> int:
    """Number of ordered pairs: y members of a cell make y(y-1)."""
    return int(np.vdot(counts, counts - 1))
