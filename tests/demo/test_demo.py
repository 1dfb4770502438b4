"""The demonstration runs, says what it found, and leaves a model, an index and a picture."""

import re

import numpy as np
import pytest

from hashcade import CodeShape, Hasher, HashIndex
from hashcade.demo import load_digits, main

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
def test_the_demonstration_learns_and_leaves_its_results(tmp_path, capsys):
    assert main(["--output", str(tmp_path / "demo")]) == 0
    out = capsys.readouterr().out
    exact = float(re.search(r"^exhaustive +([\d.]+)", out, re.MULTILINE)[1])
    found, _, speedup = re.search(
        r"^hashcade +([\d.]+) +([\d.]+) +([\d.]+)", out, re.MULTILINE
    ).groups()
    assert exact > 90
    assert float(found) > exact - 3
    assert float(speedup) > 7  # of 10 classes
    assert len(HashIndex.load(tmp_path / "demo" / "index")) == 1198
    assert Hasher.load(tmp_path / "demo" / "model").shape_ == CodeShape(width=8, depth=2)
    assert (tmp_path / "demo" / "tree.png").read_bytes().startswith(PNG)


def test_digits_are_colour_images():
    images, labels = load_digits()
    assert images.shape == (1797, 16, 16, 3)
    assert images.dtype == np.uint8
    assert images.max() == 255
    assert set(labels) == set(range(10))
