"""Work that is stopped: soon, with a true message, and without a trace."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from hashcade import Cancel, Cancelled, CodeShape, HashIndex
from hashcade.index import GroupedVectors, search, warmup

DIM = 64
SHAPE = CodeShape(width=8, depth=2)
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def large():
    """An index in which some searches take seconds."""
    warmup()
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60_000, DIM)).astype(np.float32)
    return HashIndex.build(rng.integers(0, 64, 60_000), vectors, shape=SHAPE)


def long_searches():
    rng = np.random.default_rng(1)
    queries = rng.normal(size=(2000, DIM)).astype(np.float32)
    every = np.tile(np.arange(64), (len(queries), 1))
    scores = rng.normal(size=(len(queries), 2, 8))
    ids = np.arange(0, 60_000, 2)
    return {
        "buckets": {"bucket_ids": every},
        "scores": {"scores": scores, "n_probe": 64},
        "filled": {"scores": scores, "n_neighbors": 60_000},
        "filtered": {"scores": scores, "n_probe": 64, "filter_ids": ids},
        "few pass": {"bucket_ids": every, "filter_ids": ids[:2000], "n_neighbors": 2000},
        "without itself": {"bucket_ids": every, "exclude_self": True},
        "exact": {"bucket_ids": every, "metric": "inner_product", "n_neighbors": 60_000},
        "one thread": {"bucket_ids": every, "threads": 1},
    }, queries


def seconds_until_stopped(stop, work):
    """How long work goes on after it was stopped: the shortest of three.

    In seconds of the processor where those are fewer: another program may have the cores.
    """
    clocks = time.perf_counter, time.process_time

    def once():
        since = []
        timer = threading.Timer(0.1, lambda: (since.extend(now() for now in clocks), stop()))
        timer.start()
        work()
        return min(now() - then for now, then in zip(clocks, since, strict=True))

    return min(once() for _ in range(3))


@pytest.mark.parametrize("name", long_searches()[0])
def test_a_search_stops_within_a_tenth_of_a_second(large, name):
    options, queries = long_searches()
    options = options[name]
    n = 40 if options.get("n_neighbors", 0) > 10_000 else len(queries)
    options = {k: v[:n] if k in ("bucket_ids", "scores") else v for k, v in options.items()}
    cancels = []

    def work():
        cancels.append(Cancel())
        with pytest.raises(Cancelled, match=rf"stopped after [\d,]+ of {n:,} queries"):
            large.search(queries[:n], cancel=cancels[-1], **options)

    assert seconds_until_stopped(lambda: cancels[-1].set(), work) < 0.1


def test_what_was_stopped_before_it_began_does_nothing(large):
    cancel = Cancel()
    cancel.set()
    queries = np.zeros((3, DIM), np.float32)
    with pytest.raises(Cancelled, match="stopped after 0 of 3 queries"):
        large.search(queries, bucket_ids=np.zeros((3, 1), int), cancel=cancel)
    with pytest.raises(Cancelled):
        large.explain(queries[0], [0], cancel=cancel)


def test_the_answered_queries_are_counted(large, monkeypatch):
    monkeypatch.setattr(search, "_SHARE", 1 << 22)
    monkeypatch.setattr(search, "_QUERIES_OF_AN_ENTRY", 0)
    options, queries = long_searches()
    warmup()  # the first call of all puts the compiled code in the place that is patched here
    cancel, compiled, calls = Cancel(), search.kernel.search, []

    def third_time(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            cancel.set()
        return compiled(*arguments)

    monkeypatch.setattr(search.kernel, "search", third_time)
    with pytest.raises(Cancelled) as caught:
        large.search(queries, cancel=cancel, threads=1, **options["buckets"])
    first, last = calls[0][7:9]
    assert str(caught.value) == f"stopped after {2 * (last - first):,} of 2,000 queries"


def test_a_flag_that_is_not_set_changes_nothing(large):
    options, queries = long_searches()
    queries, buckets = queries[:50], options["buckets"]["bucket_ids"][:50]
    one = large.search(queries, bucket_ids=buckets)
    two = large.search(queries, bucket_ids=buckets, cancel=Cancel())
    assert np.array_equal(one.ids, two.ids)
    assert np.array_equal(one.distances, two.distances)


@pytest.fixture
def ctrl_c():
    """Ctrl-C raises, also in a process that was started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_search_can_be_interrupted(large, threads, ctrl_c):
    options, queries = long_searches()

    def work():
        with pytest.raises(KeyboardInterrupt):
            large.search(queries, threads=threads, **options["buckets"])

    assert seconds_until_stopped(lambda: os.kill(os.getpid(), signal.SIGINT), work) < 0.2


def test_nearest_vectors_stop():
    warmup()
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(20_000, 64)).astype(np.float32)
    grouped = GroupedVectors(vectors, rng.integers(0, 100, 20_000))
    cancels = []

    def work():
        cancels.append(Cancel())
        with pytest.raises(Cancelled, match=r"stopped after [\d,]+ of 20,000 items"):
            grouped.nearest(vectors, 10, 100, cancels[-1])

    assert seconds_until_stopped(lambda: cancels[-1].set(), work) < 0.1
