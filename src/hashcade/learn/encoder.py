"""A fitted model at work: items in, vectors and buckets out. No torch for embeddings.

For images, and for networks of the user's own, the torch model is asked. Which buckets an item
belongs to follows from what the network makes of it:

- path: its best slot at each level, as in the paper.
- code book: the class code with the largest sum of slot scores.
- prototypes: codes propose, prototypes decide. Codes that begin alike are a group; of the classes
  in the groups nearest to the item's point, the one whose prototype is nearest is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape
from hashcade.index import NEVER, Cancel, Encoded, GroupedVectors
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.dense_network import Floats, Ints, Outputs, Weights, checked_weights

Network = Callable[[npt.NDArray[Any], bool], Outputs]  # items, and whether to make scores
OnProgress = Callable[[int, int], object] | None  # takes the number of items done, and in all

# Up to so many prototypes all are compared: one pass over them takes no more time than groups.
FEW_PROTOTYPES = 2048

_CHUNK = 1024  # items of one pass
_FILLING = 15  # codes that are ranked beyond those probed, for queries with few candidates
_ROOM = 24  # prototypes compared for each code that is ranked, or more


class Encoder:
    """Items to :class:`Encoded`, chunk by chunk."""

    def __init__(self, config: ResolvedConfig, weights: Weights, network: Network) -> None:
        self.config, self._network = config, network
        shape, codebook = config.shape, np.empty((0, 1), np.int64)
        self._assign: Assignment = PathAssignment(shape)
        if config.uses_codebook:
            sizes = (config.n_codes, shape.sparsity)
            codebook = checked_weights(weights, "codebook", sizes, np.int64)
            if codebook.min() < 0 or codebook.max() >= shape.n_buckets:
                raise ValueError(f"codebook has ids that are not in 0..{shape.n_buckets - 1}")
            self._assign = CodebookAssignment(codebook, shape)
        if config.uses_prototypes:
            size = config.point_size or config.item_shape[0]
            prototypes = checked_weights(weights, "prototypes", (config.n_codes, size))
            if config.point_size:
                checked_weights(weights, "point_mean", (size,))
            if config.has_parts:
                self._assign = _by_parts(config, weights, codebook, prototypes)
            else:
                self._assign = PrototypeAssignment(codebook, prototypes, shape, config.shortlist)
        self._codebook = codebook

    def outputs(
        self, items: npt.NDArray[Any], progress: OnProgress = None, *, scores: bool = True,
        cancel: Cancel = NEVER,
    ) -> Outputs:  # fmt: skip
        """What the network makes of items, without the buckets."""
        if len(items) <= _CHUNK:
            return self._network(items, scores)
        parts = []
        for at in range(0, len(items), _CHUNK):
            cancel.check(f"after {at:,} of {len(items):,} items")
            parts.append(self._network(items[at : at + _CHUNK], scores))
            if progress is not None:
                progress(min(at + _CHUNK, len(items)), len(items))
        joined = (None if p[0] is None else np.concatenate(p) for p in zip(*parts, strict=True))
        return Outputs(*joined)  # type: ignore[arg-type]

    def bucket_ids(self, outputs: Outputs, n_probe: int = 1, cancel: Cancel = NEVER) -> Ints:
        """Buckets, int64[n, sparsity], or those of ``n_probe`` codes where these are ranked."""
        return self._assign(outputs.scores, outputs.points, n_probe, cancel)

    def place(self, items: npt.NDArray[Any], codes: Ints | None) -> tuple[Floats, Ints]:
        """Vectors and buckets of items of a table, int64[n, sparsity]; scores are not kept.

        ``codes``, int64[n], are the items' rows of the code book, -1: as the network says.
        """
        vectors, buckets = [], []
        for at in range(0, max(len(items), 1), _CHUNK):
            outputs = self._network(items[at : at + _CHUNK], False)
            if codes is None:
                own = self.bucket_ids(outputs)
            else:
                known = codes[at : at + _CHUNK]
                own = self.of_class(outputs.points, known)
                rest = np.flatnonzero(known < 0)
                if len(rest):
                    scores = None if outputs.scores is None else outputs.scores[rest]
                    own[rest] = self._assign(scores, outputs.points[rest], 1)
            vectors.append(outputs.vectors)
            buckets.append(own)
        return np.concatenate(vectors), np.concatenate(buckets)

    def of_class(self, points: Floats, classes: Ints) -> Ints:
        """Buckets of items of known classes: the code of the class, or of its nearest part."""
        if isinstance(self._assign, PartAssignment):
            return self._assign.of_classes(points, classes[:, None], 1)
        return self._codebook[classes]

    def rank(self, vectors: Floats, n_probe: int) -> Ints | None:
        """Buckets of vectors, if these are what prototypes are compared with."""
        config = self.config
        if not config.uses_prototypes:
            return None
        if config.rerank == "given" and (config.point_size or config.embedding_size):
            return None
        return self._assign(None, vectors, n_probe + _FILLING)

    def encode(
        self, items: npt.NDArray[Any], n_probe: int = 1, progress: OnProgress = None, *,
        scores: bool = True, cancel: Cancel = NEVER,
    ) -> Encoded:  # fmt: skip
        """Vectors, buckets and, if asked for or needed, scores, in one pass of the network."""
        outputs = self.outputs(items, progress, scores=scores, cancel=cancel)
        ranked = self.bucket_ids(outputs, n_probe + _FILLING, cancel)
        config = self.config
        own, by_path = ranked[:, : config.shape.sparsity], not config.uses_codebook
        if not self._assign.ranks:
            return Encoded(outputs.vectors, own, outputs.scores, by_path)
        all_ranked = ranked.shape[1] == config.n_codes * config.shape.sparsity
        return Encoded(outputs.vectors, own, outputs.scores, by_path, ranked, all_ranked)


def _by_parts(
    config: ResolvedConfig, weights: Weights, codebook: Ints, prototypes: Floats
) -> PartAssignment:
    """Classes by their prototypes, then parts of classes."""
    shape = config.shape
    class_of_part = checked_weights(weights, "class_of_part", (config.n_codes,), np.int64)
    steps = np.diff(class_of_part, prepend=-1)
    if not (class_of_part[0] == 0 and np.isin(steps, (0, 1)).all()):
        raise ValueError("class_of_part must ascend from 0 in steps of 1")
    first = steps > 0  # part of a class
    above = CodeShape(width=shape.width, depth=shape.depth - 1)
    of_classes = checked_weights(weights, "class_prototypes", prototypes.shape)[first]
    codes = codebook[first] // shape.width
    classes = PrototypeAssignment(codes, of_classes, above, config.shortlist)
    return PartAssignment(codebook, prototypes, classes, class_of_part)


class Assignment(Protocol):
    """From slot scores and points to buckets, best first: int64[n, sparsity * n_probe]."""

    ranks: bool  # whether buckets beyond the first code are ranked

    def __call__(self, scores: Any, points: Floats, n_probe: int, cancel: Cancel = NEVER) -> Ints:
        """Buckets of items; scores may be None where they are not needed."""


class PathAssignment:
    """The best slot at each level; the last level has ``sparsity`` of them."""

    ranks = False

    def __init__(self, shape: CodeShape) -> None:
        self._shape = shape

    def __call__(self, scores: Any, points: Floats, n_probe: int, cancel: Cancel = NEVER) -> Ints:
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

    def __call__(self, scores: Any, points: Floats, n_probe: int, cancel: Cancel = NEVER) -> Ints:
        """See :class:`Assignment`."""
        book, paths = self._book, self._paths
        assigned = np.empty((len(scores), self._shape.sparsity), np.int64)
        for at in range(0, len(scores), _CHUNK):
            cancel.check(f"after {at:,} of {len(scores):,} items")
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
    """The nearest prototypes among those of the nearest groups of codes.

    Codes that begin with the same slots are a group. Slots are clusters, so the prototypes of a
    group lie near each other: the groups whose means are nearest propose, their prototypes decide.
    """

    ranks = True

    def __init__(
        self, codebook: Ints, prototypes: Floats, shape: CodeShape, shortlist: int
    ) -> None:
        self.codebook, self.shortlist = codebook, shortlist
        groups = _groups(codebook[:, 0], shape)
        self._n_groups = int(groups.max()) + 1
        self._grouped = GroupedVectors(prototypes, groups)

    def classes(self, points: Floats, n_classes: int, cancel: Cancel = NEVER) -> Ints:
        """Rows of the code book, nearest prototype first, int64[n, n_classes]."""
        room = _ROOM * n_classes * self._n_groups // len(self.codebook)
        return self._grouped.nearest(points, n_classes, max(self.shortlist, room), cancel)

    def __call__(self, scores: Any, points: Floats, n_probe: int, cancel: Cancel = NEVER) -> Ints:
        """See :class:`Assignment`; scores are not needed."""
        classes = self.classes(points, min(n_probe, len(self.codebook)), cancel)
        return self.codebook[classes].reshape(len(points), -1)


class PartAssignment:
    """The nearest class prototypes first, then the nearest parts of each of these classes.

    ``class_of_part``, int64[n_codes], ascending, says which class a row of the code book is of.
    """

    ranks = True

    def __init__(
        self, codebook: Ints, prototypes: Floats, classes: PrototypeAssignment, class_of_part: Ints
    ) -> None:
        self._codebook, self._prototypes, self._classes = codebook, prototypes, classes
        self._ends = np.cumsum(np.bincount(class_of_part))
        self._starts = np.append(0, self._ends[:-1])
        n_parts = self._ends - self._starts
        self._fewest, self._steps = int(n_parts.min()), np.arange(int(n_parts.max()))

    def __call__(self, scores: Any, points: Floats, n_probe: int, cancel: Cancel = NEVER) -> Ints:
        """See :class:`Assignment`; scores are not needed."""
        n_parts = min(n_probe, len(self._codebook))
        n_classes = min(-(-n_parts // self._fewest), len(self._ends))
        classes = self._classes.classes(points, n_classes, cancel)
        step = max(1, _CHUNK // n_classes)
        parts = []
        for at in range(0, max(1, len(points)), step):
            cancel.check(f"after {at:,} of {len(points):,} items")
            part = slice(at, at + step)
            parts.append(self.of_classes(points[part], classes[part], n_parts))
        return np.concatenate(parts)

    def of_classes(self, points: Floats, classes: Ints, n_parts: int) -> Ints:
        """Buckets of the nearest parts of classes, int64[n, m], the first class first."""
        rows = self._starts[classes][:, :, None] + self._steps
        outside = rows >= self._ends[classes][:, :, None]
        own = self._prototypes[np.where(outside, 0, rows)]
        gaps = np.square(points[:, None, None] - own).sum(axis=3, dtype=np.float64)
        gaps[outside], rows[outside] = np.inf, -1
        order = np.argsort(gaps, axis=2, kind="stable")
        rows = np.take_along_axis(rows, order, axis=2).reshape(len(points), -1)
        first = np.argsort(rows < 0, axis=1, kind="stable")[:, :n_parts]
        return self._codebook[np.take_along_axis(rows, first, axis=1)].reshape(len(points), -1)


def _groups(codes: Ints, shape: CodeShape) -> Ints:
    """Numbers of the groups of codes, int64[n]: about as many groups as a group has codes."""
    if len(codes) > FEW_PROTOTYPES:
        for levels in range(1, shape.depth):
            if shape.width**levels >= len(codes) ** 0.5:
                first_slots = codes // shape.width ** (shape.depth - levels)
                return np.unique(first_slots, return_inverse=True)[1]
    return np.zeros(len(codes), np.int64)
