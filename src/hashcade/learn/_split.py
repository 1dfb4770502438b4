"""A part of the items is set aside, class by class, to judge what was learned."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

# Below this a class can give no query and its answer away and still have a pair to learn from.
_SMALLEST_CLASS = 4


def stratified_split(labels: Ints, *, fraction: float, random_state: int) -> tuple[Ints, Ints]:
    """Split items into training and validation, the same fraction of every class.

    A class gives at least two items, a query and its answer; a class with fewer than four items
    gives none.

    Parameters
    ----------
    labels : int[n]
        Classes.
    fraction
        Part of each class to set aside, from 0 (nothing) to below 1.

    Returns
    -------
    training, validation : int64[...]
        Indices in ascending order; together all items.
    """
    aside = np.zeros(len(labels), np.bool_)
    if fraction > 0:
        rng = np.random.default_rng([random_state, 0x5EED])
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]  # by class, shuffled within
        _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            if size >= _SMALLEST_CLASS:
                n_aside = min(max(2, round(fraction * size)), size - 2)
                aside[order[start : start + n_aside]] = True
    return np.flatnonzero(~aside), np.flatnonzero(aside)
