"""Small data of every kind that the command line reads, and the installed command."""

import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import hashcade

COMMAND = Path(sys.executable).with_name("hashcade")
COLORS = {"apple": (220, 30, 30), "leaf": (30, 160, 40), "sea": (20, 60, 200)}


def clean_environment(home, *, shadows=None, **more):
    """What a fresh login has, with the command and the package under test.

    Modules in the folder ``shadows`` stand before the real ones.
    """
    package = str(Path(hashcade.__file__).parents[1])
    return {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(COMMAND.parent), "/usr/bin", "/bin"]),
        "PYTHONPATH": os.pathsep.join([str(shadows), package] if shadows else [package]),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        **{name: os.environ[name] for name in ("NUMBA_CACHE_DIR",) if name in os.environ},
        **more,
    }


def make_photos(folder, per_class=12, seed=0):
    """One sub-folder of images per class, of several sizes and formats: noise around a color."""
    rng = np.random.default_rng(seed)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            sides = rng.integers(30, 60, size=2)
            pixels = np.asarray(color) + 25 * rng.normal(size=(*sides, 3))
            image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            image.save(folder / name / f"{number:02d}.{'png' if number % 2 else 'jpg'}")


def make_query(path, color="leaf", seed=9):
    rng = np.random.default_rng(seed)
    pixels = np.asarray(COLORS[color]) + 25 * rng.normal(size=(50, 40, 3))
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)


def make_embeddings(n=300, size=16, n_classes=6, seed=0):
    """Embeddings around a center per class, and the names of the classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    X = 3 * rng.normal(size=(n_classes, size))[y] + 0.3 * rng.normal(size=(n, size))
    return X.astype(np.float32), np.array([f"kind {label}" for label in y])
