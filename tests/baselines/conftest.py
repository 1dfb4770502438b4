"""Learning on small data: one thread is faster than two that wait for each other."""

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
