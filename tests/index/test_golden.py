"""Stored files of this format version, made once: they are read, and come out again as they are.

``python tests/index/test_golden.py`` writes them again, after a change of the format.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from hashcade import CodeShape, HashIndex
from hashcade.index import is_index, read_generation

GOLDEN = Path(__file__).parent / "golden"
SHAPES = {
    "plain": CodeShape(width=3, depth=2),
    "several": CodeShape(width=4, depth=1, sparsity=2),
    "coded": CodeShape(width=3, depth=2),
    "halved": CodeShape(width=3, depth=2),
}


def make(name):
    """An index with two segments and removed items, from whole numbers: the same everywhere."""
    shape = SHAPES[name]
    rng = np.random.RandomState(7)  # its numbers never change
    buckets = rng.randint(0, shape.n_buckets, (14, shape.sparsity))
    vectors = rng.randint(-9, 10, (14, 5)).astype(np.float32)
    labels = rng.randint(-1, 3, 14) if name == "several" else None
    index = HashIndex.build(
        buckets[:9], vectors[:9], labels=None if labels is None else labels[:9], shape=shape,
        first_pass="int8" if name in ("coded", "halved") else None,
        dtype="float16" if name == "halved" else "float32",
    )  # fmt: skip
    index.add(
        buckets[9:12], vectors[9:12], ids=[40, 20, 30],
        labels=None if labels is None else labels[9:12],
    )  # fmt: skip
    index.remove([2, 20])
    return index


def answers(index):
    everything = np.tile(np.arange(index.shape.n_buckets), (3, 1))
    queries = np.arange(15, dtype=np.float32).reshape(3, 5) - 7
    result = index.search(queries, bucket_ids=everything, n_neighbors=12)
    return {
        "ids": result.ids.tolist(),
        "distances": [[f"{d:.6g}" for d in row] for row in result.distances],
        "labels": index.labels_of(result.ids).tolist(),
        "next_id": index.next_id,
    }


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("mmap", [True, False])
def test_a_stored_index_is_read_as_it_was(name, mmap):
    assert is_index(GOLDEN / name)
    index = HashIndex.load(GOLDEN / name, mmap=mmap)
    assert index.generation == read_generation(GOLDEN / name)
    index.verify()
    assert answers(index) == json.loads((GOLDEN / f"{name}.json").read_text())
    assert answers(make(name)) == answers(index)


@pytest.mark.parametrize("name", SHAPES)
def test_the_same_index_is_written_as_the_same_bytes(name, tmp_path):
    make(name).save(tmp_path / "a")
    assert contents(tmp_path / "a") == contents(GOLDEN / name)


def contents(directory):
    """All files but for the lock, with names that are made at random replaced by their order."""
    manifest = (directory / "manifest.json").read_text()
    uids = list(dict.fromkeys(re.findall(r"[0-9a-f]{32}", manifest)))
    number = {uid: f"uid{k}" for k, uid in enumerate(uids)}

    def renamed(text):
        return re.sub(r"[0-9a-f]{32}", lambda match: number[match[0]], text)

    files = {
        renamed(path.name): path.read_bytes()
        for path in directory.glob("*.bin")
    }  # fmt: skip
    files["manifest.json"] = re.sub(r'"checksum": "\w+"', "", renamed(manifest)).encode()
    return files


if __name__ == "__main__":
    for golden in SHAPES:
        make(golden).save(GOLDEN / golden)
        (GOLDEN / golden / "lock").unlink()
        (GOLDEN / f"{golden}.json").write_text(json.dumps(answers(make(golden)), indent=1) + "\n")
