"""Whether the tree means something: how often sibling buckets hold related classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hashcade.codes._check import as_array
from hashcade.codes._shape import CodeShape


@dataclass(frozen=True)
class SiblingFigures:
    """How often sibling classes are related.

    Attributes
    ----------
    n_pairs
        Pairs of classes that are siblings: their buckets share the path but for the last slot.
    related
        Share of them with the same group, in percent.
    chance
        The same share among all pairs of classes, in percent.
    p_value
        Share of random rearrangements of the groups over the classes that give as many related
        siblings or more.
    """

    n_pairs: int
    related: float
    chance: float
    p_value: float


def sibling_figures(
    bucket_ids: npt.ArrayLike,
    labels: npt.ArrayLike,
    groups: npt.ArrayLike,
    shape: CodeShape,
    *,
    n_rearrangements: int = 10_000,
    random_state: int = 0,
) -> SiblingFigures:
    """Compare sibling classes with pairs of classes at random.

    A class stands where most of its items are. Two classes are siblings if their buckets have the
    same parent; with the same bucket they are siblings too.

    Parameters
    ----------
    bucket_ids : int[n]
        The (first) bucket of each item.
    labels : int[n]
        Classes.
    groups : int[n]
        What the classes belong to, for instance the 20 coarse classes of Cifar-100. All items of
        a class must have one group.
    shape
        Of the table, of depth 2 or more.

    Examples
    --------
    >>> shape = CodeShape(width=2, depth=2)
    >>> figures = sibling_figures([0, 1, 2, 3], [0, 1, 2, 3], [7, 7, 8, 8], shape)
    >>> figures.n_pairs, figures.related, round(figures.chance, 1)
    (2, 100.0, 33.3)
    """
    if shape.depth < 2:
        raise ValueError(f"depth={shape.depth} must be >= 2: a flat table has no siblings")
    buckets, classes, of = (
        as_array(name, value)
        for name, value in (("bucket_ids", bucket_ids), ("labels", labels), ("groups", groups))
    )
    if not buckets.shape == classes.shape == of.shape or buckets.ndim != 1:
        raise ValueError(
            f"bucket_ids, labels and groups have shapes {buckets.shape}, {classes.shape} and "
            f"{of.shape}, must be (n,) alike"
        )
    names = np.unique(classes)
    homes = np.empty(len(names), np.int64)
    class_groups = np.empty(len(names), of.dtype)
    for number, name in enumerate(names):
        inside = classes == name
        ids, counts = np.unique(buckets[inside], return_counts=True)
        homes[number] = ids[counts.argmax()]
        group = np.unique(of[inside])
        if len(group) > 1:
            raise ValueError(f"class {name} has items of {len(group)} groups, must have one")
        class_groups[number] = group[0]
    parents = homes // shape.width
    first, second = np.triu_indices(len(names), 1)
    siblings = parents[first] == parents[second]
    first_sibling, second_sibling = first[siblings], second[siblings]

    def n_related(arranged: npt.NDArray[np.int64]) -> int:
        return int((arranged[first_sibling] == arranged[second_sibling]).sum())

    n_pairs = int(siblings.sum())
    there = n_related(class_groups)
    rng = np.random.default_rng(random_state)
    as_many = sum(
        n_related(rng.permutation(class_groups)) >= there for _ in range(n_rearrangements)
    )
    return SiblingFigures(
        n_pairs=n_pairs,
        related=100.0 * there / n_pairs if n_pairs else 0.0,
        chance=100.0 * float((class_groups[first] == class_groups[second]).mean()),
        p_value=(as_many + 1) / (n_rearrangements + 1),
    )
