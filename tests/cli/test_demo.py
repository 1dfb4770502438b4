"""The demonstration learns, shows its rivals beside it, and leaves what it says it leaves."""

import re

from PIL import Image

from hashcade import CodeShape, HashTable


def test_the_demonstration_shows_its_rivals_and_leaves_a_table(command, tmp_path):
    out = command("demo", "--output", tmp_path / "demo", "--steps", 100).out
    numbers = r" +([\d.]+) +([\d.]+) +([\d,]+)"
    rows = {}
    for name in ("exhaustive search", "k-means", "classifier", "hashcade"):
        found = re.search(f"^  {name}{numbers}", out, re.MULTILINE).groups()
        rows[name] = [float(number.replace(",", "")) for number in found]
    assert rows["exhaustive search"][2] == 1198
    assert rows["exhaustive search"][0] > 95 > rows["k-means"][1]
    assert rows["hashcade"][1] > rows["exhaustive search"][1]
    assert rows["hashcade"][2] < 150  # of 10 classes
    table = HashTable.load(tmp_path / "demo" / "digits.table")
    assert len(table) == 1198
    assert table.hasher.shape_ == CodeShape(width=8, depth=2)
    assert (table.catalog.data / table[5].name).is_file()
    assert f"all: 1,198 items in {table.stats()['n_occupied']} buckets" in out
    with Image.open(tmp_path / "demo" / "tree.png") as picture:
        assert picture.width == 16 * 32
        assert picture.height >= table.stats()["n_occupied"] * 32
    assert f"hashcade serve {tmp_path / 'demo' / 'digits.table'}" in out
