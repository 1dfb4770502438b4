"""A small table, and one with a model that takes images."""

import numpy as np
import pytest

from tests.serve.factories import make_table, serving


@pytest.fixture
def place(tmp_path):
    """The directory of a table without a model."""
    return make_table(tmp_path / "table")


@pytest.fixture
def client(place):
    with serving(table=place) as client:
        yield client


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a table of images and their pictures: handwritten digits, in seconds."""
    from sklearn.datasets import load_digits

    from hashcade import HashTable

    folder = tmp_path_factory.mktemp("trained")
    digits = load_digits()
    images, labels = digits.images[:600], digits.target[:600]
    images = np.repeat(np.repeat(images * 15.9, 2, axis=1), 2, axis=2).astype(np.uint8)
    images = np.repeat(images[..., None], 3, axis=3)  # uint8[600, 16, 16, 3]
    table = HashTable(
        width=6, depth=2, backbone="stride", embedding_size=16, augment="none",
        items_per_class=2, steps=20, base_steps=20, verbose=False,
    )  # fmt: skip
    names = np.array(["zero", "one", "two", "three", "four"])
    table.fit(images, np.array([*names, *"56789"])[labels])
    table.save(folder / "table")
    np.savez(folder / "pictures.npz", X=images, y=labels)
    return folder
