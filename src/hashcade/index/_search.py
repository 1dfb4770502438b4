"""A search from the first check to the result: check, plan, read, scan, finish."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.codes._check import checked_count
from hashcade.index import _check as check
from hashcade.index._kernel import (
    EUCLIDEAN,
    INNER_PRODUCT,
    arrange,
    finish,
    scan_segment,
    slacks,
)
from hashcade.index._probe import BY_BUCKETS, BY_SCORES, plan
from hashcade.index._snapshot import Snapshot
from hashcade.index._table import Float32s, Int64s
from hashcade.index._team import NO_BOARD, Team, team

METRICS = {"euclidean": EUCLIDEAN, "inner_product": INNER_PRODUCT}
FILLS = ("path", "none")
# Less work than this (numbers read) is done sooner than another thread has begun.
WORTH_A_THREAD = 1 << 18
# Shares per thread. Of several, one that comes late takes fewer. But a bucket is read once for all
# who look at it in a share: where a query has several buckets, more shares read them more often.
SHARES_EACH, SHARES_EACH_OF_SEVERAL = 8, 1


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What a search found, and how much it looked at.

    Attributes
    ----------
    distances : float32[q, n_neighbors]
        Euclidean distances, or inner products; best first, equal ones by id. Where there is no
        result: inf, or -inf for inner products.
    ids : int64[q, n_neighbors]
        Ids of the items, padded with -1.
    candidates : int64[q]
        Items whose distance was looked at, each counted once.
    truncated : bool[q]
        Whether ``max_candidates`` kept the query from looking at more.
    """

    distances: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]
    candidates: npt.NDArray[np.int64]
    truncated: npt.NDArray[np.bool_]


@dataclass(eq=False, slots=True)  # made for every search: frozen would cost several microseconds
class Request:
    """A checked search."""

    queries: Float32s
    mode: int
    bucket_ids: Int64s  # (q, p)
    scores: npt.NDArray[Any]  # (q, depth, width), or empty
    n_neighbors: int
    n_probe: int  # 0: the buckets in bucket_ids
    max_candidates: int  # -1: no limit
    fill: bool
    filter: tuple[int, npt.NDArray[np.bool_], Int64s]
    own: Int64s  # (q,)
    exclude: bool
    metric: int
    threads: int


_NO_SCORES = np.empty((0, 1, 1), dtype=np.float32)


def checked_request(
    snapshot: Snapshot,
    vectors: object,
    *,
    bucket_ids: object,
    scores: object,
    n_neighbors: object,
    n_probe: object,
    max_candidates: object,
    fill: object,
    filter_ids: object,
    exclude_self: object,
    metric: object,
    threads: object,
) -> Request:
    """Check everything before anything is done."""
    queries = check.checked_queries(vectors, snapshot.dim)
    n = len(queries)
    if (bucket_ids is None) == (scores is None):
        given = "neither" if bucket_ids is None else "both"
        raise ValueError(f"one of bucket_ids and scores says where to look, got {given}")
    wanted = checked_count("n_neighbors", n_neighbors)
    probes = check.checked_limit("n_probe", n_probe)
    limit = check.checked_limit("max_candidates", max_candidates)
    if fill not in FILLS:
        raise ValueError(f"fill={fill!r} must be one of {', '.join(map(repr, FILLS))}")
    if not isinstance(metric, str) or metric not in METRICS:
        raise ValueError(f"metric={metric!r} must be one of {', '.join(map(repr, METRICS))}")
    n_threads = usable_cores() if threads is None else checked_count("threads", threads)
    if scores is None:
        if probes > 0:
            raise ValueError(f"n_probe={probes} needs scores, got bucket_ids")
        mode, values = BY_BUCKETS, _NO_SCORES
        buckets = check.checked_buckets(bucket_ids, n, snapshot.shape, several=None, of="query")
    else:
        mode, values = BY_SCORES, check.checked_scores(scores, n, snapshot.shape)
        buckets = np.empty((n, 0), dtype=np.int64)
        if probes < 0:
            buckets = snapshot.shape.scores_to_bucket_ids(values)
    exclude = exclude_self is not None and exclude_self is not False
    return Request(
        queries, mode, buckets, values, wanted, max(probes, 0), limit, fill == "path",
        check.checked_filter(filter_ids, snapshot.next_id),
        check.checked_own(exclude_self, n), exclude, METRICS[metric], n_threads,
    )  # fmt: skip


@cache
def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="hashcade")


def _reset_pools() -> None:  # threads do not survive a fork
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_pools)


# -- plan ----------------------------------------------------------------------------------


def make_plan(snapshot: Snapshot, request: Request) -> tuple[Int64s, Int64s, npt.NDArray[np.bool_]]:
    """Return visits, candidates and truncated, as ``plan`` in ``_probe.py`` describes them."""
    directory, tree = snapshot.directory, snapshot.directory.tree
    careful = (
        request.filter[0] != 0
        or request.exclude
        or snapshot.any_several
        or (request.max_candidates >= 0 and snapshot.any_dead)
    )
    addresses, lengths = snapshot.addresses
    if careful:  # reads ids and item numbers before it is known which blocks will be visited
        for view in snapshot.views:
            segment = view.segment
            if segment.check is not None and not segment.check.done:
                segment.check.section(segment, "ids")
                if segment.items is not None:
                    segment.check.section(segment, "items")

    def part(first: int, last: int) -> Any:
        return plan(
            first, last, request.mode, request.bucket_ids, request.scores, request.n_probe,
            request.n_neighbors, request.fill, request.max_candidates, snapshot.shape.width,
            directory.buckets, directory.starts, directory.stops, directory.live,
            tree.level_starts, tree.slots, tree.children,
            careful, addresses, lengths, snapshot.item_starts, request.own, *request.filter,
        )  # fmt: skip

    n = len(request.queries)
    # Looking buckets up is quick; counting entries and walking the tree is worth a thread.
    parts = request.threads if careful or request.mode == BY_SCORES else 1
    parts = max(1, min(parts, n // 64))
    if parts == 1:
        visits, candidates, truncated = part(0, n)
        return visits, candidates, truncated
    cuts = [n * k // parts for k in range(parts + 1)]
    done = list(_pool(parts).map(part, cuts[:-1], cuts[1:]))
    visits, candidates, truncated = (np.concatenate(arrays) for arrays in zip(*done, strict=True))
    return visits, candidates, truncated


# -- read and scan --------------------------------------------------------------------------


def run(snapshot: Snapshot, request: Request) -> SearchResult:
    """Answer a checked request."""
    visits, candidates, truncated = make_plan(snapshot, request)
    check_blocks(snapshot, visits)
    n, wanted = len(request.queries), request.n_neighbors
    keys = np.empty((n, wanted), dtype=np.float32)
    kept = np.empty((n, wanted), dtype=np.int64)
    sizes = np.zeros(n, dtype=np.int64)
    if len(visits) > 0:
        threads = _worthwhile_threads(visits, snapshot.dim, request.threads)
        helpers = team(threads - 1) if threads > 1 else None
        if helpers is not None and helpers.taken.acquire(blocking=False):
            try:
                _scan(snapshot, request, visits, keys, kept, sizes, helpers)
            finally:
                helpers.taken.release()
        else:
            _scan(snapshot, request, visits, keys, kept, sizes, None)
    finish(keys, kept, sizes, request.metric)
    return SearchResult(keys, kept, candidates, truncated)


def _scan(
    snapshot: Snapshot,
    request: Request,
    visits: Int64s,
    keys: Float32s,
    kept: Int64s,
    sizes: Int64s,
    helpers: Team | None,
) -> None:
    """Make the visits, segment after segment: alone, or with helpers whose board is ours."""
    n_queries, n_segments = len(request.queries), len(snapshot.views)
    if helpers is None and n_segments == 1:
        order = visits[:, 2].argsort(kind="stable")
        cuts = np.array([[0, len(visits)]])
    else:
        several = len(visits) > n_queries * n_segments
        each = SHARES_EACH_OF_SEVERAL if several else SHARES_EACH
        n_shares = 1 if helpers is None else each * (helpers.n_helpers + 1)
        order, cuts = arrange(visits, n_queries, n_segments, n_shares)
    euclidean = request.metric == EUCLIDEAN
    slack = np.zeros(n_queries) if euclidean else slacks(request.queries, snapshot.max_norm)
    for view, ends in zip(snapshot.views, cuts, strict=True):
        if ends[0] == ends[-1]:
            continue
        board = NO_BOARD
        if helpers is not None:
            helpers.call()
            board = helpers.board
        scan_segment(
            view.table, board, ends, request.queries, request.own, request.metric, slack,
            visits, order, view.segment.items is not None, *request.filter, keys, kept, sizes,
        )  # fmt: skip


def _worthwhile_threads(visits: Int64s, dim: int, threads: int) -> int:
    if threads == 1 or len(visits) == 1:
        return 1
    numbers = int((visits[:, 3] - visits[:, 2]).sum()) * dim
    return max(1, min(threads, numbers // WORTH_A_THREAD))


def check_blocks(snapshot: Snapshot, visits: Int64s) -> None:
    """Let stored segments check the blocks that are about to be read, each once."""
    for number, view in enumerate(snapshot.views):
        segment = view.segment
        if segment.check is not None and not segment.check.done:
            starts = visits[visits[:, 1] == number, 2]
            segment.check.buckets(segment, segment.buckets_of(np.unique(starts)))
