"""The demonstration runs, says what it found, and leaves a table."""

import re

from hashcade import CodeShape, HashTable


def test_the_demonstration_learns_and_leaves_its_results(command, tmp_path):
    out = command("demo", "--output", tmp_path / "demo", "--steps", 20, "--quiet").out
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
    assert f"all: 1,198 items in {table.stats()['n_occupied']} buckets" in out
