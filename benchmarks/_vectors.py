"""Vectors with labels to fill indexes with: gaussian classes, and the Cifar-100 embeddings."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

DATA = Path(
    os.environ.get("HASHCADE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)

# Vectors, their labels, queries, their labels.
Vectors = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def gaussian_classes(dim: int, n: int, n_classes: int, n_tests: int, noise: float) -> Vectors:
    """``noise`` is the spread within a class, of that of the class means."""
    rng = np.random.default_rng(dim)
    means = rng.standard_normal((n_classes, dim), dtype=np.float32)
    labels = rng.integers(0, n_classes, n)
    vectors = rng.standard_normal((n, dim), dtype=np.float32)
    vectors *= noise
    vectors += means[labels]
    test_labels = rng.integers(0, n_classes, n_tests)
    tests = means[test_labels] + noise * rng.standard_normal((n_tests, dim), dtype=np.float32)
    return vectors, labels, tests, test_labels


def cifar100(dim: int, n_tests: int | None = None) -> Vectors | None:
    """Embeddings of 128 numbers: the first ``dim``, or again and again, at the same distances."""
    path = DATA / "cifar100_effnetlite0_pca128.npz"
    if not path.exists():
        return None
    with np.load(path) as file:
        parts = [file[part].astype(np.float32) for part in ("train", "test")]
        labels, test_labels = file["train_labels"].astype(int), file["test_labels"].astype(int)
    copies = max(dim // 128, 1)
    train, test = (np.hstack([x[:, :dim]] * copies) / np.float32(np.sqrt(copies)) for x in parts)
    return train, labels, test[:n_tests], test_labels[:n_tests]
