"""Which buckets an item belongs to, by what the network makes of it. No torch.

- path: its best slot at each level, as in the paper.
- code book: the class code with the largest sum of slot scores.
- prototypes: codes propose, prototypes decide. The codes with the largest sums are a shortlist;
  of the classes on it, the one whose prototype lies nearest to the item's point is chosen.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape
from hashcade.index import HashIndex

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# Up to so many prototypes all are compared: one pass over them takes less time than the tree.
FEW_PROTOTYPES = 2048

_CHUNK = 1024


class Assignment(Protocol):
    """From slot scores and points to buckets, best first: int64[n, sparsity * n_probe]."""

    ranks: bool  # whether buckets beyond the first code are ranked

    def __call__(self, scores: Floats, points: Floats, n_probe: int) -> Ints:
        """Buckets of items."""


class PathAssignment:
    """The best slot at each level; the last level has ``sparsity`` of them."""

    ranks = False

    def __init__(self, shape: CodeShape) -> None:
        self._shape = shape

    def __call__(self, scores: Floats, points: Floats, n_probe: int) -> Ints:
        """See :class:`Assignment`."""
        return self._shape.scores_to_bucket_ids(scores)


class CodebookAssignment:
    """The code with the largest sum of slot scores, on average over its buckets.

    Sums are float64, from level 1 down; of equal ones the lower id comes first, as when an index
    probes.
    """

    ranks = False

    def __init__(self, codebook: Ints, shape: CodeShape) -> None:
        self._book = np.unique(codebook, axis=0)  # in ascending order, equal codes once
        self._paths = shape.paths(self._book.ravel())  # (n_codes · sparsity, depth)
        self._shape = shape

    def __call__(self, scores: Floats, points: Floats, n_probe: int) -> Ints:
        """See :class:`Assignment`."""
        book, paths = self._book, self._paths
        assigned = np.empty((len(scores), self._shape.sparsity), np.int64)
        for at in range(0, len(scores), _CHUNK):
            part = scores[at : at + _CHUNK]
            sums = np.zeros((len(part), len(paths)))
            for level in range(self._shape.depth):
                sums += part[:, level, paths[:, level]]
            sums = sums.reshape(len(part), *book.shape)
            best = sums.mean(axis=2).argmax(axis=1)
            order = np.argsort(-sums[np.arange(len(part)), best], axis=1, kind="stable")
            assigned[at : at + _CHUNK] = np.take_along_axis(book[best], order, axis=1)
        return assigned


class PrototypeAssignment:
    """The nearest prototypes among the codes with the largest sums of slot scores.

    The prototypes are the items of a small index, each in the buckets of its code: the search
    through its tree proposes, the ranking by distance decides.
    """

    ranks = True

    def __init__(
        self, codebook: Ints, prototypes: Floats, shape: CodeShape, shortlist: int
    ) -> None:
        self.codebook, self._prototypes, self.shortlist = codebook, prototypes, shortlist
        self._flat = len(codebook) <= FEW_PROTOTYPES
        buckets = np.zeros((len(codebook), 1), np.int64) if self._flat else codebook
        self._index = HashIndex.build(
            buckets, prototypes, shape=CodeShape(width=1, depth=1) if self._flat else shape
        )

    def classes(self, scores: Floats, points: Floats, n_classes: int) -> Ints:
        """Rows of the code book, nearest prototype first, int64[n, n_classes]; padded with -1."""
        if self._flat:
            where: dict[str, Any] = {"bucket_ids": np.zeros((len(points), 1), np.int64)}
        else:
            where = {"scores": scores, "n_probe": max(self.shortlist, n_classes)}
        return self._index.search(points, **where, n_neighbors=n_classes, fill="none").ids

    def of_points(self, points: Floats, n_probe: int) -> Ints:
        """The buckets of the nearest prototypes of all, for points without slot scores."""
        nearness = points @ self._prototypes.T - np.square(self._prototypes).sum(axis=1) / 2
        order = np.argsort(-nearness, axis=1, kind="stable")[:, :n_probe]
        return self.codebook[order].reshape(len(points), -1)

    def among(self, points: Floats, first: Ints, last: Ints) -> Ints:
        """The buckets of the nearest of the prototypes first..last - 1, of each point its own."""
        best = np.array(first)
        nearest = np.full(len(points), np.inf)
        for step in range(int((last - first).max(initial=0))):
            rows = np.minimum(first + step, last - 1)
            gaps = np.square(points - self._prototypes[rows]).sum(axis=1, dtype=np.float64)
            closer = gaps < nearest
            best[closer], nearest[closer] = rows[closer], gaps[closer]
        return self.codebook[best]

    def __call__(self, scores: Floats, points: Floats, n_probe: int) -> Ints:
        """See :class:`Assignment`."""
        n_classes = min(n_probe, len(self.codebook))
        classes = self.classes(scores, points, n_classes)
        if (classes[:, -1] < 0).any():  # the shortlist has fewer: its last one again
            last = (classes >= 0).sum(axis=1, keepdims=True) - 1
            classes = np.take_along_axis(classes, np.minimum(np.arange(n_classes), last), axis=1)
        return self.codebook[classes].reshape(len(classes), -1)


def make_assignment(
    shape: CodeShape, codebook: Ints | None, prototypes: Floats | None, shortlist: int
) -> Assignment:
    """By prototypes if there are any, else by the code book if there is one, else by path."""
    if codebook is None:
        return PathAssignment(shape)
    if prototypes is None:
        return CodebookAssignment(codebook, shape)
    return PrototypeAssignment(codebook, prototypes, shape, shortlist)
