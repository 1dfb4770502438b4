"""New classes for a model with prototypes, from a few items of each. No torch.

Points of unknown classes are mixed with those of others: the network discards what it does not need
for known classes. So the last layer, which takes the embeddings and the hidden layer, is trained
for them. Items of the known classes are not available; the model has their means, and noise around
them. For items sampled from these the outputs of the last layer must not change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape, solve_level
from hashcade.learn.assignment import Floats, Ints, Outputs
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.encoder import Weights
from hashcade.learn.one_query import rounded_to_half

_FIXED_SCORE = 1e4  # score of a slot that a class must keep: above all scores and penalties

# Chosen on validation classes of Cifar-100 and CLINC150.
_STEPS, _BATCH = 100, 256
_LAYER_RATE, _PROTOTYPE_RATE = 1e-3, 1e-2
_STABILITY = 3.0  # weight of the squared change of points of known classes
_ODDS = 2.0  # items of a new class, per item of a known class
_MOST_CLASSES = 2048  # known classes that are used
LARGEST_HALF = float(np.finfo(np.float16).max)  # bound of stored means and noise


def extended_weights(
    weights: Weights, config: ResolvedConfig, items: Floats, outputs: Outputs, labels: Ints,
    seed: int,
) -> dict[str, npt.NDArray[Any]]:  # fmt: skip
    """Weights with prototypes and codes of new classes 0, 1, 2, ... after the known ones."""
    sizes = np.bincount(labels)[:, None]
    prototypes = (_sums(outputs.points, labels) / sizes).astype(np.float32)
    if config.point_size:  # the mean of all points is not specific to a class
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
        extended["vector_head.weight"] = rounded_to_half(
            np.ascontiguousarray(training.layer[:-1].T)
        )
        extended["vector_head.bias"] = training.layer[-1].copy()
        means = np.clip(_sums(inputs, labels) / sizes, -LARGEST_HALF, LARGEST_HALF)
        stored_means = means.astype(np.float16)
        extended["class_means"] = np.concatenate([weights["class_means"], stored_means])
    extended["prototypes"] = np.concatenate([weights["prototypes"], prototypes])
    extended["codebook"] = np.concatenate([weights["codebook"], codes])
    return extended


class _LastLayer:
    """Trains the layer of the points, and the prototypes of new classes.

    By cross-entropy of cosines, as in the training of the model. The targets of items of new
    classes are their labels, of others the softmax of the old model.
    """

    def __init__(
        self, weights: Weights, inputs: Floats, labels: Ints, prototypes: Floats, sharpness: float
    ) -> None:
        self._inputs, self._labels, self._sharpness = inputs, labels, sharpness
        self._hidden = weights["head.0.layer.weight"].T, weights["head.0.layer.bias"]
        layer = weights["vector_head.weight"].T, weights["vector_head.bias"][None]
        self._old_layer: Floats = np.concatenate(layer)
        self.layer, self.prototypes = self._old_layer.copy(), prototypes.copy()
        self._noise = weights["noise"].astype(np.float32)
        self._weights = weights

    def train(self, rng: np.random.Generator) -> None:
        """Train layer and prototypes."""
        classes = self._classes(rng)
        old_prototypes = self._weights["prototypes"][classes]
        means = self._weights["class_means"][classes].astype(np.float32)
        n_old, n_new = len(old_prototypes), len(self.prototypes)
        share = _ODDS * n_new / (_ODDS * n_new + n_old)
        n_rows = min(max(round(share * _BATCH), _BATCH // 64), _BATCH // 2)  # of new classes
        by_class = np.argsort(self._labels, kind="stable")
        sizes = np.bincount(self._labels)
        starts = np.cumsum(sizes) - sizes
        optimizers = (_Adam(self.layer, _LAYER_RATE), _Adam(self.prototypes, _PROTOTYPE_RATE))
        for step in range(_STEPS):
            # ---- a batch
            labels = rng.integers(n_new, size=n_rows)
            rows = by_class[starts[labels] + (rng.random(n_rows) * sizes[labels]).astype(np.int64)]
            old_inputs = means[rng.integers(n_old, size=_BATCH - n_rows)]
            inputs = np.concatenate([self._inputs[rows], old_inputs])
            signs = rng.choice(np.array([-1, 1], np.float32), size=(_BATCH, 1))
            inputs += signs * self._noise[rng.integers(len(self._noise), size=_BATCH)]
            values = self._features(inputs)

            # ---- targets and outputs
            old_points = _unit(values[n_rows:] @ self._old_layer)
            targets = np.zeros((_BATCH, n_old + n_new), np.float32)
            targets[np.arange(n_rows), n_old + labels] = 1.0
            targets[n_rows:, :n_old] = _softmax(self._sharpness * old_points @ old_prototypes.T)
            prototypes = np.concatenate([old_prototypes, self.prototypes])
            products = values @ self.layer
            points = _unit(products)

            # ---- gradients
            errors = _softmax(self._sharpness * points @ prototypes.T) - targets
            errors *= self._sharpness / _BATCH
            gradient = errors @ prototypes
            gradient[n_rows:] += 2.0 * _STABILITY / len(old_points) * (points[n_rows:] - old_points)
            gradient -= np.einsum("ij,ij->i", gradient, points)[:, None] * points
            gradient /= np.maximum(np.linalg.norm(products, axis=1, keepdims=True), 1e-12)
            for optimizer, array_gradient in zip(
                optimizers, (values.T @ gradient, errors[:, n_old:].T @ points), strict=True
            ):
                optimizer.step(array_gradient, step, 1.0 - step / _STEPS)
            self.prototypes[:] = _unit(self.prototypes)

    def _classes(self, rng: np.random.Generator) -> Ints:
        """Known classes that are used; of many the nearest to new ones, and a random sample."""
        old_prototypes = self._weights["prototypes"]
        if len(old_prototypes) <= _MOST_CLASSES:
            return np.arange(len(old_prototypes))
        nearest = np.full(len(old_prototypes), -np.inf, np.float32)
        for start in range(0, len(self.prototypes), _BATCH):
            cosines = old_prototypes @ self.prototypes[start : start + _BATCH].T
            np.maximum(nearest, cosines.max(axis=1), out=nearest)
        order = np.argsort(-nearest, kind="stable")
        near_classes, far = np.split(order, [_MOST_CLASSES // 2])
        others = rng.choice(far, _MOST_CLASSES - len(near_classes), replace=False)
        return np.concatenate([near_classes, others])

    def _features(self, inputs: Floats) -> Floats:
        """Hidden values, inputs, and 1 for the bias."""
        weight, bias = self._hidden
        hidden = np.maximum(inputs @ weight + bias, 0.0)
        return np.concatenate([hidden, inputs, np.ones((len(inputs), 1), np.float32)], axis=1)


class _Adam:
    """Adam (Kingma & Ba, 2015) for one array, which is updated in place."""

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

    The cascade over all classes, in which large scores keep known classes in their slots.
    """
    n_old, n_new = len(book), len(scores)
    by_level = scores.reshape(n_new, shape.depth, shape.width)
    paths = shape.paths(book.ravel()).reshape(n_old, shape.sparsity, shape.depth)
    parent = np.zeros(n_old + n_new, np.int64)
    last_slots = np.empty((n_new, 0), np.int64)
    for level in range(shape.depth):
        last = level == shape.depth - 1
        fit = np.zeros((n_old + n_new, shape.width))
        fixed_slots = paths[:, :, level] if last else paths[:, :1, level]
        np.put_along_axis(fit[:n_old], fixed_slots, _FIXED_SCORE, axis=1)
        fit[n_old:] = by_level[:, level]
        codes = solve_level(
            fit,
            sparsity=shape.sparsity if last else 1,
            sibling_groups=parent if level else None,
            **penalties,
        )
        last_slots = np.nonzero(codes[n_old:])[1].reshape(n_new, -1)
        if not last:
            parent = parent * shape.width + codes.argmax(axis=1)
    return parent[n_old:, None] * shape.width + last_slots


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
