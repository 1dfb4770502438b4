"""Real data, where there is some, and tiny files in the same formats."""

import os
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def real_data():
    """Folder with the real files: HASHCADE_DATA, or a folder beside the repository."""
    named = os.environ.get("HASHCADE_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not there (HASHCADE_DATA names another folder)")
    return folder


@pytest.fixture(scope="session")
def unpacked(real_data, tmp_path_factory):
    """Function that unpacks an archive of the real data once, in a cache outside of git."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hashcade"

    def unpack(name, folder):
        archive = real_data / name
        if not archive.is_file():
            pytest.skip(f"no real data: {archive} is not there")
        if not (base / folder).is_dir():
            try:
                base.mkdir(parents=True, exist_ok=True)
                temporary = base / f"unpacking-{os.getpid()}"
                temporary.mkdir()
            except OSError:
                temporary = tmp_path_factory.mktemp("unpacking")
            # Read forward only: with going back, the archive would be unpacked again and again.
            with tarfile.open(archive, "r|*") as tar:
                tar.extractall(temporary, filter="data")
            if temporary.parent != base:
                return temporary / folder
            try:
                (temporary / folder).rename(base / folder)
            except OSError:  # another run was faster
                assert (base / folder).is_dir()
            shutil.rmtree(temporary)
        return base / folder

    return unpack


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

    def write_binary(self, folder):
        folder.mkdir(parents=True)
        for split, fine in self.fine.items():
            records = np.column_stack([self.coarse[split], fine, self.planes[split]])
            (folder / f"{split}.bin").write_bytes(records.astype(np.uint8).tobytes())
        (folder / "fine_label_names.txt").write_text("\n".join(self.fine_names) + "\n")
        (folder / "coarse_label_names.txt").write_text("\n".join(self.coarse_names) + "\n")


@pytest.fixture(scope="session")
def cifar():
    return Cifar()
