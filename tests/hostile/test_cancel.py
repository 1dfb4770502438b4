"""H4: work that nobody waits for ends, and the service ends in time whatever runs."""

import contextlib
import http.client
import json
import os
import signal
import socket
import time
import urllib.parse

import numpy as np
import pytest

from hashcade import CodeShape, HashIndex, HashTable
from hashcade.serve import Client
from tests.serve.factories import Process

DIM, N_ITEMS = 64, 200_000
SLOW = [pytest.param(what, marks=pytest.mark.slow) for what in ("fold", "reload")]
SHAPE = CodeShape(width=8, depth=2)
N_QUERIES = 4000
# What the service takes without a limit on work: 4,000 queries in all of 200,000 items.
SETTINGS = {"max_work": 10**15, "max_batch": 4096, "max_body": 64 << 20, "deadline": 60}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(N_ITEMS, DIM)).astype(np.float32)
    index = HashIndex.build(rng.integers(0, 64, N_ITEMS), vectors, shape=SHAPE)
    path = tmp_path_factory.mktemp("cancel") / "table"
    HashTable.from_parts(None, index).save(path)
    return path


def long_search():
    """A search that takes many seconds, in bytes."""
    rng = np.random.default_rng(1)
    queries = rng.normal(size=(N_QUERIES, DIM)).astype("<f4")
    buckets = np.tile(np.arange(64, dtype="<i8"), (N_QUERIES, 1))
    path = f"/v1/search/binary?n_queries={N_QUERIES}&n_neighbors=1000"
    return path, queries.tobytes() + buckets.tobytes()


class Request:
    """A request whose answer may be waited for, or not."""

    def __init__(self, url, path, body, kind="application/octet-stream"):
        parts = urllib.parse.urlsplit(url)
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        self.connection.request("POST", path, body, {"Content-Type": kind})

    def answer(self):
        with contextlib.closing(self.connection), self.connection.getresponse() as answer:
            return answer.status, answer.read().decode()

    def leave(self):
        self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def assert_idle(service):
    """200 ms after work was stopped it uses no CPU, but for what a waiting process uses.

    Later if the machine is busy: the process itself may get no time to stop.
    """
    for _ in range(5):
        time.sleep(0.2)
        before = cpu_seconds(service.process.pid)
        time.sleep(0.5)
        used = cpu_seconds(service.process.pid) - before
        if used <= 0.03 or os.getloadavg()[0] < 2:
            break
    assert used <= 0.03


@pytest.mark.promise("H4", "searches run on after their deadline or after the client has gone")
def test_a_search_ends_with_its_deadline_and_its_client(place, tmp_path, cases):
    settings = SETTINGS | {"deadline": 2}
    with contextlib.closing(Process(place, log=tmp_path / "log", **settings)) as s:
        status, text = Request(s.url, *long_search()).answer()
        assert status == 504
        assert "the deadline of 2 s has passed: stopped after" in text
        assert "of 4,000 queries" in text
        assert_idle(s)
        cases.add()
    with contextlib.closing(Process(place, log=tmp_path / "log", **SETTINGS)) as s:
        requests = [Request(s.url, *long_search()) for _ in range(4)]
        time.sleep(0.5)
        for request in requests:
            request.leave()
        assert_idle(s)
        with Client(s.url) as client:  # nothing is in the way of others
            start = time.perf_counter()
            client.search(np.zeros((1, DIM)), bucket_ids=[[1]])
            assert time.perf_counter() - start < 1
        cases.add(4)


@pytest.mark.promise("H4", "a search beyond the limit on work")
def test_what_takes_too_long_is_refused_before_it_begins(place, tmp_path, cases):
    limits = {"max_work": 1_000_000, "max_batch": 4096}
    with contextlib.closing(Process(place, log=tmp_path / "log", **limits)) as service:
        status, text = Request(service.url, *long_search()).answer()
        assert status == 422
        assert "must be <= max_work=1,000,000: lower n_neighbors, or send fewer queries" in text
        body = {"vectors": [[0.0] * DIM] * 40, "bucket_ids": [list(range(64))] * 40}
        kind = "application/json"
        status, text = Request(service.url, "/v1/search", json.dumps(body), kind).answer()
        assert status == 422
        assert "40 queries × (200,000 candidates + 100 × 64 buckets + 400 × 10 results)" in text
        assert "lower n_probe or max_candidates" in text
        body["max_candidates"] = 10_000
        status, text = Request(service.url, "/v1/search", json.dumps(body), kind).answer()
        assert status == 200
        cases.add(3)


@pytest.mark.promise("H4", "SIGTERM while eight long searches run")
def test_a_stop_does_not_wait_for_searches(place, tmp_path, cases):
    service = Process(place, log=tmp_path / "log", **SETTINGS)
    with Client(service.url) as client:
        added = client.add(np.ones((3, DIM)), bucket_ids=[[1], [2], [3]])
    requests = [Request(service.url, *long_search()) for _ in range(8)]
    time.sleep(0.5)
    start = time.perf_counter()
    service.process.send_signal(signal.SIGTERM)
    answers = []
    for request in requests:
        with contextlib.suppress(OSError, http.client.HTTPException):
            answers.append(request.answer())
    assert service.stop() == 0
    assert time.perf_counter() - start < 5
    for status, text in answers:
        assert status == 503
        assert "the service is being stopped" in text
    assert answers
    table = HashTable.load(place)
    table.index.verify()
    assert all(item in table for item in added)
    table.close()
    cases.add(8)


@pytest.mark.promise("H4", "SIGTERM while encoding, saving, reloading or adding cannot be stopped")
@pytest.mark.parametrize("what", ["encode", *SLOW, "add"])
def test_a_stop_does_not_wait_for_what_cannot_be_stopped(place, tmp_path, what, cases):
    start = {
        "encode": "service.slow_pool.submit(hang)",
        "reload": "service.slow_pool.submit(hang)",
        "fold": "HashIndex.save = hang",
        "add": "service.durable.submit(hang)",
    }[what]
    code = f"""
import json, sys, time, threading
from hashcade.index import HashIndex
from hashcade.serve import app, log_to_stderr, run, server
def hang(*args, **more):
    print("hangs", file=sys.stderr, flush=True)
    time.sleep(600)
make = app.create_app
def create_app(settings):
    made = make(settings)
    service = made.state.service
    {start}
    return made
app.create_app = create_app
log_to_stderr()
run(sys.argv[1], **json.loads(sys.argv[2]))
"""
    service = Process(place, log=tmp_path / "log", code=code, fold_seconds=0.2, stop_seconds=1.0)
    added = []
    if what == "fold":
        with Client(service.url) as client:
            added = client.add(np.ones((3, DIM)), bucket_ids=[[1], [2], [3]])
    while "hangs" not in service.log.read_text():
        time.sleep(0.01)
    begun = time.perf_counter()
    assert service.stop(signal.SIGTERM) == 0
    assert time.perf_counter() - begun < 5
    if added:
        assert "3 changes" not in service.log.read_text()  # one change, of three items
        assert "1 changes are applied at the next start" in service.log.read_text()
    table = HashTable.load(place)
    table.index.verify()
    assert all(item in table for item in added)
    table.close()
    cases.add()
