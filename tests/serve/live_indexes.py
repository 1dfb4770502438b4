"""What tests of the live index share."""

import numpy as np
from services import DIM, SHAPE


def ids_of(index):
    found = index.search(
        np.zeros((1, DIM)), bucket_ids=[list(range(SHAPE.n_buckets))], n_neighbors=len(index) or 1
    ).ids
    return sorted(found[found >= 0].tolist())


def abandon(live):
    """Stop as kill -9 does: nothing is saved, only the lock goes with the process."""
    live._closing.set()
    live._queue.put(None)
    for thread in live._threads:
        thread.join()
    live._journal.close()


def vector(value):
    return np.full((1, DIM), value, dtype=np.float32)
