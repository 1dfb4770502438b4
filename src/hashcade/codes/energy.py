"""The objective of the code problem (equation 5 of the paper), evaluated for given codes."""

from __future__ import annotations

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
    """Energy of the codes of one level; the solver finds the codes that make it least.

    With classes p and q, scores c, codes z and the penalties α (siblings) and β (all)::

        E(z) = - Σ_p c_p·z_p  +  α Σ_{p≠q, same group} z_p·z_q  +  β Σ_{p≠q} z_p·z_q

    Pairs are ordered, as in the paper: (p, q) and (q, p) both count, so two classes in one slot
    cost 2β, and 2α + 2β if they are siblings.

    Parameters
    ----------
    class_codes : bool[n_classes, width]
        Active slots. Any number of them per class: that each class has ``sparsity`` of them is
        a constraint of the problem, not a part of its energy.
    class_scores : float[n_classes, width]
        How well each class goes into each slot.
    sibling_groups : int[n_classes], optional
        Equal numbers mean that two classes share the slots of all levels above. By default
        there are no siblings, as on the first level.
    sibling_penalty, collision_penalty : float
        α and β, per ordered pair.

    The energy is summed without intermediate rounding.
    """
    scores = checked_scores(class_scores)  # (n_classes, width)
    codes = checked_codes(class_codes, scores.shape)  # (n_classes, width)
    alpha = checked_number("sibling_penalty", sibling_penalty)
    beta = checked_number("collision_penalty", collision_penalty)

    # Pairs are counted, not listed: y members of a cell are y(y-1) ordered pairs.
    n_siblings = 0
    if sibling_groups is not None:
        groups = checked_groups(sibling_groups, len(scores))
        n_siblings = _pairs_within_groups(codes, groups)
    n_colliding = _ordered_pairs(codes.sum(axis=0, dtype=np.int64))

    gains = scores[codes].tolist()
    try:
        energy = math.fsum([-alpha * n_siblings, -beta * n_colliding, *gains])
    except OverflowError:
        energy = math.inf
    if math.isfinite(energy):
        return 0.0 - energy  # not -energy: no energy is 0.0, never -0.0
    # A term or a partial sum left the range of floats; the whole may still be inside.
    pairs = Fraction(alpha) * n_siblings + Fraction(beta) * n_colliding
    exact = pairs - sum(map(Fraction, gains))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _ordered_pairs(counts: NDArray[np.int64]) -> int:
    """Ordered pairs of different members, over cells that hold ``counts`` members."""
    return int(np.vdot(counts, counts - 1))


def _pairs_within_groups(codes: NDArray[np.bool_], groups: NDArray[np.int64]) -> int:
    """Ordered pairs of classes that share a group and a slot, summed over the slots."""
    width = codes.shape[1]
    _, group_index = np.unique(groups, return_inverse=True)  # (n_classes,), 0..n_groups-1
    class_index, slot = np.nonzero(codes)
    # Only occupied (group, slot) cells appear among the unique keys: memory stays that of the
    # input, however many groups there are.
    _, counts = np.unique(group_index[class_index] * width + slot, return_counts=True)
    return _ordered_pairs(counts.astype(np.int64))
