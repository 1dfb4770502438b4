"""A search in Python: which buckets are searched, checks, threads, and the result.

Arrays of the right kind go straight to the kernel, which checks their values. Only if it finds
something wrong are they checked here, for the error message: checks in Python are slow.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hashcade._kernels import usable_cores
from hashcade._validate import checked_choice, checked_count
from hashcade.errors import Cancelled, add_hint
from hashcade.index import filters, kernel, validate, visits
from hashcade.index.cancel import NEVER, Cancel
from hashcade.index.distances import COSINE, METRICS
from hashcade.index.filters import Filter, Passing
from hashcade.index.missing import missing_vectors
from hashcade.index.segment import CHECK_BATCH, NO_LABEL, Float32s, Int64s
from hashcade.index.snapshot import Snapshot

FILLS = {"path": 1, "none": 0}
# Default of filter_budget: candidates, passing the filter or not, after which a query ends.
FILTER_BUDGET = 1_000_000
# Less work than this (numbers read) is done before another thread has started.
WORTH_A_THREAD = 1 << 22
# More work than this takes a tenth of a second: the main thread waits for Ctrl-C meanwhile.
_LONG_WORK = 1 << 29
_SHARES_PER_THREAD = 4  # a thread that starts late takes fewer
# A share is no larger than this, unless fewer queries than this would share the read of an entry.
_SHARE, _QUERIES_OF_AN_ENTRY = 1 << 30, 8
_FLOAT32, _INT64, _BOOL = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.bool_)
_NO_SCORES = np.empty((0, 1, 1), dtype=np.float64)
_empty: Any = np.empty
_ARRAY = np.ndarray


@dataclass(eq=False)  # not frozen: to make one would take three times as long
class Encoded:
    """Encoded items, from one pass of the network.

    Candidates are ranked by ``vectors``. ``bucket_ids`` are the buckets of each item, best first.
    ``scores`` are the slot scores; None for a method without, whose queries never leave their
    buckets. ``by_path``: the buckets are those of the best slots, not of a code book. ``ranked``:
    the item's own buckets and the next best ones, if the model ranks them by prototypes;
    ``all_ranked``: these are all buckets of the code book.
    """

    vectors: Float32s  # (n, dim)
    bucket_ids: Int64s  # (n, sparsity)
    scores: Float32s | None  # (n, depth, width)
    by_path: bool
    ranked: Int64s | None = None  # (n, sparsity * number of codes)
    all_ranked: bool = False

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice | npt.NDArray[Any]) -> Encoded:
        """Some of the items."""
        scores = None if self.scores is None else self.scores[rows]
        ranked = None if self.ranked is None else self.ranked[rows]
        vectors, bucket_ids = self.vectors[rows], self.bucket_ids[rows]
        return replace(self, vectors=vectors, bucket_ids=bucket_ids, scores=scores, ranked=ranked)

    def where_to_look(self, n_probe: int = 1) -> dict[str, Any]:
        """Which buckets a query is searched in, as arguments for :meth:`HashIndex.search`.

        By default its own. With ``n_probe`` above 1 the buckets of the best codes, by prototypes
        if the model has them, else those with the largest sums of scores. With assignment by path
        the scores are passed: they give the query's buckets, and the order of the next ones.
        """
        if self.ranked is not None:
            sparsity, n_ranked = self.bucket_ids.shape[1], self.ranked.shape[1]
            if n_probe * sparsity > n_ranked and not self.all_ranked:
                available = f"the first {n_ranked // sparsity} codes were ranked"
                error = ValueError(f"n_probe={n_probe}, but {available}")
                raise add_hint(error, f"encode the queries with n_probe={n_probe}")
            return {"bucket_ids": self.ranked, "n_probe": n_probe * sparsity}
        if n_probe > 1 and self.scores is None:
            raise ValueError(f"n_probe={n_probe} needs slot scores, this method has none")
        if n_probe > 1:
            return {"scores": self.scores, "n_probe": n_probe}
        if self.by_path and self.scores is not None:
            return {"scores": self.scores}
        return {"bucket_ids": self.bucket_ids}


@dataclass(eq=False, slots=True)
class SearchResult:
    """Ids and distances of the nearest items, and the number of candidates.

    ``distances``, or inner products, are best first, equal ones by id, padded with inf, or -inf for
    inner products; ``ids`` are padded with -1. ``candidates`` is the number of items whose distance
    was computed, each counted once; with a filter only those that pass. ``truncated``:
    ``max_candidates``, or ``filter_budget``, left something out.
    """

    distances: Float32s  # (q, n_neighbors)
    ids: Int64s  # (q, n_neighbors)
    candidates: Int64s  # (q,)
    truncated: npt.NDArray[np.bool_]  # (q,)
    snapshot: Snapshot | None = field(default=None, repr=False)  # the state that was searched
    searched: Snapshot | None = field(default=None, repr=False)  # its items that pass the filter
    exclude: Int64s = field(default_factory=lambda: validate.NO_IDS, repr=False)

    @property
    def exact(self) -> npt.NDArray[np.bool_]:
        """Whether every item, or every one that passes the filter, was compared, (q,)."""
        if self.searched is None:
            return np.ones(len(self.candidates), dtype=np.bool_)
        n_excluded: Any = self.searched.contains(self.exclude) if len(self.exclude) else 0
        return np.asarray(self.candidates + n_excluded == self.searched.n_items)

    def label_codes(self) -> Int64s:
        """Labels of the results, (q, n_neighbors); -1 for none."""
        if self.snapshot is None:
            return np.full(self.ids.shape, NO_LABEL)
        return self.snapshot.labels_of(self.ids.ravel()).reshape(self.ids.shape)


class Request(NamedTuple):
    """Checked arguments of a search; from ``bucket_ids`` on in the form of the kernels."""

    queries: Float32s
    n_neighbors: int
    metric: int
    threads: int
    cancel: Cancel
    passing: Passing | None  # the items that pass the filter
    filtered: Snapshot | None  # the snapshot of these that is searched
    all_passing: bool  # whether all of them are compared
    bucket_ids: Int64s  # (q, p)
    scores: npt.NDArray[np.float64]  # (q, depth, width), or empty
    n_probe: int  # best buckets by sum, or the first of bucket_ids, the others to fill; 0: all
    fill: int  # 1: continue below n_neighbors candidates, by the scores unless these are empty
    max_candidates: int
    exclude: Int64s  # (q,) an id that is excluded from the results, or empty
    budget: int  # candidates, passing the filter or not, after which filling stops


_FIRST_WHERE_FIELD = Request._fields.index("bucket_ids")


def make_request(
    snapshot: Snapshot, vectors: Any, bucket_ids: Any = None, scores: Any = None,
    n_neighbors: Any = 10, n_probe: Any = None, max_candidates: Any = None, fill: Any = "path",
    filter_ids: Any = None, filter_budget: Any = FILTER_BUDGET, exclude_self: Any = False,
    metric: Any = "euclidean", threads: Any = None, cancel: Cancel | None = None,
) -> Request:  # fmt: skip
    """Check the arguments, except values of vectors and bucket ids that the kernel checks."""
    queries = vectors
    if not (
        type(vectors) is _ARRAY and vectors.dtype is _FLOAT32 and vectors.ndim == 2
        and vectors.flags.carray and vectors.shape[1] == snapshot.dim
    ):  # fmt: skip
        queries = validate.checked_queries(vectors, snapshot.dim)
    n = len(queries)
    if (bucket_ids is None) == (scores is None):
        arguments = "neither" if bucket_ids is None else "both"
        raise ValueError(f"one of bucket_ids and scores says where to look, got {arguments}")
    if type(n_neighbors) is not int or n_neighbors < 1:
        n_neighbors = checked_count("n_neighbors", n_neighbors)
    probes = 0 if n_probe is None else checked_count("n_probe", n_probe)
    limit = visits.NO_LIMIT
    if max_candidates is not None:
        limit = min(limit, checked_count("max_candidates", max_candidates))
    if type(fill) is not str or fill not in FILLS:
        fill = checked_choice("fill", fill, FILLS)
    if type(metric) is not str or metric not in METRICS:
        metric = checked_choice("metric", metric, METRICS)
    if metric == "cosine" and not snapshot.unit_length:
        error = ValueError("metric='cosine' needs vectors of unit length in the index")
        raise add_hint(error, "build the index with unit_length=True")
    if threads is None:
        threads = usable_cores()
    elif type(threads) is not int or threads < 1:
        threads = checked_count("threads", threads)
    slots = _NO_SCORES
    if scores is None:
        if not (
            type(bucket_ids) is _ARRAY and bucket_ids.dtype is _INT64 and bucket_ids.ndim == 2
            and bucket_ids.flags.carray and len(bucket_ids) == n and bucket_ids.size > 0
        ):  # fmt: skip
            bucket_ids = validate.checked_buckets(bucket_ids, n, snapshot.shape)
    else:
        slots = validate.checked_scores(scores, n, snapshot.shape)
        bucket_ids = np.empty((n, 0), dtype=np.int64)
        if probes == 0:
            bucket_ids = snapshot.shape.scores_to_bucket_ids(slots)
    exclude = validate.NO_IDS
    if exclude_self is True:
        exclude = np.arange(n)
    elif exclude_self is not False and exclude_self is not None:
        exclude = validate.integers("exclude_self", exclude_self, n, -(2**63))
    passing, filtered, all_passing, budget = None, None, False, visits.NO_LIMIT
    if filter_ids is not None:
        if not isinstance(filter_ids, Filter):
            filter_ids = Filter(validate.checked_filter(filter_ids))
        budget = min(budget, checked_count("filter_budget", filter_budget))
        passing = filter_ids.passing(snapshot)
        all_passing = fill != "none" and passing.n_items <= min(filters.EXACT_MATCHES, limit)
        filtered = passing.gathered if all_passing else passing.in_buckets
    fields = (
        queries, n_neighbors, METRICS[metric], threads, cancel or NEVER, passing, filtered,
        all_passing, bucket_ids, slots, probes, FILLS[fill], limit, exclude, budget,
    )  # fmt: skip
    return tuple.__new__(Request, fields)  # three times as fast as Request(...)


def run(snapshot: Snapshot, request: Request) -> SearchResult:
    """Run a search."""
    # Unpacked: a call with a slice of the tuple takes a quarter of a microsecond longer.
    (
        queries, n_neighbors, metric, threads, cancel, passing, filtered, all_passing,
        bucket_ids, scores, n_probe, fill, max_candidates, exclude, budget,
    ) = request  # fmt: skip
    searched, unfiltered = snapshot, validate.NO_IDS
    if filtered is not None:
        searched, unfiltered, where = _search_target(snapshot, request)
        bucket_ids, scores, n_probe, fill, max_candidates, exclude, budget = where
    n = len(queries)
    distances = _empty((n, n_neighbors), _FLOAT32)
    ids = _empty((n, n_neighbors), _INT64)
    candidates = _empty(n, _INT64)
    truncated = _empty(n, _BOOL)
    n_shares = 0
    if (n > 1 and threads > 1) or n * snapshot.n_numbers > _LONG_WORK:
        n_visits = n * (n_probe or bucket_ids.shape[1])
        tree = searched.tree if all_passing else snapshot.tree
        work = n_visits * tree.mean_bucket_size * snapshot.dim
        threads = min(threads, n, int(work / WORTH_A_THREAD))
        if threads > 1 or work > _LONG_WORK:
            by_size = work / max(_SHARE, _QUERIES_OF_AN_ENTRY * snapshot.n_numbers)
            n_shares = min(n, max(threads * _SHARES_PER_THREAD * (threads > 1), int(by_size), 1))

    table, max_norm = searched.table, searched.max_norm
    is_first_try = True
    while True:
        if n_shares == 0:
            n_done = 0
            status = kernel.search(
                table, unfiltered, max_norm, queries, metric, cancel.address, validate.NO_IDS, 0, n,
                bucket_ids, scores, n_probe, fill, max_candidates, exclude, budget,
                distances, ids, candidates, truncated,
            )  # fmt: skip
        else:
            if cancel is NEVER:
                cancel = Cancel()  # for Ctrl-C
            arguments = (table, unfiltered, max_norm, queries, metric, cancel.address)
            where = (bucket_ids, scores, n_probe, fill, max_candidates, exclude, budget)
            out = (distances, ids, candidates, truncated)
            status, n_done = _search_in_shares(
                n_shares, threads, work > _LONG_WORK, cancel, arguments, where, out
            )
        if status == kernel.DONE:
            if passing is not None:
                passing.count_candidates(int(candidates.sum()))
            return SearchResult(
                distances, ids, candidates, truncated, snapshot, searched, request.exclude
            )
        if status == kernel.CANCELLED:
            raise Cancelled(f"stopped after {n_done:,} of {n:,} queries")
        if status == kernel.BAD_INPUT:
            validate.checked_queries(queries, snapshot.dim)
            validate.checked_buckets(request.bucket_ids, n, snapshot.shape)
            if metric == COSINE:
                validate.refuse_zero_vectors(queries)
        planned_visits, _ = plan(snapshot, request)  # checks what is about to be read
        if status == kernel.UNCHECKED:
            _fetch_vectors(searched, request, planned_visits, is_first_try)
            is_first_try = False


def _fetch_vectors(searched: Snapshot, request: Request, planned: Int64s, bounded: bool) -> None:
    """Fetch the vectors that planned visits need, after pruning by codes, and that are missing."""
    checks = [view.segment.check for view in searched.views]
    if all(check.vectors_here is None for check in checks):
        return
    missing = missing_vectors(
        searched.table, planned, searched.max_norm, request.queries, request.metric,
        request.cancel.address, request.exclude, request.n_neighbors, bounded,
    )  # fmt: skip
    request.cancel.check(f"after 0 of {len(request.queries):,} queries")
    for number, check in enumerate(checks):
        entries = np.unique(missing[missing[:, 0] == number, 1])
        if len(entries):
            check.vectors(entries)


def _search_target(snapshot: Snapshot, request: Request) -> tuple[Snapshot, Int64s, Any]:
    """Return the snapshot to search, the table of the unfiltered one, and the other arguments."""
    where = request[_FIRST_WHERE_FIELD:]
    if request.filtered is None:
        return snapshot, validate.NO_IDS, where
    if request.passing is not None and not request.all_passing:
        return request.filtered, request.passing.snapshot.table, where
    n = len(request.queries)
    if len(request.scores) == 0:
        validate.checked_buckets(request.bucket_ids, n, snapshot.shape)
    single_bucket = np.zeros((n, 1), _INT64)
    fields = (single_bucket, _NO_SCORES, 0, FILLS["none"], visits.NO_LIMIT, *where[-2:])
    return request.filtered, validate.NO_IDS, fields


def _search_in_shares(
    n_shares: int, threads: int, is_long: bool, cancel: Cancel, arguments: Any, where: Any, out: Any
) -> tuple[int, int]:
    """Divide the queries into shares, processed by this thread and those of a pool.

    Returns the status, and how many queries are done.
    """
    bucket_ids = where[0]
    n = len(bucket_ids)
    order = validate.NO_IDS if n_shares == 1 else np.arange(n)
    if n_shares > 1 and bucket_ids.shape[1] > 0:  # a bucket is read once for all its queries
        order = np.argsort(bucket_ids[:, 0], kind="stable")
    shares = deque((n * k // n_shares, n * (k + 1) // n_shares) for k in range(n_shares))
    n_answered: list[int] = []

    def work() -> int:
        status = kernel.DONE
        while status != kernel.CANCELLED:
            try:
                first, last = shares.popleft()
            except IndexError:
                break
            status = max(status, kernel.search(*arguments, order, first, last, *where, *out))
            if status == kernel.DONE:
                n_answered.append(last - first)
        return status

    # If it takes long, the main thread only waits: in a kernel it could not be interrupted.
    waits = is_long and threading.current_thread() is threading.main_thread()
    n_threads = threads - 1 + waits
    futures = [_pool(n_threads).submit(work) for _ in range(n_threads)]
    try:
        # Tasks that have not started are cancelled, not waited for.
        statuses = [] if waits else [work()]
        statuses += [future.result() for future in futures if waits or not future.cancel()]
    except BaseException:  # Ctrl-C: the arrays are still in use by the threads
        cancel.set()
        wait([future for future in futures if not future.cancel()])
        raise
    return max(statuses), sum(n_answered)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="hashcade")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)


def plan(snapshot: Snapshot, request: Request) -> tuple[Int64s, Int64s]:
    """Return visits and candidates, see ``visits.plan_visits``; check the blocks to be read."""
    n = len(request.queries)
    searched, unfiltered, where = _search_target(snapshot, request)
    is_limited = request.max_candidates < visits.NO_LIMIT
    if snapshot.has_duplicates or len(request.exclude) > 0 or is_limited:
        for view in searched.views:
            view.segment.check.ids()
    candidates, truncated = np.empty(n, _INT64), np.empty(n, _BOOL)
    planned_visits = visits.plan_visits(
        searched.table, unfiltered, request.cancel.address, validate.NO_IDS, 0, n,
        request.n_neighbors, *where, candidates, truncated,
    )  # fmt: skip
    for number, view in enumerate(searched.views):
        rows = np.unique(planned_visits[planned_visits[:, 1] == number, 5])
        for start in range(0, len(rows), CHECK_BATCH):
            request.cancel.check(f"after 0 of {n:,} queries")
            view.segment.check.first_pass(rows[start : start + CHECK_BATCH])
    request.cancel.check(f"after 0 of {n:,} queries")
    return planned_visits, candidates
