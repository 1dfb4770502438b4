"""A small index and a small trained model."""

import numpy as np
import pytest
from services import make_index, serving

from hashcade import HashIndex


@pytest.fixture
def place(tmp_path):
    """A directory with an index."""
    make_index(tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def client(place):
    with serving(index=place) as made:
        yield made


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a model that takes images, its index, and the pictures: digits, in seconds."""
    from hashcade.demo import load_digits
    from hashcade.learn import Hasher

    folder = tmp_path_factory.mktemp("trained")
    images, labels = load_digits()
    images, labels = images[:600], labels[:600]
    hasher = Hasher(
        width=6, depth=2, backbone="stride", embedding_size=16, augment="none",
        items_per_class=2, steps=20, base_steps=20, verbose=False,
    )  # fmt: skip
    hasher.fit(images, labels).save(folder / "model")
    index = HashIndex.build(
        hasher.transform(images), hasher.embed(images), labels=labels, shape=hasher.shape_
    )
    index.save(folder / "index")
    np.savez(folder / "pictures.npz", X=images, y=labels)
    return folder
