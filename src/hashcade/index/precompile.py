"""Compile beforehand what a first search would have to wait for."""

from __future__ import annotations

import numpy as np

from hashcade.codes import CodeShape
from hashcade.index.index import HashIndex


def warmup() -> None:
    """Compile all that the index needs, or load it from the cache: then no search waits for it."""
    vectors = np.zeros((1, 1), dtype=np.float32)
    index = HashIndex.build([0], vectors, shape=CodeShape(width=2, depth=1))
    index.search(vectors, bucket_ids=np.array([[0]]), threads=1)
    index.explain(vectors[0], bucket_ids=[0])
