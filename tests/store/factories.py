"""Small tables, and what tests of durable changes share."""

import numpy as np

from hashcade import CodeShape, HashIndex
from hashcade.store import Catalog
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


def make_table(path, *, classes=(0, 1, 2, 3, 4), labels=True, seed=0, **settings):
    """A table without a model, saved."""
    index = make_index(labels=labels, seed=seed)
    catalog = Catalog(classes if labels else (), **settings)
    HashTable.from_parts(None, index, catalog).save(path)
    return path


def load_index(path):
    """The index of a table as it is on disk, without the log."""
    return HashIndex.load(path / "index")


def ids_of(index):
    result = index.search(
        np.zeros((1, DIM)), bucket_ids=[list(range(SHAPE.n_buckets))], n_neighbors=len(index) or 1
    ).ids
    return sorted(result[result >= 0].tolist())


def abandon(durable):
    """Stop as kill -9 does: nothing is saved, only the lock goes with the process."""
    durable._closing.set()
    durable._queue.put(None)
    for thread in durable._threads:
        thread.join()
    durable._log.close()


def vector(value):
    return np.full((1, DIM), value, dtype=np.float32)
