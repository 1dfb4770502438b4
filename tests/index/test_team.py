"""Several threads in one search: they are used, change nothing, and never get in the way."""

import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashcade import CodeShape, HashIndex
from hashcade.index import _kernel as kernel
from hashcade.index import _search, _team
from hashcade.index._team import Team, _keep_to, _other_cores, team


@pytest.fixture(autouse=True)
def every_search_is_worth_a_thread(monkeypatch):
    monkeypatch.setattr(_search, "WORTH_A_THREAD", 1)


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(9000, 64)).astype(np.float32)
    index = HashIndex.build(rng.integers(0, 4, 9000), vectors, shape=CodeShape(width=4, depth=1))
    queries = rng.normal(size=(200, 64)).astype(np.float32)
    return index, queries, rng.integers(0, 4, (200, 2))


def assert_equal(left, right):
    for name in ("ids", "distances", "candidates", "truncated"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


def test_helpers_take_shares_of_the_work(world):
    index, queries, buckets = world
    one = index.search(queries, bucket_ids=buckets, threads=1)
    kernel.attend(np.zeros(kernel.BOARD_LENGTH, np.int64), 1)  # compiled
    before = team(2).board[kernel.HELPED]
    deadline = time.monotonic() + 60
    while team(2).board[kernel.HELPED] == before:  # on a busy machine they may come late
        assert time.monotonic() < deadline, "no helper ever took a share"
        assert_equal(index.search(queries, bucket_ids=buckets, threads=3), one)


def test_a_search_that_finds_the_helpers_taken_does_not_wait(world):
    index, queries, buckets = world
    with team(1).taken:
        result = index.search(queries, bucket_ids=buckets, threads=2)
    assert_equal(result, index.search(queries, bucket_ids=buckets, threads=1))


def test_searches_at_the_same_time_do_not_mix(world):
    index, queries, buckets = world
    expected = [index.search(queries[k::4], bucket_ids=buckets[k::4], threads=1) for k in range(4)]
    failures = []

    def search_often(k):
        try:
            for _ in range(30):
                found = index.search(queries[k::4], bucket_ids=buckets[k::4], threads=2)
                assert_equal(found, expected[k])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=search_often, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_helpers_of_its_own(world):
    index, queries, buckets = world
    expected = index.search(queries, bucket_ids=buckets, threads=2)
    child = os.fork()
    if child == 0:
        try:
            assert_equal(index.search(queries, bucket_ids=buckets, threads=2), expected)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_helpers_go_to_sleep_and_wake_again():
    here = Team(1)
    kernel.attend(here.board, 1)  # compiled
    here.call()
    deadline = time.monotonic() + 60

    def wait_until_attending(number):
        while here.board[kernel.ATTENDING] != number:
            assert time.monotonic() < deadline
            time.sleep(0.0002)

    wait_until_attending(1)
    wait_until_attending(0)
    here.call()
    wait_until_attending(1)


HAS_CORES = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1


def in_a_thread(function):
    """What a function returns in a thread of its own, which it may bind to cores."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def own_cores():
    return os.sched_getaffinity(threading.get_native_id())


@pytest.mark.skipif(not HAS_CORES, reason="there is one core, or no way to choose")
def test_helpers_keep_off_the_core_of_whoever_calls(world):
    index, queries, buckets = world
    helpers = team(1)
    deadline = time.monotonic() + 60
    all_cores = own_cores()
    while True:
        index.search(queries, bucket_ids=buckets, threads=2)
        threads = [t for t in threading.enumerate() if t.name == "hashcade-helper-0"]
        cores = [os.sched_getaffinity(t.native_id) for t in threads]
        if helpers._cores in cores:
            break
        assert time.monotonic() < deadline, cores
    assert len(helpers._cores) == len(all_cores) - 1
    assert helpers._cores < all_cores
    assert own_cores() == all_cores  # of the caller nothing is changed


@pytest.mark.skipif(not HAS_CORES, reason="there is one core, or no way to choose")
def test_the_other_cores_are_those_of_the_caller(monkeypatch):
    cores = own_cores()
    first, *others = sorted(cores)

    def bound_to_one():
        _keep_to({first})
        return _other_cores()

    assert in_a_thread(bound_to_one) == set()
    monkeypatch.setattr(_team, "_sched_getcpu", lambda: first)
    assert _other_cores() == set(others)
    monkeypatch.setattr(_team, "_sched_getcpu", None)  # it cannot be told
    assert _other_cores() == set()


@pytest.mark.skipif(not HAS_CORES, reason="there is one core, or no way to choose")
def test_a_thread_keeps_to_other_cores_if_there_are_any_and_it_may(monkeypatch):
    cores = own_cores()
    others = cores - {min(cores)}
    assert in_a_thread(lambda: (_keep_to(others), own_cores())[1]) == others
    assert in_a_thread(lambda: (_keep_to(set()), own_cores())[1]) == cores

    def refuse(*_):
        raise OSError("not allowed")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert in_a_thread(lambda: (_keep_to(others), own_cores())[1]) == cores


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_shares_hold_every_visit_once_and_a_query_whole(n_queries, n_segments, n_shares, seed):
    rng = np.random.default_rng(seed)
    n_visits = int(rng.integers(1, 60))
    visits = np.zeros((n_visits, 5), np.int64)
    visits[:, 0] = np.sort(rng.integers(0, n_queries, n_visits))
    visits[:, 1] = rng.integers(0, n_segments, n_visits)
    visits[:, 2] = rng.integers(0, 5, n_visits) * 100
    visits[:, 3] = visits[:, 2] + rng.integers(1, 100, n_visits)
    order, cuts = kernel.arrange(visits, n_queries, n_segments, n_shares)
    assert sorted(order) == list(range(n_visits))
    assert cuts[0, 0] == 0
    assert cuts[-1, -1] == n_visits
    assert cuts[1:, 0].tolist() == cuts[:-1, -1].tolist()
    share_of = {}
    for segment in range(n_segments):
        for share in range(n_shares):
            rows = order[cuts[segment, share] : cuts[segment, share + 1]]
            assert (visits[rows, 1] == segment).all()
            assert (np.diff(visits[rows, 2]) >= 0).all()
            for query in visits[rows, 0]:
                assert share_of.setdefault(query, share) == share


def test_shares_are_of_about_equal_work():
    visits = np.zeros((1000, 5), np.int64)
    visits[:, 0] = np.arange(1000)
    visits[:, 2] = np.random.default_rng(0).permutation(1000) * 100
    visits[:, 3] = visits[:, 2] + 1 + np.arange(1000) % 100
    order, cuts = kernel.arrange(visits, 1000, 1, 8)
    work = [
        (visits[order[a:b], 3] - visits[order[a:b], 2]).sum()
        for a, b in zip(cuts[0, :-1], cuts[0, 1:], strict=True)
    ]
    assert max(work) - min(work) < 300
