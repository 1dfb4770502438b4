"""Class scores to measure with: random ones, and class means of real embeddings.

A score set makes the class scores of one mini-batch, level by level. Both kinds have rows of unit
length, as the triplet loss has on every level, and every call makes a batch of its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
EMBEDDINGS = "cifar100_effnetlite0_pca128.npz"

Scores = npt.NDArray[np.float64]


class ScoreSet(Protocol):
    """What makes class scores."""

    name: str

    def level_scores(
        self, rng: np.random.Generator, n_classes: int, width: int, n_levels: int
    ) -> Scores:
        """Scores of a new batch, float64[n_levels, n_classes, width], rows of unit length."""


class RandomScores:
    """Directions drawn evenly: no class is like another, no slot is liked more than another."""

    name = "random"

    def level_scores(
        self, rng: np.random.Generator, n_classes: int, width: int, n_levels: int
    ) -> Scores:
        return _unit_rows(rng.standard_normal((n_levels, n_classes, width)))


class EmbeddingScores:
    """Class means of real embeddings, sent through a random linear head per level.

    A class of the batch is the mean of ``images_per_class`` images of one real class. When a batch
    has more classes than there are real ones, each real one occurs several times, with other
    images as long as there are enough; such classes are alike, and want the same slots. The more
    images per class, the more they are alike.
    """

    def __init__(
        self,
        name: str,
        embeddings: npt.NDArray[np.floating],  # (n_images, n_features)
        labels: npt.NDArray[np.integer],  # (n_images,)
        images_per_class: int,
    ) -> None:
        self.name = name
        self._embeddings = embeddings.astype(np.float32)
        self._images = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        self._images_per_class = images_per_class
        fewest = min(map(len, self._images))
        if not 1 <= images_per_class <= fewest:
            raise ValueError(f"images_per_class={images_per_class} must be from 1 to {fewest}")

    def level_scores(
        self, rng: np.random.Generator, n_classes: int, width: int, n_levels: int
    ) -> Scores:
        images = self._draw_images(rng, n_classes)  # (n_classes, images_per_class)
        means = self._embeddings[images].mean(axis=1, dtype=np.float64)  # (n_classes, n_features)
        heads = rng.standard_normal((n_levels, means.shape[1], width))
        return _unit_rows(means @ heads)

    def _draw_images(self, rng: np.random.Generator, n_classes: int) -> npt.NDArray[np.int64]:
        real_class = np.resize(rng.permutation(len(self._images)), n_classes)
        drawn = np.empty((n_classes, self._images_per_class), np.int64)
        for c in np.unique(real_class):
            rows = np.flatnonzero(real_class == c)
            if drawn[rows].size <= len(self._images[c]):  # enough for all: none occurs twice
                shuffled = rng.permutation(self._images[c])
                drawn[rows] = shuffled[: drawn[rows].size].reshape(len(rows), -1)
            else:
                for row in rows:
                    drawn[row] = rng.choice(self._images[c], self._images_per_class, replace=False)
        return drawn


def _unit_rows(scores: Scores) -> Scores:
    return scores / np.linalg.norm(scores, axis=-1, keepdims=True)


def load_cifar100(images_per_class: int) -> EmbeddingScores:
    """The embeddings of the Cifar-100 training images; FileNotFoundError if they are not here."""
    folder = Path(os.environ.get("HASHCADE_DATA") or ROOT.parent / "shared" / "data")
    file = folder / EMBEDDINGS
    if not file.exists():
        where = "$HASHCADE_DATA" if os.environ.get("HASHCADE_DATA") else "../shared/data"
        raise FileNotFoundError(
            f"{EMBEDDINGS} is not in {where}; set HASHCADE_DATA to the folder that has it"
        )
    with np.load(file) as arrays:
        return EmbeddingScores(
            "cifar100", arrays["train"], arrays["train_labels"], images_per_class
        )
