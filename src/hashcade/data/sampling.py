"""Balanced samples of labelled items."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def stratified_sample(
    labels: NDArray[np.generic], n_items: int, *, random_state: int = 0
) -> NDArray[np.int64]:
    """Row numbers of ``n_items`` items, ascending; all rows if there are fewer.

    Balanced: each class contributes the same number of items, give or take one, or all it has.

    >>> labels = np.array(["a", "a", "a", "a", "b", "c", "c", "c"])
    >>> labels[stratified_sample(labels, 5)].tolist()
    ['a', 'a', 'b', 'c', 'c']
    """
    _, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if n_items >= len(labels):
        return np.arange(len(labels))
    if n_items < len(sizes):
        raise ValueError(f"sample={n_items} must be >= {len(sizes)}, the number of classes")
    rng = np.random.default_rng([random_state, 0x5A3])
    low, high = 1, int(sizes.max())  # the largest number per class that does not exceed n_items
    while low < high:
        middle = (low + high + 1) // 2
        if np.minimum(sizes, middle).sum() <= n_items:
            low = middle
        else:
            high = middle - 1
    n_per_class = np.minimum(sizes, low)
    larger_classes = rng.permutation(np.flatnonzero(sizes > low))
    n_per_class[larger_classes[: n_items - n_per_class.sum()]] += 1
    order = rng.permutation(len(labels))
    order = order[np.argsort(numbers[order], kind="stable")]  # by class, shuffled within
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[rank < np.repeat(n_per_class, sizes)])
