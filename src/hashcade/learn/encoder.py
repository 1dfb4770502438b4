"""Inference with a fitted model: from items to vectors and buckets. No torch for embeddings.

For images and user-defined networks the torch model is used. The buckets of an item depend on the
assignment:

- path: the best slot at each level, as in the paper.
- code book: the class code with the largest sum of slot scores.
- prototypes: codes give a shortlist, prototypes decide. Codes with the same first slots are a
  group; of the classes in the groups nearest to the item's point, the nearest prototype wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape
from hashcade.index import NEVER, Cancel, Encoded, GroupedVectors
from hashcade.learn.assignment import (
    CHUNK,
    Assignment,
    CodebookAssignment,
    Floats,
    Ints,
    Outputs,
    PartAssignment,
    PathAssignment,
)
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.inputs import checked_embeddings, checked_images
from hashcade.learn.one_query import OneQuery

Weights = Mapping[str, npt.NDArray[Any]]  # by the names of ``HashModel``
Network = Callable[[npt.NDArray[Any], bool], Outputs]  # items, and whether to make scores
OnProgress = Callable[[int, int], object] | None  # called with the number of items done, and of all

# Up to this many prototypes all are compared, which is as fast as groups.
FEW_PROTOTYPES = 2048

_FILL_CODES = 15  # codes ranked beyond those probed, for queries with few candidates
_FEW_PROBES = 1000  # up to which one query is encoded in a call that cannot be cancelled
_COMPARED_PER_CODE = 24  # prototypes that are compared, at least, for each code to rank


class Encoder:
    """Encodes items as :class:`Encoded`, chunk by chunk."""

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
            prototypes = checked_weights(
                weights, "prototypes", (config.n_codes, config.prototype_size)
            )
            if config.point_size:
                checked_weights(weights, "point_mean", (config.point_size,))
            if config.recalls_classes:
                for name, n_rows in (("class_means", config.n_codes), ("noise", config.n_noise)):
                    checked_weights(weights, name, (n_rows, config.item_shape[0]), np.float16)
            if config.has_parts:
                self._assign = _part_assignment(config, weights, codebook, prototypes)
            else:
                self._assign = PrototypeAssignment(codebook, prototypes, shape, config.shortlist)
        self._codebook = codebook
        self._one_query: tuple[OneQuery, PrototypeAssignment] | None = None
        one_query = network.one_query if isinstance(network, DenseNetwork) else None
        if one_query is not None and isinstance(self._assign, PrototypeAssignment):
            one_query = one_query.with_prototypes(self._assign.prototypes, codebook)
            self._one_query = one_query, self._assign

    def checked(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Check that items have the shape of the training items."""
        shape = self.config.item_shape
        return checked_images(X, shape) if len(shape) == 3 else checked_embeddings(X, shape[0])

    def outputs(
        self, items: npt.NDArray[Any], progress: OnProgress = None, *, scores: bool = True,
        cancel: Cancel = NEVER,
    ) -> Outputs:  # fmt: skip
        """Outputs of the network for items, without buckets."""
        if len(items) <= CHUNK:
            return self._network(items, scores)
        parts = []
        for start in range(0, len(items), CHUNK):
            cancel.check(f"after {start:,} of {len(items):,} items")
            parts.append(self._network(items[start : start + CHUNK], scores))
            if progress is not None:
                progress(min(start + CHUNK, len(items)), len(items))
        joined = (None if p[0] is None else np.concatenate(p) for p in zip(*parts, strict=True))
        return Outputs(*joined)  # type: ignore[arg-type]

    def bucket_ids(self, outputs: Outputs, n_probe: int = 1, cancel: Cancel = NEVER) -> Ints:
        """Buckets, int64[n, sparsity], or those of ``n_probe`` codes if they are ranked."""
        return self._assign(outputs, n_probe, cancel)

    def place(self, items: npt.NDArray[Any], codes: Ints | None) -> tuple[Floats, Ints]:
        """Vectors and buckets, int64[n, sparsity], of items of a table.

        ``codes``, int64[n], are the rows of the items in the code book; -1: by the network.
        """
        vectors, buckets = [], []
        for start in range(0, max(len(items), 1), CHUNK):
            outputs = self._network(items[start : start + CHUNK], False)
            if codes is None:
                chunk_buckets = self.bucket_ids(outputs)
            else:
                chunk_codes = codes[start : start + CHUNK]
                chunk_buckets = self.buckets_of_class(outputs.vectors, chunk_codes)
                unknown = np.flatnonzero(chunk_codes < 0)
                if len(unknown):
                    chunk_buckets[unknown] = self._assign(outputs.rows(unknown), 1)
            vectors.append(outputs.vectors)
            buckets.append(chunk_buckets)
        return np.concatenate(vectors), np.concatenate(buckets)

    def buckets_of_class(self, vectors: Floats, classes: Ints) -> Ints:
        """Buckets of items of known classes: the code of the class, or of its nearest part."""
        if isinstance(self._assign, PartAssignment):
            return self._assign.buckets_of_classes(vectors, classes[:, None], 1)
        return self._codebook[classes]

    def rank(self, vectors: Floats, n_probe: int) -> Ints | None:
        """Buckets of vectors, if these are the points that are compared with prototypes."""
        config = self.config
        if not config.uses_prototypes:
            return None
        if config.rerank == "given" and (config.point_size or config.embedding_size):
            return None
        return self._assign(Outputs(vectors, None, vectors), n_probe + _FILL_CODES)

    def encode(
        self, X: npt.ArrayLike, n_probe: int = 1, progress: OnProgress = None, *,
        scores: bool = True, cancel: Cancel = NEVER,
    ) -> Encoded:  # fmt: skip
        """Vectors, buckets and, if requested or needed, scores, in one pass of the network."""
        if not scores and n_probe <= _FEW_PROBES:
            encoded = self._encode_one(X, n_probe)
            if encoded is not None:
                return encoded
        outputs = self.outputs(self.checked(X), progress, scores=scores, cancel=cancel)
        ranked = self.bucket_ids(outputs, n_probe + _FILL_CODES, cancel)
        config = self.config
        bucket_ids, by_path = ranked[:, : config.shape.sparsity], not config.uses_codebook
        if not self._assign.ranks:
            return Encoded(outputs.vectors, bucket_ids, outputs.scores, by_path)
        all_ranked = ranked.shape[1] == config.n_codes * config.shape.sparsity
        return Encoded(outputs.vectors, bucket_ids, outputs.scores, by_path, ranked, all_ranked)

    def _encode_one(self, X: Any, n_probe: int) -> Encoded | None:
        """The same for one query, in one compiled call; None if it is not a plain, finite array."""
        if self._one_query is None:
            return None
        one_query, assign = self._one_query
        codebook = self._codebook
        n_ranked = min(n_probe + _FILL_CODES, len(codebook))
        result = one_query(X, n_ranked, assign.n_groups(n_ranked))
        if result is None:
            return None
        point, ranked = result
        vectors = X.copy() if self.config.rerank == "given" else point
        bucket_ids = ranked[:, : codebook.shape[1]]
        return Encoded(vectors, bucket_ids, None, False, ranked, n_ranked == len(codebook))


def _part_assignment(
    config: ResolvedConfig, weights: Weights, codebook: Ints, centroids: Floats
) -> PartAssignment:
    """Assignment to classes by their prototypes, then to parts of classes."""
    shape = config.shape
    class_of_part = checked_weights(weights, "class_of_part", (config.n_codes,), np.int64)
    steps = np.diff(class_of_part, prepend=-1)
    if not (class_of_part[0] == 0 and np.isin(steps, (0, 1)).all()):
        raise ValueError("class_of_part must ascend from 0 in steps of 1")
    is_first = steps > 0  # part of a class
    parent_shape = CodeShape(width=shape.width, depth=shape.depth - 1)
    sizes = config.n_codes, config.point_size or config.item_shape[0]
    class_prototypes = checked_weights(weights, "class_prototypes", sizes)[is_first]
    codes = codebook[is_first] // shape.width
    classes = PrototypeAssignment(codes, class_prototypes, parent_shape, config.shortlist)
    return PartAssignment(codebook, centroids, classes, class_of_part)


class DenseNetwork:
    """The networks on embeddings, ``backbone`` None or ``"mlp"``, as matrix products."""

    def __init__(self, config: ResolvedConfig, weights: Weights) -> None:
        self._config = config
        units, size = config.hidden_size, config.item_shape[0]
        in_backbone, n_slots = config.backbone == "mlp", config.shape.depth * config.shape.width
        self._hidden = self._base = self._points = self._embedding = None
        last, n_items = "head.0", 0 if units else size
        if units:
            name, last = ("hash_base.layers.0", last) if in_backbone else ("head.0", "head.2")
            if config.with_inputs:
                name, last, n_items = "head.0.layer", "head.1", size
            self._hidden = _Linear(weights, name, 0, size, units)
        self._slots = _Linear(weights, last, units, n_items, n_slots)
        if config.point_size:
            self._points = _Linear(weights, "vector_head", units, n_items, config.point_size)
        if config.embedding_size is not None and config.rerank == "given":
            if in_backbone:
                self._base = _Linear(weights, "base.layers.0", 0, size, units)
            input_sizes = (units, 0) if in_backbone else (0, size)
            self._embedding = _Linear(weights, "embedding", *input_sizes, config.embedding_size)
        self.one_query: OneQuery | None = None
        if config.with_inputs and self._points is not None and self._embedding is None:
            self.one_query = OneQuery.of(weights)

    def __call__(self, items: npt.NDArray[Any], with_scores: bool = True) -> Outputs:
        """Outputs for items, float32[n, size]."""
        config, shape, scores = self._config, self._config.shape, None
        if self.one_query is not None and len(items) == 1 and not with_scores:
            result = self.one_query(items, 0, 1)
            if result is not None:
                points = result[0]
                return Outputs(items.copy() if config.rerank == "given" else points, None, points)
        hidden = items if self._hidden is None else _relu(self._hidden(items))
        if config.with_inputs:
            hidden = np.concatenate([hidden, items], axis=1)
        points = items if self._points is None else _unit(self._points(hidden))
        if with_scores or not config.uses_prototypes:
            scores = self._slots(hidden).reshape(len(items), shape.depth, shape.width)
            if config.unit_length and not config.uses_prototypes:
                scores = _unit(scores)
        vectors = points
        if self._embedding is not None:
            vectors = self._embedding(items if self._base is None else _relu(self._base(items)))
            vectors = _unit(vectors) if config.unit_length else vectors
        elif config.rerank == "given":
            vectors = items.copy()  # not the caller's array
        return Outputs(vectors, scores, points)


class _Linear:
    """A linear layer on hidden values, on unprepared items, or on both concatenated."""

    def __init__(
        self, weights: Weights, name: str, n_hidden: int, n_items: int, outputs: int
    ) -> None:
        weight = checked_weights(weights, f"{name}.weight", (outputs, n_hidden + n_items)).copy()
        bias = checked_weights(weights, f"{name}.bias", (outputs,))
        if n_items:  # fold their centring and scaling into the weights
            exact = weight[:, n_hidden:].astype(np.float64)
            exact /= checked_weights(weights, "prepare.scale", ())
            bias = bias - exact @ checked_weights(weights, "prepare.mean", (n_items,))
            weight[:, n_hidden:] = exact
        self.weight, self.bias = np.ascontiguousarray(weight.T), bias.astype(np.float32)

    def __call__(self, values: npt.NDArray[Any]) -> Floats:
        products: Floats = values @ self.weight
        products += self.bias
        return products


def _relu(values: Floats) -> Floats:
    return np.maximum(values, 0.0, out=values)


def checked_weights(
    weights: Weights, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[Any]:
    """The weights with this name; raise ``ValueError`` unless they have the expected shape."""
    array = weights[name]
    if array.shape != shape or array.dtype != dtype:
        actual, expected = f"{array.dtype}{[*array.shape]}", f"{np.dtype(dtype)}{[*shape]}"
        raise ValueError(f"{name} is {actual}, must be {expected}")
    return array


def _unit(values: Floats) -> Floats:
    """Normalize to length 1 along the last axis."""
    if len(values) == 1 and values.ndim == 2:  # one query: the fewest calls
        length = math.sqrt(np.vdot(values, values))
        return values * np.float32(1.0 / max(length, 1e-12))
    lengths = np.sqrt(np.einsum("...i,...i->...", values, values))[..., None]
    result: Floats = values / np.maximum(lengths, np.float32(1e-12))
    return result


class PrototypeAssignment:
    """The nearest prototypes among those of the nearest groups of codes.

    Codes with the same first slots are a group. Slots are clusters, so the prototypes of a group
    are close to each other: only those of the groups with the nearest means are compared.
    """

    ranks = True

    def __init__(
        self, codebook: Ints, prototypes: Floats, shape: CodeShape, shortlist: int
    ) -> None:
        self.codebook, self.shortlist = codebook, shortlist
        groups = _groups(codebook[:, 0], shape)
        self._n_groups = int(groups.max()) + 1
        self.prototypes = GroupedVectors(prototypes, groups)

    def n_groups(self, n_classes: int) -> int:
        """Number of groups to compare, for the nearest ``n_classes``."""
        n_needed = _COMPARED_PER_CODE * n_classes * self._n_groups // len(self.codebook)
        return max(self.shortlist, n_needed)

    def classes(self, points: Floats, n_classes: int, cancel: Cancel = NEVER) -> Ints:
        """Rows of the code book, nearest prototype first, int64[n, n_classes]."""
        return self.prototypes.nearest(points, n_classes, self.n_groups(n_classes), cancel)

    def __call__(self, outputs: Outputs, n_probe: int, cancel: Cancel = NEVER) -> Ints:
        """See :class:`Assignment`; scores are not needed."""
        classes = self.classes(outputs.points, min(n_probe, len(self.codebook)), cancel)
        return self.codebook[classes].reshape(len(classes), -1)


def _groups(codes: Ints, shape: CodeShape) -> Ints:
    """Group numbers of codes, int64[n]: about as many groups as codes per group."""
    if len(codes) > FEW_PROTOTYPES:
        for levels in range(1, shape.depth):
            if shape.width**levels >= len(codes) ** 0.5:
                first_slots = codes // shape.width ** (shape.depth - levels)
                return np.unique(first_slots, return_inverse=True)[1]
    return np.zeros(len(codes), np.int64)
