"""The demonstration runs, says what it found, and leaves a table and a picture."""

import re

import numpy as np
import pytest
from PIL import Image

from hashcade import CodeShape, HashTable
from hashcade.cli.demo import draw_buckets, load_digits


@pytest.mark.slow
def test_the_demonstration_learns_and_leaves_its_results(command, tmp_path):
    out = command("demo", "--output", tmp_path / "demo").out
    numbers = r" +([\d.,]+) +([\d.,]+) +([\d.,]+)$"
    exact = re.search("^all items" + numbers, out, re.MULTILINE).groups()
    hashed = re.search("^one bucket" + numbers, out, re.MULTILINE).groups()
    assert float(exact[0]) > 90
    assert float(exact[2]) == 1.0
    assert float(hashed[0]) > float(exact[0]) - 3
    assert float(hashed[2]) > 7  # of 10 classes
    table = HashTable.load(tmp_path / "demo" / "table")
    assert len(table) == 1198
    assert table.hasher.shape_ == CodeShape(width=8, depth=2)
    n_occupied = table.stats()["n_occupied"]
    assert f"all: 1,198 items in {n_occupied} buckets" in out
    with Image.open(tmp_path / "demo" / "buckets.png") as picture:
        assert picture.size[1] == n_occupied * 18


def test_digits_are_color_images():
    images, labels = load_digits()
    assert images.shape == (1797, 16, 16, 3)
    assert images.dtype == np.uint8
    assert images.max() == 255
    assert set(labels) == set(range(10))


def test_the_picture_shows_the_items_of_each_bucket(sample, tmp_path):
    table = HashTable.load(sample.table)
    colors = np.random.default_rng(0).integers(0, 256, size=(300, 3), dtype=np.uint8)
    images = np.broadcast_to(colors[:, None, None], (300, 16, 16, 3)).copy()
    draw_buckets(tmp_path / "buckets.png", table, images, most=5)
    with Image.open(tmp_path / "buckets.png") as picture:
        pixels = np.asarray(picture)
    bucket_ids, ids = table.index.entries()
    for row, bucket in enumerate(np.unique(bucket_ids)):
        for column, item in enumerate(np.sort(ids[bucket_ids == bucket])[:5]):
            assert (pixels[row * 18 + 8, 40 + column * 18 + 8] == colors[item]).all()
