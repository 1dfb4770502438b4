"""Whether the tree has a meaning: how often sibling buckets hold related classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape


@dataclass(frozen=True)
class SiblingMetrics:
    """How often sibling classes are related, in percent."""

    n_pairs: int  # pairs of classes whose buckets share the path but for the last slot
    related: float  # share of them with the same group
    chance: float  # the same share among all pairs of classes
    p_value: float  # share of random rearrangements of the groups with as many or more


def sibling_metrics(
    bucket_ids: npt.ArrayLike,
    labels: npt.ArrayLike,
    groups: npt.ArrayLike,
    shape: CodeShape,
    *,
    n_rearrangements: int = 10_000,
    random_state: int = 0,
) -> SiblingMetrics:
    """Compare sibling classes with pairs of classes at random.

    The bucket of a class is the one with most of its items. Two classes are siblings if their
    buckets have the same parent. ``groups`` says what the class of each item belongs to, such as
    the 20 coarse classes of Cifar-100.

    Examples
    --------
    >>> shape = CodeShape(width=2, depth=2)
    >>> metrics = sibling_metrics([0, 1, 2, 3], [0, 1, 2, 3], [7, 7, 8, 8], shape)
    >>> metrics.n_pairs, metrics.related, round(metrics.chance, 1)
    (2, 100.0, 33.3)
    """
    if shape.depth < 2:
        raise ValueError(f"depth={shape.depth} must be >= 2: a flat table has no siblings")
    buckets, classes, item_groups = map(np.asarray, (bucket_ids, labels, groups))
    if not buckets.shape == classes.shape == item_groups.shape or buckets.ndim != 1:
        raise ValueError(
            f"bucket_ids, labels and groups have shapes {buckets.shape}, {classes.shape} and "
            f"{item_groups.shape}, must be (n,) alike"
        )
    names = np.unique(classes)
    main_buckets = np.empty(len(names), np.int64)
    class_groups = np.empty(len(names), item_groups.dtype)
    for number, name in enumerate(names):
        inside = classes == name
        ids, counts = np.unique(buckets[inside], return_counts=True)
        main_buckets[number] = ids[counts.argmax()]
        group = np.unique(item_groups[inside])
        if len(group) > 1:
            raise ValueError(f"class {name} has items of {len(group)} groups, must have one")
        class_groups[number] = group[0]
    parents = main_buckets // shape.width
    first, second = np.triu_indices(len(names), 1)
    siblings = parents[first] == parents[second]
    first_sibling, second_sibling = first[siblings], second[siblings]

    def n_related(arranged: npt.NDArray[np.int64]) -> int:
        return int((arranged[first_sibling] == arranged[second_sibling]).sum())

    n_pairs = int(siblings.sum())
    observed = n_related(class_groups)
    rng = np.random.default_rng(random_state)
    as_many = sum(
        n_related(rng.permutation(class_groups)) >= observed for _ in range(n_rearrangements)
    )
    return SiblingMetrics(
        n_pairs=n_pairs,
        related=100.0 * observed / n_pairs if n_pairs else 0.0,
        chance=100.0 * float((class_groups[first] == class_groups[second]).mean()),
        p_value=(as_many + 1) / (n_rearrangements + 1),
    )
