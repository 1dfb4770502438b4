"""The short way of a search: in one compiled call, if it is a plain one.

Plain are bucket ids, an index with one segment, and arrays that can be used as they are. Everything
else, and every input that is wrong, is left to ``_search.py``; the results are the same.
"""

from __future__ import annotations

import numpy as np

from hashcade.index import _kernel as kernel
from hashcade.index import _search as search
from hashcade.index._search import SearchResult, usable_cores
from hashcade.index._snapshot import Snapshot
from hashcade.index._team import NO_BOARD, team

_FLOAT32, _INT64 = np.dtype(np.float32), np.dtype(np.int64)
_NO_LIMIT = 2**62


def search_directly(
    snapshot: Snapshot,
    vectors: object,
    bucket_ids: object,
    n_neighbors: object,
    fill: object,
    metric: object,
    threads: object,
) -> SearchResult | None:
    """Answer a plain request; None if it is not plain."""
    if type(vectors) is not np.ndarray or type(bucket_ids) is not np.ndarray:
        return None
    if type(n_neighbors) is not int or n_neighbors < 1 or (fill != "path" and fill != "none"):
        return None
    if vectors.ndim == 1:
        vectors = vectors[None]
    n = len(vectors)
    if bucket_ids.ndim == 1:  # as in `checked_buckets`
        bucket_ids = bucket_ids[None] if n == 1 else bucket_ids[:, None]
    table = snapshot.table
    if (
        table is None
        or vectors.shape != (n, snapshot.dim)
        or n == 0
        or bucket_ids.ndim != 2
        or bucket_ids.shape[0] != n
        or bucket_ids.shape[1] == 0
        or vectors.dtype != _FLOAT32
        or bucket_ids.dtype != _INT64
        or not vectors.flags.carray
        or not bucket_ids.flags.carray
    ):
        return None
    if metric == "euclidean":
        way = kernel.EUCLIDEAN
    elif metric == "inner_product":
        way = kernel.INNER_PRODUCT
    else:
        return None
    if threads is None:
        threads = usable_cores()
    elif type(threads) is not int or threads < 1:
        return None
    distances = np.empty((n, n_neighbors), dtype=np.float32)
    ids = np.empty((n, n_neighbors), dtype=np.int64)
    candidates = np.empty(n, dtype=np.int64)
    asked = (table, snapshot.max_norm, vectors, bucket_ids, way, fill == "path")
    found = (distances, ids, candidates)
    n_visits = bucket_ids.size
    if threads == 1 or n_visits == 1:
        done = kernel.answer(*asked, _NO_LIMIT, NO_BOARD, 1, *found)
    else:
        expected = n_visits * table[kernel.N_ENTRIES] // table[kernel.N_BUCKETS] * snapshot.dim
        threads = min(threads, int(expected) // search.WORTH_A_THREAD)
        most = 2 * search.WORTH_A_THREAD
        helpers = team(threads - 1) if threads > 1 else None
        if helpers is None:
            done = kernel.answer(*asked, most, NO_BOARD, 1, *found)
        elif helpers.taken.acquire(blocking=False):
            try:
                helpers.call()
                each = search.SHARES_EACH_OF_SEVERAL if n_visits > n else search.SHARES_EACH
                done = kernel.answer(*asked, _NO_LIMIT, helpers.board, each * threads, *found)
            finally:
                helpers.taken.release()
        else:
            done = kernel.answer(*asked, _NO_LIMIT, NO_BOARD, 1, *found)
    if not done:
        return None
    return SearchResult(distances, ids, candidates, np.zeros(n, dtype=np.bool_))
