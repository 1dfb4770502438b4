"""Small data sets for the tests of learning."""

import numpy as np

from hashcade.learn.assignment import CodebookAssignment, Outputs

QUICK = {"width": 4, "steps": 30, "hidden_size": 16, "verbose": False}


def blobs(n_classes=6, per_class=20, size=8, seed=0, noise=0.3, scale=3.0, labels=None):
    """Classes around random centres: float32[n, size], and their labels."""
    rng = np.random.default_rng(seed)
    centres = scale * rng.normal(size=(n_classes, size))
    y = np.repeat(np.arange(n_classes) if labels is None else labels, per_class)
    X = np.repeat(centres, per_class, axis=0) + noise * rng.normal(size=(len(y), size))
    return X.astype(np.float32), y


def images(n_classes=3, per_class=10, side=8, seed=0):
    """Images in which a class has a colour channel of its own: uint8[n, side, side, 3]."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_classes), per_class)
    X = rng.integers(0, 60, size=(len(y), side, side, 3), dtype=np.uint8)
    X[np.arange(len(y)), :, :, y % 3] += 150
    return X, y


def by_codebook(scores, codebook, shape):
    """Buckets by the sums of slot scores alone; a code book looks at no points."""
    return CodebookAssignment(codebook, shape)(Outputs(None, scores, None), 1)
