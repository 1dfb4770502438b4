"""Small data of every kind that the command line reads."""

import numpy as np
from PIL import Image

COLOURS = {"apple": (220, 30, 30), "leaf": (30, 160, 40), "sea": (20, 60, 200)}


def make_photos(folder, per_class=12, seed=0):
    """Folders of images by class, of several sizes and kinds: noise around a colour."""
    rng = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            sides = rng.integers(30, 60, size=2)
            pixels = np.asarray(colour) + 25 * rng.normal(size=(*sides, 3))
            image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            image.save(folder / name / f"{number:02d}.{'png' if number % 2 else 'jpg'}")


def make_query(path, colour="leaf", seed=9):
    rng = np.random.default_rng(seed)
    pixels = np.asarray(COLOURS[colour]) + 25 * rng.normal(size=(50, 40, 3))
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)


def make_embeddings(n=300, size=16, n_classes=6, seed=0):
    """Embeddings around a centre per class, and the names of the classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    X = 3 * rng.normal(size=(n_classes, size))[y] + 0.3 * rng.normal(size=(n, size))
    return X.astype(np.float32), np.array([f"kind {label}" for label in y])
