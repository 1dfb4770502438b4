"""Assignment of items to buckets, by path, by code book or by parts of classes.

For the default, assignment by prototypes, see ``encoder.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape
from hashcade.index import NEVER, Cancel

if TYPE_CHECKING:
    from hashcade.learn.encoder import PrototypeAssignment

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

CHUNK = 1024  # items of one forward pass


class Outputs(NamedTuple):
    """Outputs of a network."""

    vectors: Floats  # (n, size): for re-ranking
    scores: Floats | None  # (n, depth, width): of slots, if they were requested or are needed
    points: Floats  # (n, size): compared with prototypes; without these the vectors

    def rows(self, which: Ints) -> Outputs:
        """The outputs for some of the items."""
        scores = None if self.scores is None else self.scores[which]
        return Outputs(self.vectors[which], scores, self.points[which])


class Assignment(Protocol):
    """From outputs to buckets, best first: int64[n, sparsity * n_probe]."""

    ranks: bool  # whether buckets beyond the first code are ranked

    def __call__(self, outputs: Outputs, n_probe: int, cancel: Cancel = NEVER) -> Ints:
        """Buckets of items."""


class PathAssignment:
    """The best slot at each level; the last level has ``sparsity`` of them."""

    ranks = False

    def __init__(self, shape: CodeShape) -> None:
        self._shape = shape

    def __call__(self, outputs: Outputs, n_probe: int, cancel: Cancel = NEVER) -> Ints:
        """See :class:`Assignment`."""
        assert outputs.scores is not None
        return self._shape.scores_to_bucket_ids(outputs.scores)


class CodebookAssignment:
    """The code with the largest sum of slot scores, on average over its buckets.

    Sums are float64, from level 1 down; of equal ones the lower id comes first, as in a search of
    the index.
    """

    ranks = False

    def __init__(self, codebook: Ints, shape: CodeShape) -> None:
        self._book = np.unique(codebook, axis=0)  # ascending, without duplicates
        self._paths = shape.paths(self._book.ravel())  # (n_codes · sparsity, depth)
        self._shape = shape

    def __call__(self, outputs: Outputs, n_probe: int, cancel: Cancel = NEVER) -> Ints:
        """See :class:`Assignment`."""
        scores, book, paths = outputs.scores, self._book, self._paths
        assert scores is not None
        bucket_ids = np.empty((len(scores), self._shape.sparsity), np.int64)
        for start in range(0, len(scores), CHUNK):
            cancel.check(f"after {start:,} of {len(scores):,} items")
            part = scores[start : start + CHUNK]
            sums = np.zeros((len(part), len(paths)))
            for level in range(self._shape.depth):
                sums += part[:, level, paths[:, level]]
            sums = sums.reshape(len(part), *book.shape)
            best = sums.mean(axis=2).argmax(axis=1)
            order = np.argsort(-sums[np.arange(len(part)), best], axis=1, kind="stable")
            bucket_ids[start : start + CHUNK] = np.take_along_axis(book[best], order, axis=1)
        return bucket_ids


class PartAssignment:
    """The nearest class prototypes first, then the nearest parts of each of these classes.

    Classes are decided by points, parts by vectors, so that what is near in a search is in one
    part. ``class_of_part``, int64[n_codes], ascending, is the class of each row of the code book,
    and ``centroids``, float32[n_codes, size], are means of vectors.
    """

    ranks = True

    def __init__(
        self, codebook: Ints, centroids: Floats, classes: PrototypeAssignment, class_of_part: Ints
    ) -> None:
        self._codebook, self._centroids, self._classes = codebook, centroids, classes
        self._ends = np.cumsum(np.bincount(class_of_part))
        self._starts = np.append(0, self._ends[:-1])
        n_parts = self._ends - self._starts
        self._min_parts, self._part_offsets = int(n_parts.min()), np.arange(int(n_parts.max()))

    def __call__(self, outputs: Outputs, n_probe: int, cancel: Cancel = NEVER) -> Ints:
        """See :class:`Assignment`; scores are not needed."""
        vectors = outputs.vectors
        n_parts = min(n_probe, len(self._codebook))
        n_classes = min(-(-n_parts // self._min_parts), len(self._ends))
        classes = self._classes.classes(outputs.points, n_classes, cancel)
        step = max(1, CHUNK // n_classes)
        parts = []
        for start in range(0, max(1, len(vectors)), step):
            cancel.check(f"after {start:,} of {len(vectors):,} items")
            part = slice(start, start + step)
            parts.append(self.buckets_of_classes(vectors[part], classes[part], n_parts))
        return np.concatenate(parts)

    def buckets_of_classes(self, vectors: Floats, classes: Ints, n_parts: int) -> Ints:
        """Buckets of the nearest parts of classes, int64[n, m], parts of the first class first."""
        rows = self._starts[classes][:, :, None] + self._part_offsets
        is_padding = rows >= self._ends[classes][:, :, None]
        centroids = self._centroids[np.where(is_padding, 0, rows)]
        distances = np.square(vectors[:, None, None] - centroids).sum(axis=3, dtype=np.float64)
        distances[is_padding], rows[is_padding] = np.inf, -1
        order = np.argsort(distances, axis=2, kind="stable")
        rows = np.take_along_axis(rows, order, axis=2).reshape(len(vectors), -1)
        first = np.argsort(rows < 0, axis=1, kind="stable")[:, :n_parts]
        return self._codebook[np.take_along_axis(rows, first, axis=1)].reshape(len(vectors), -1)
