"""Small data for all of these."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 200)
    return 2 * rng.normal(size=(5, 6))[y] + 0.2 * rng.normal(size=(200, 6)), y
