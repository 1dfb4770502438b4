"""The short way of a search: in one compiled call, if it is a plain one.

Plain are bucket ids, not many of them, an index with one segment and one bucket per item, and
arrays that can be used as they are. Everything else, and every input that is wrong, is left to
``_search.py``; the results are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hashcade.index import _search as search
from hashcade.index._kernel import N_BUCKETS, N_ENTRIES
from hashcade.index._kernel import answer as _compiled_answer
from hashcade.index._search import METRICS, SearchResult, usable_cores
from hashcade.index._snapshot import Snapshot
from hashcade.index._team import NO_BOARD, team

_FLOAT32, _INT64 = np.dtype(np.float32), np.dtype(np.int64)
_NO_LIMIT = 2**62
_answer: Any = _compiled_answer  # numba describes a call with no arguments


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
    if type(metric) is not str or metric not in METRICS:
        return None
    if threads is None:
        threads = usable_cores()
    elif type(threads) is not int or threads < 1:
        return None
    if vectors.ndim == 1:
        vectors = vectors[None]
    n = vectors.shape[0] if vectors.ndim == 2 else 0
    if bucket_ids.ndim == 1:  # as in `checked_buckets`
        bucket_ids = bucket_ids[None] if n == 1 else bucket_ids[:, None]
    table = snapshot.table
    if (
        table is None
        or n == 0
        or vectors.shape[1] != snapshot.dim
        or bucket_ids.ndim != 2
        or bucket_ids.shape[0] != n
        or bucket_ids.shape[1] == 0
        or vectors.dtype != _FLOAT32
        or bucket_ids.dtype != _INT64
        or not vectors.flags.carray
        or not bucket_ids.flags.carray
    ):
        return None
    distances = np.empty((n, n_neighbors), dtype=np.float32)
    ids = np.empty((n, n_neighbors), dtype=np.int64)
    candidates = np.empty(n, dtype=np.int64)
    asked = (table, snapshot.max_norm, vectors, bucket_ids, METRICS[metric], fill == "path")
    found = (distances, ids, candidates)
    n_visits, most = bucket_ids.size, _NO_LIMIT
    if threads > 1 and n_visits > 1:
        expected = n_visits * int(table[N_ENTRIES]) // int(table[N_BUCKETS]) * snapshot.dim
        threads = min(threads, expected // search.WORTH_A_THREAD)
        most = 2 * search.WORTH_A_THREAD  # if it is more than expected, threads are worth it
    if threads > 1 and n_visits > 1:
        each = search.SHARES_EACH_OF_SEVERAL if n_visits > n else search.SHARES_EACH
        done = _answer_together(threads, each, asked, found)
    else:
        done = _answer(*asked, most, NO_BOARD, 1, *found)
    if not done:
        return None
    return SearchResult(distances, ids, candidates, np.zeros(n, dtype=np.bool_))


def _answer_together(threads: int, shares_each: int, asked: Any, found: Any) -> bool:
    """Answer with helpers, or alone if they are taken."""
    helpers = team(threads - 1)
    if not helpers.taken.acquire(blocking=False):
        return bool(_answer(*asked, _NO_LIMIT, NO_BOARD, 1, *found))
    try:
        helpers.call()
        return bool(_answer(*asked, _NO_LIMIT, helpers.board, shares_each * threads, *found))
    finally:
        helpers.taken.release()
