"""Small tables, and what tests of durable changes share."""

import numpy as np

from hashcade import CodeShape, HashIndex
from hashcade.index import Encoded
from hashcade.store import Catalog, NewItems
from hashcade.table import HashTable

SHAPE = CodeShape(width=4, depth=2)
DIM = 8
N_ITEMS = 200


def make_index(*, labels=True, seed=0):
    """200 items around the centres of 10 buckets, in 5 classes."""
    rng = np.random.default_rng(seed)
    buckets = rng.integers(0, 10, N_ITEMS)
    centres = rng.normal(size=(SHAPE.n_buckets, DIM))
    vectors = (centres[buckets] + 0.2 * rng.normal(size=(N_ITEMS, DIM))).astype(np.float32)
    return HashIndex.build(buckets, vectors, labels=buckets // 2 if labels else None, shape=SHAPE)


def make_table(path, *, classes=(0, 1, 2, 3, 4), labels=True, seed=0, names=None, **settings):
    """A table without a model, saved; ``names`` by id."""
    index = make_index(labels=labels, seed=seed)
    table = HashTable.from_parts(None, index, Catalog(classes if labels else (), **settings))
    for item, name in (names or {}).items():
        old = table[item]
        encoded = Encoded(old.vector[None], np.array([old.bucket_ids]), None, by_path=False)
        table.upsert([item], encoded, labels=[old.label] if labels else None, names=[name])
    table.save(path)
    table.close()
    return path


def load_index(path):
    """The index of a table as it is on disk, without the log."""
    return HashIndex.load(path / "index")


def ids_of(index):
    result = index.search(
        np.zeros((1, DIM)), bucket_ids=[list(range(SHAPE.n_buckets))], n_neighbors=len(index) or 1
    ).ids
    return sorted(result[result >= 0].tolist())


def add(durable, buckets, vectors, ids=None, labels=None, *, epoch=None, **more):
    """Add items to a durable index; labels may be new ones."""
    return durable.add(NewItems(buckets, vectors, ids, labels, **more), epoch=epoch)


def abandon(durable):
    """Stop as kill -9 does: nothing is saved, only the lock goes with the process."""
    durable._closing.set()
    durable._queue.put(None)
    for thread in durable._threads:
        thread.join()
    durable._catalog.close()


def vector(value):
    return np.full((1, DIM), value, dtype=np.float32)
