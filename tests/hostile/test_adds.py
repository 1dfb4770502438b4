"""Changes to a large index: what one costs must not depend on what is there already."""

import statistics
import tracemalloc

import numpy as np
import pytest

from hashcade import CodeShape, HashIndex

ADDS = 200


def memory_of_adds(width):
    """Bytes that adding an item takes meanwhile, of each of many, beside a quarter of all buckets.

    Memory and not time: it is the same in every run, and building anything of all buckets takes it.
    """
    shape, rng = CodeShape(width=width, depth=2), np.random.default_rng(0)
    occupied = rng.choice(shape.n_buckets, shape.n_buckets // 4, replace=False)
    index = HashIndex.build(occupied, np.zeros((len(occupied), 4), np.float32), shape=shape)
    taken = []
    for bucket in rng.integers(0, shape.n_buckets, (ADDS, 1, 1)):
        tracemalloc.start()
        index.add(bucket, np.ones((1, 4), np.float32))
        taken.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert len(index) == len(occupied) + ADDS
    return taken


@pytest.mark.promise("M4", "one add beside 10,000, 100,000 and 1,000,000 occupied buckets")
def test_an_add_takes_no_more_in_a_larger_index(cases):
    few, *more = (memory_of_adds(width) for width in (200, 632, 2000))
    cases.add(3 * ADDS)
    for many in more:
        assert statistics.median(many) < 1.5 * statistics.median(few)
        assert max(many) < 1.5 * max(few)
