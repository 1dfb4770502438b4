"""One small run that several tests look at; one thread, as small data wants it."""

import pytest
import torch

from hashcade.reproduce import reproduce

ONLY = ["metric", "th", "vq", "ours", "ours+", "npairs", "k0", "k1"]


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def finished(tmp_path_factory):
    """Folder with ``out`` and ``work`` of a finished part of the smoke preset."""
    folder = tmp_path_factory.mktemp("reproduce")
    done = reproduce("cifar100", "smoke", out=folder / "out", work=folder / "work", only=ONLY,
                     seeds=(0, 1), verbose=False)  # fmt: skip
    return folder, done
