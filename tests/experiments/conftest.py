"""Real data where there is some, tiny files in the same formats, and one small run."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from experiments.__main__ import run
from experiments.datasets.files import unpack
from experiments.rows import ResultRow, RowKey

REPOSITORY = Path(__file__).parent.parent.parent
ONLY = ["metric", "th", "vq", "ours", "ours+", "npairs", "k0", "k1"]


@pytest.fixture(scope="session")
def real_data():
    """Folder with the real files: HASHCADE_DATA, or a folder beside the repository."""
    name = os.environ.get("HASHCADE_DATA")
    folder = Path(name) if name else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is missing (HASHCADE_DATA names another folder)")
    return folder


@pytest.fixture(scope="session")
def unpacked(real_data, tmp_path_factory):
    """Function that unpacks an archive of the real data once, in a cache outside of git."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hashcade" / "data"

    def unpack_once(name, folder):
        archive = real_data / name
        if not archive.is_file():
            pytest.skip(f"no real data: {archive} is missing")
        place = base / folder
        if not place.is_dir():
            try:
                base.mkdir(parents=True, exist_ok=True)
            except OSError:
                place = tmp_path_factory.mktemp("unpacked") / folder
            unpack(archive, place)
        return place / folder

    return unpack_once


class Cifar:
    """A Cifar-100 of six training and four test images, three fine and two coarse classes."""

    fine_names = ("apple", "bear", "bus")
    coarse_names = ("living", "vehicle")

    def __init__(self):
        rng = np.random.default_rng(0)
        self.fine = {"train": [0, 2, 1, 1, 0, 2], "test": [2, 0, 1, 0]}
        self.coarse = {s: [int(c == 2) for c in fine] for s, fine in self.fine.items()}
        self.planes = {
            s: rng.integers(0, 256, (len(fine), 3072), dtype=np.uint8)
            for s, fine in self.fine.items()
        }

    def image(self, split, row):
        """Pixels by the definition of the format, one by one."""
        planes = self.planes[split][row]
        image = np.empty((32, 32, 3), np.uint8)
        for y in range(32):
            for x in range(32):
                for colour in range(3):
                    image[y, x, colour] = planes[1024 * colour + 32 * y + x]
        return image

    def write_pickles(self, folder, protocol=2):
        folder.mkdir(parents=True)
        for split, fine in self.fine.items():
            batch = {
                b"filenames": [b"a.png"] * len(fine),
                b"batch_label": b"a batch",
                b"fine_labels": fine,
                b"coarse_labels": self.coarse[split],
                b"data": self.planes[split],
            }
            (folder / split).write_bytes(pickle.dumps(batch, protocol))
        meta = {
            b"fine_label_names": [n.encode() for n in self.fine_names],
            b"coarse_label_names": [n.encode() for n in self.coarse_names],
        }
        (folder / "meta").write_bytes(pickle.dumps(meta, protocol))


@pytest.fixture(scope="session")
def cifar():
    return Cifar()


@pytest.fixture(scope="session")
def make_row():
    def make(method="ours", *, experiment="cifar100", loss="npairs", sparsity=1, database="test",
             variant="", seed=0, settings=None, **metrics):  # fmt: skip
        key = RowKey(experiment=experiment, preset="smoke", method=method, loss=loss,
                     sparsity=sparsity, database=database, variant=variant, seed=seed)  # fmt: skip
        return ResultRow(key=key, settings=settings or {"steps": 3}, metrics=metrics)

    return make


@pytest.fixture(scope="package")
def finished(tmp_path_factory):
    """Folder with ``out`` and ``work`` of a finished part of the smoke preset, and its outcome."""
    folder = tmp_path_factory.mktemp("experiments")
    outcome = run("cifar100", "smoke", output=folder / "out", work=folder / "work", only=ONLY,
                  seeds=(0, 1), verbose=False)  # fmt: skip
    return folder, outcome
