"""Small data for the tests of the table."""

import numpy as np

NAMES = np.array(["ant", "bee", "cat", "dog", "elk", "fox"])


def make_items(n=240, seed=0, noise=0.3):
    """Embeddings of six classes, and their labels."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 6, n)
    centers = np.random.default_rng(7).normal(size=(6, 8))
    items = centers[numbers] + noise * rng.normal(size=(n, 8))
    return items.astype(np.float32), NAMES[numbers]
