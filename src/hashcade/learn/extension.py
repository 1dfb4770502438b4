"""Further classes for a model with prototypes, without training. No torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.codes import CodeShape, solve_level
from hashcade.learn.assignment import Floats, Ints
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.encoder import Outputs, Weights

_HELD = 1e4  # score of a slot that a class must keep: beyond all scores and penalties


def extended_weights(
    weights: Weights, config: ResolvedConfig, outputs: Outputs, labels: Ints
) -> dict[str, npt.NDArray[Any]]:
    """Weights with prototypes and codes of new classes 0, 1, 2, ... after those that are there."""
    sizes = np.bincount(labels)[:, None]
    prototypes = _sums(outputs.points, labels) / sizes
    if config.point_size:  # what all points have in common says nothing about a class
        prototypes -= weights["point_mean"]
        prototypes /= np.maximum(np.linalg.norm(prototypes, axis=1, keepdims=True), 1e-12)
    assert outputs.scores is not None
    scores = _sums(outputs.scores.reshape(len(labels), -1), labels) / sizes
    penalties = config.stages[-1].penalties
    codes = new_codes(weights["codebook"], scores, config.shape, **penalties)
    return {
        **weights,
        "prototypes": np.concatenate([weights["prototypes"], prototypes.astype(np.float32)]),
        "codebook": np.concatenate([weights["codebook"], codes]),
    }


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


def _sums(values: Floats, labels: Ints) -> npt.NDArray[np.float64]:
    sums = np.zeros((labels.max() + 1, values.shape[1]))
    np.add.at(sums, labels, values)
    return sums
