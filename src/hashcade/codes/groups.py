"""Sibling groups side by side, for the kernels of the solver."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hashcade._kernels import kernel

Ints = NDArray[np.int64]


def arrange_groups(groups: Ints) -> tuple[Ints, Ints]:
    """Return an order of the classes, and where in it each group starts.

    Group 0 are the classes without siblings, the paper's A_0; the others follow by their numbers,
    each with at least two classes. ``order[start[h]:start[h + 1]]`` is group h.
    """
    by_group = groups.argsort(kind="stable")  # stable: equal input, equal output
    order = np.empty(len(groups), np.int64)
    start = np.empty(len(groups) + 2, np.int64)
    n_groups = _arrange(groups, by_group, order, start)
    return order, start[: n_groups + 1]


@kernel()
def _arrange(groups: Ints, by_group: Ints, order: Ints, start: Ints) -> int:
    """Fill ``order`` and ``start``; return the number of groups."""
    n_classes = groups.size
    n_alone = 0
    n_groups = 1
    for alone in (True, False):  # those without siblings first
        at = n_alone
        for i in range(n_classes):
            group = groups[by_group[i]]
            first = i == 0 or groups[by_group[i - 1]] != group
            last = i == n_classes - 1 or groups[by_group[i + 1]] != group
            if (first and last) != alone:
                continue
            if alone:
                n_alone += 1
            elif first:
                start[n_groups] = at
                n_groups += 1
            order[at] = by_group[i]
            at += 1
    start[0] = 0
    start[n_groups] = n_classes
    return n_groups
