"""One small run that several tests look at."""

import pytest

from hashcade.reproduce import reproduce

ONLY = ["metric", "th", "vq", "ours", "ours+", "npairs", "k0", "k1"]


@pytest.fixture(scope="package")
def finished(tmp_path_factory):
    """Folder with ``out`` and ``work`` of a finished part of the smoke preset."""
    folder = tmp_path_factory.mktemp("reproduce")
    done = reproduce("cifar100", "smoke", out=folder / "out", work=folder / "work", only=ONLY,
                     seeds=(0, 1), verbose=False)  # fmt: skip
    return folder, done
