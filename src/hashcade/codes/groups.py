"""Sibling groups side by side, for the kernels of the solver. Kernel only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]


@njit(cache=True)
def arrange_groups(groups: Ints) -> tuple[Ints, Ints]:
    """Return an order of the classes, and where in it each group starts.

    Group 0 is made of the classes that have no sibling at all, the paper's A_0; the others follow
    by their numbers, each with at least two classes. ``order[start[h]:start[h + 1]]`` is group h.
    """
    n_classes = groups.size
    by_group = np.argsort(groups, kind="mergesort")  # stable: equal input, equal output
    alone = np.empty(n_classes, np.bool_)
    n_alone = 0
    for i in range(n_classes):
        group = groups[by_group[i]]
        alone[i] = (i == 0 or groups[by_group[i - 1]] != group) and (
            i == n_classes - 1 or groups[by_group[i + 1]] != group
        )
        n_alone += alone[i]
    order = np.empty(n_classes, np.int64)
    start = np.empty(n_classes + 2, np.int64)
    start[0] = 0
    n_groups = 1
    at_alone = 0
    at = n_alone
    for i in range(n_classes):
        if alone[i]:
            order[at_alone] = by_group[i]
            at_alone += 1
        else:
            if i == 0 or groups[by_group[i - 1]] != groups[by_group[i]]:
                start[n_groups] = at
                n_groups += 1
            order[at] = by_group[i]
            at += 1
    start[n_groups] = n_classes
    return order, start[: n_groups + 1].copy()
