"""Small data, and one thread: two would wait for each other longer than they work."""

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 200)
    return 2 * rng.normal(size=(5, 6))[y] + 0.2 * rng.normal(size=(200, 6)), y
