"""Tables without a model, on disk, and queries for them."""

from dataclasses import dataclass

import numpy as np

from hashcade import CodeShape, HashIndex, HashTable
from hashcade.index import Encoded
from hashcade.store import Catalog

CLASSES = ["ant", "bee", "cat", None]


@dataclass(frozen=True)
class Kind:
    """What a table is like."""

    n: int = 300
    dim: int = 6
    width: int = 4
    depth: int = 2
    sparsity: int = 1
    metric: str = "euclidean"
    text_ids: bool = False
    first_pass: str | None = None  # with which it is published


KIND = Kind(n=200)
ALL_BUCKETS = {"n_neighbors": 300}  # a search that reads every block


def items(kind, n, rng):
    """Items as a model would encode them; vectors on a grid, so that distances are equal often."""
    vectors = rng.integers(-2, 3, size=(n, kind.dim)).astype(np.float32)
    vectors[:, 0] += 0.5  # none is zero everywhere
    scores = rng.normal(size=(n, kind.depth, kind.width)).astype(np.float32)
    shape = CodeShape(width=kind.width, depth=kind.depth, sparsity=kind.sparsity)
    buckets = shape.scores_to_bucket_ids(scores.astype(np.float64))
    return Encoded(vectors, buckets, scores, by_path=False)


def fill(table, kind, n, rng, first=0):
    """Add items with labels, names and payload; returns their ids."""
    ids = [f"item {number}" for number in range(first, first + n)] if kind.text_ids else None
    return table.add(
        items(kind, n, rng),
        labels=[CLASSES[code] for code in rng.integers(0, 4, size=n)],
        ids=ids,
        names=[f"name {number}" for number in range(n)],
        payload=[{"price": int(price)} for price in rng.integers(0, 10, size=n)],
        new_labels=True,
    )


def empty_table(kind):
    shape = CodeShape(width=kind.width, depth=kind.depth, sparsity=kind.sparsity)
    none = np.empty((0, kind.sparsity), np.int64), np.empty((0, kind.dim), np.float32)
    index = HashIndex.build(
        *none, labels=np.empty(0, np.int64), shape=shape, unit_length=kind.metric == "cosine"
    )
    return HashTable.from_parts(None, index, Catalog(metric=kind.metric))


def saved_table(path, kind, rng):
    """A table on disk of several segments, of which some items were removed."""
    table = empty_table(kind)
    sizes = [kind.n - kind.n // 3 - kind.n // 12, kind.n // 3, kind.n // 12]
    at = 0
    for size in sizes:
        if size:
            ids = fill(table, kind, size, rng, first=at)
            at += size
            table.remove(rng.choice(ids, size // 10, replace=False))
    table.save(path)
    return table


def assert_same(found, expected):
    """Two searches gave the same, bit for bit."""
    for name in ("ids", "distances", "candidates", "truncated", "exact", "labels", "names"):
        one, two = getattr(found, name), getattr(expected, name)
        assert one.dtype == two.dtype, name
        assert one.tolist() == two.tolist(), name
    assert found.distances.tobytes() == expected.distances.tobytes()
    assert found.payload.tolist() == expected.payload.tolist()


def tables(tmp_path, n, seed=0):
    paths = [tmp_path / f"table{number}" for number in range(n)]
    for number, path in enumerate(paths):
        saved_table(path, KIND, np.random.default_rng([seed, number]))
    return paths


def keys_of(server, pattern):
    with server.client() as client:
        return sorted(client.scan_iter(pattern))
