"""Further classes for a model with prototypes, from a few items of each. No torch.

Points of classes that were never learned lie among those of others: the network has dropped what
it did not need. So the last layer, which sees the embeddings beside the hidden layer, is trained
for them. Items of the learned classes are not at hand; the model has their means and the noise
around these, and what it made of such items before, the last layer must still make of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape, solve_level
from hashcade.learn.assignment import Floats, Ints
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.encoder import Outputs, Weights

_HELD = 1e4  # score of a slot that a class must keep: beyond all scores and penalties

# Picked on validation classes of Cifar-100 and CLINC150.
_STEPS, _BATCH = 100, 256
_RATE, _PROTOTYPE_RATE = 1e-3, 1e-2
_KEEP = 3.0  # weight of how far points of learned classes move
_ODDS = 2.0  # items of an added class, to one of a learned class
_MOST_CLASSES = 2048  # learned ones that are looked at
LARGEST_HALF = float(np.finfo(np.float16).max)  # of what is stored


def extended_weights(
    weights: Weights, config: ResolvedConfig, items: Floats, outputs: Outputs, labels: Ints,
    seed: int,
) -> dict[str, npt.NDArray[Any]]:  # fmt: skip
    """Weights with prototypes and codes of new classes 0, 1, 2, ... after those that are there."""
    sizes = np.bincount(labels)[:, None]
    prototypes = (_sums(outputs.points, labels) / sizes).astype(np.float32)
    if config.point_size:  # what all points have in common says nothing about a class
        prototypes = _unit(prototypes - weights["point_mean"])
    assert outputs.scores is not None
    scores = _sums(outputs.scores.reshape(len(labels), -1), labels) / sizes
    penalties = config.stages[-1].penalties
    codes = new_codes(weights["codebook"], scores, config.shape, **penalties)
    extended = {**weights}
    if config.recalls_classes:
        prepared = (items - weights["prepare.mean"]) / weights["prepare.scale"]
        inputs = prepared.astype(np.float32, copy=False)
        training = _LastLayer(weights, inputs, labels, prototypes, config.stages[-1].sharpness)
        training.train(np.random.default_rng(seed))
        prototypes = training.prototypes
        extended["vector_head.weight"] = np.ascontiguousarray(training.layer[:-1].T)
        extended["vector_head.bias"] = training.layer[-1].copy()
        means = np.clip(_sums(inputs, labels) / sizes, -LARGEST_HALF, LARGEST_HALF)
        halves = means.astype(np.float16)
        extended["class_means"] = np.concatenate([weights["class_means"], halves])
    extended["prototypes"] = np.concatenate([weights["prototypes"], prototypes])
    extended["codebook"] = np.concatenate([weights["codebook"], codes])
    return extended


class _LastLayer:
    """The layer that makes points, and prototypes of new classes, in training.

    By cross-entropy of cosines, as all was learned. Targets of items of new classes are these, of
    others the softmax that the model had before.
    """

    def __init__(
        self, weights: Weights, inputs: Floats, labels: Ints, prototypes: Floats, sharpness: float
    ) -> None:
        self._inputs, self._labels, self._sharpness = inputs, labels, sharpness
        self._hidden = weights["head.0.layer.weight"].T, weights["head.0.layer.bias"]
        layer = weights["vector_head.weight"].T, weights["vector_head.bias"][None]
        self._before: Floats = np.concatenate(layer)
        self.layer, self.prototypes = self._before.copy(), prototypes.copy()
        self._noise = weights["noise"].astype(np.float32)
        self._weights = weights

    def train(self, rng: np.random.Generator) -> None:
        """Change layer and prototypes."""
        classes = self._classes(rng)
        learned = self._weights["prototypes"][classes]
        means = self._weights["class_means"][classes].astype(np.float32)
        n_old, n_new = len(learned), len(self.prototypes)
        share = _ODDS * n_new / (_ODDS * n_new + n_old)
        n_rows = min(max(round(share * _BATCH), _BATCH // 64), _BATCH // 2)  # of new classes
        by_class = np.argsort(self._labels, kind="stable")
        sizes = np.bincount(self._labels)
        starts = np.cumsum(sizes) - sizes
        rates = (_Adam(self.layer, _RATE), _Adam(self.prototypes, _PROTOTYPE_RATE))
        for step in range(_STEPS):
            # ---- a batch
            own = rng.integers(n_new, size=n_rows)
            rows = by_class[starts[own] + (rng.random(n_rows) * sizes[own]).astype(np.int64)]
            some = means[rng.integers(n_old, size=_BATCH - n_rows)]
            inputs = np.concatenate([self._inputs[rows], some])
            signs = rng.choice(np.array([-1, 1], np.float32), size=(_BATCH, 1))
            inputs += signs * self._noise[rng.integers(len(self._noise), size=_BATCH)]
            values = self._features(inputs)

            # ---- what is wanted, and what is there
            before = _unit(values[n_rows:] @ self._before)
            targets = np.zeros((_BATCH, n_old + n_new), np.float32)
            targets[np.arange(n_rows), n_old + own] = 1.0
            targets[n_rows:, :n_old] = _softmax(self._sharpness * before @ learned.T)
            prototypes = np.concatenate([learned, self.prototypes])
            products = values @ self.layer
            points = _unit(products)

            # ---- gradients
            errors = _softmax(self._sharpness * points @ prototypes.T) - targets
            errors *= self._sharpness / _BATCH
            pull = errors @ prototypes
            pull[n_rows:] += 2.0 * _KEEP / len(before) * (points[n_rows:] - before)
            pull -= np.einsum("ij,ij->i", pull, points)[:, None] * points
            pull /= np.maximum(np.linalg.norm(products, axis=1, keepdims=True), 1e-12)
            for adam, gradient in zip(
                rates, (values.T @ pull, errors[:, n_old:].T @ points), strict=True
            ):
                adam.step(gradient, step, 1.0 - step / _STEPS)
            self.prototypes[:] = _unit(self.prototypes)

    def _classes(self, rng: np.random.Generator) -> Ints:
        """Learned classes that are looked at; of many the nearest to new ones, and others."""
        learned = self._weights["prototypes"]
        if len(learned) <= _MOST_CLASSES:
            return np.arange(len(learned))
        nearest = np.full(len(learned), -np.inf, np.float32)
        for at in range(0, len(self.prototypes), _BATCH):
            cosines = learned @ self.prototypes[at : at + _BATCH].T
            np.maximum(nearest, cosines.max(axis=1), out=nearest)
        order = np.argsort(-nearest, kind="stable")
        near, rest = np.split(order, [_MOST_CLASSES // 2])
        others = rng.choice(rest, _MOST_CLASSES - len(near), replace=False)
        return np.concatenate([near, others])

    def _features(self, inputs: Floats) -> Floats:
        """Hidden values, inputs and a one, for the bias."""
        weight, bias = self._hidden
        hidden = np.maximum(inputs @ weight + bias, 0.0)
        return np.concatenate([hidden, inputs, np.ones((len(inputs), 1), np.float32)], axis=1)


class _Adam:
    """Adam (Kingma & Ba, 2015) for one array, which it changes."""

    def __init__(self, values: Floats, rate: float) -> None:
        self._values, self._rate = values, rate
        self._mean, self._square = np.zeros_like(values), np.zeros_like(values)

    def step(self, gradient: Floats, number: int, factor: float) -> None:
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.001 * (gradient**2 - self._square)
        mean = self._mean / (1.0 - 0.9 ** (number + 1))
        size = np.sqrt(self._square / (1.0 - 0.999 ** (number + 1))) + 1e-8
        self._values -= self._rate * factor * mean / size


def new_codes(
    book: Ints, scores: npt.NDArray[np.float64], shape: CodeShape, **penalties: float
) -> Ints:
    """Codes for new classes, int64[n, sparsity], by scores float[n, depth * width].

    The cascade over all classes, those that have codes held in their slots by large scores.
    """
    n_old, n_new = len(book), len(scores)
    by_level = scores.reshape(n_new, shape.depth, shape.width)
    paths = shape.paths(book.ravel()).reshape(n_old, shape.sparsity, shape.depth)
    parent = np.zeros(n_old + n_new, np.int64)
    chosen = np.empty((n_new, 0), np.int64)
    for level in range(shape.depth):
        last = level == shape.depth - 1
        fit = np.zeros((n_old + n_new, shape.width))
        held = paths[:, :, level] if last else paths[:, :1, level]
        np.put_along_axis(fit[:n_old], held, _HELD, axis=1)
        fit[n_old:] = by_level[:, level]
        codes = solve_level(
            fit,
            sparsity=shape.sparsity if last else 1,
            sibling_groups=parent if level else None,
            **penalties,
        )
        chosen = np.nonzero(codes[n_old:])[1].reshape(n_new, -1)
        if not last:
            parent = parent * shape.width + codes.argmax(axis=1)
    return parent[n_old:, None] * shape.width + chosen


def _unit(values: Floats) -> Floats:
    result: Floats = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    return result


def _softmax(values: Floats) -> Floats:
    powers: Floats = np.exp(values - values.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def _sums(values: Floats, labels: Ints) -> npt.NDArray[np.float64]:
    sums = np.zeros((labels.max() + 1, values.shape[1]))
    np.add.at(sums, labels, values)
    return sums
