"""Connections: endless heads, silence, clients that do not read, wrong tokens."""

import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.hostile import attackers
from tests.hostile.services import Attacked
from tests.serve.factories import DIM, TOKEN, make_table

LONG = 300 << 20
QUICK, STRICT = 1.0, 0.1  # seconds for an honest client: other programs may have the cores
# Of the service: for the head of a request, and for the rest of it.
IDLE, DEADLINE = 2.0, 4.0
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("edges")


@pytest.fixture(scope="module")
def attacked(folder):
    service = Attacked(
        make_table(folder / "table"), folder / "log", idle_seconds=IDLE, deadline=DEADLINE
    )
    yield service
    assert service.stop() == 0


def ask(attacked, data, seconds=20.0):
    """Send bytes, and read until the other side closes or nothing comes for a second."""
    with socket.create_connection(("127.0.0.1", attacked.port), timeout=seconds) as client:
        client.sendall(data)
        answer = b""
        try:
            while part := client.recv(65536):
                answer += part
                client.settimeout(1.0)
        except OSError:
            pass
        return answer


# -- heads -----------------------------------------------------------------------------------------

IN_A_BODY = ("small chunks", "chunks with extensions", "after a body too large")
STATUSES = {
    "blank lines": 400, "trailers": 400, "chunk extension": 400, "chunk length": 400,
    "small chunks": 408, "chunks with extensions": 408, "after a refused head": 400,
    "after an answer": 200, "after a body too large": 413, "HTTP/2": 403, "h2c": 200,
    "WebSocket": 200,
}  # fmt: skip
ONE_SOCKET = pytest.mark.promise("H1", "one socket sends a head or a body without end")


def check_endless_head(attacked, kind, n_bytes, p99, cases):
    cases.add()
    outcome = attacked.under("head", kind=kind, n_bytes=n_bytes)
    outcome.check(p99=p99)
    (result,) = outcome.results
    assert result["closed"], str(outcome)
    if kind not in IN_A_BODY:  # which has until the deadline
        assert result["sent"] < 8 << 20, str(outcome)
    assert result["status"] in (STATUSES.get(kind, 431), None), str(outcome)


@ONE_SOCKET
@pytest.mark.parametrize("kind", attackers.HEADS)
def test_a_head_without_end_is_refused_and_takes_no_memory(attacked, kind, cases):
    check_endless_head(attacked, kind, 64 << 20, QUICK, cases)


@ONE_SOCKET
@pytest.mark.slow
@pytest.mark.parametrize("kind", attackers.HEADS)
def test_300_megabytes_of_a_head(attacked, kind, cases):
    check_endless_head(attacked, kind, LONG, STRICT, cases)


@ONE_SOCKET
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["headers", "value", "url", "small chunks"])
def test_many_sockets_with_heads_without_end(attacked, kind, cases):
    cases.add(16)
    attacked.under("head", 16, kind=kind, n_bytes=LONG).check(p99=0.5)


@pytest.mark.promise("H1", "heads that are too large by a little, or in too many lines")
@pytest.mark.parametrize(
    ("n_bytes", "line", "status"),
    [
        (60_000, b"x: %s\r\n" % (b"y" * 500), 200),
        (70_000, b"x: %s\r\n" % (b"y" * 500), 431),
        (60_000, b"x: y\r\n", 431),
    ],
)
def test_heads_up_to_the_limit_are_taken(attacked, n_bytes, line, status):
    start = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    answer = ask(attacked, start + line * (n_bytes // len(line)) + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]


@pytest.mark.promise("H1", "half a head, and then a byte now and then")
def test_half_a_head_is_answered_in_time_with_408(attacked):
    begin = time.monotonic()
    with ThreadPoolExecutor() as pool:
        starts = b"GET /health HTTP/1.1\r\nHost: loc", b"G"
        answers = list(pool.map(partial(ask, attacked), starts))
    assert [answer[:13] for answer in answers] == [b"HTTP/1.1 408 "] * 2
    assert time.monotonic() - begin < IDLE + 3
    start = "GET /health HTTP/1.1\r\nHost: localhost\r\nX: "
    outcome = attacked.under("drip", n=20, seconds=IDLE + 5, start=start)
    outcome.check(p99=QUICK)
    assert outcome.results == [{"closed": 20}]


@pytest.mark.promise("H1", "upgrades to other protocols")
@pytest.mark.parametrize("kind", ["HTTP/2", "h2c", "WebSocket"])
def test_no_other_protocol_is_spoken(attacked, kind):
    answer = ask(attacked, attackers.HEADS[kind][0])
    assert answer.startswith(b"HTTP/1.1 ")
    assert b" 101 " not in answer.split(b"\r\n")[0]
    assert b"\x00\x00" not in answer  # frames of HTTP/2


@pytest.mark.promise("H1", "thousands of requests at once on one connection, unread")
def test_pipelined_requests_wait_their_turn(attacked):
    request = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    outcome = attacked.under("pipeline", 4, n_bytes=4 << 20, request=request)
    outcome.check(p99=QUICK)


@pytest.mark.promise("L", "/health without a Host header")
def test_health_needs_no_host(attacked):
    assert ask(attacked, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert ask(attacked, b"GET /v1/stats HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    other = b"GET /health HTTP/1.1\r\nHost: 10.0.0.7\r\nConnection: close\r\n\r\n"
    assert ask(attacked, other).startswith(b"HTTP/1.1 200 ")


# -- silence ---------------------------------------------------------------------------------------


def check_silent_connections(attacked, p99, **options):
    outcome = attacked.under("hold", **options)
    outcome.check(p99=p99)
    (result,) = outcome.results
    assert result["opened"] == result["closed"], str(outcome)


@pytest.mark.promise("M3", "1,000 connections that say nothing, or half a head")
@pytest.mark.parametrize("start", ["", "GET /health HT"])
def test_silent_connections_make_room_and_are_closed(attacked, start, cases):
    cases.add(300)
    check_silent_connections(attacked, QUICK, n=300, seconds=IDLE + 3, start=start)


@pytest.mark.promise("M3", "1,000 connections that say nothing, or half a head")
@pytest.mark.slow
@pytest.mark.parametrize("start", ["", "GET /health HT", "POST /v1/search HTTP/1.1\r\n"])
def test_a_thousand_silent_connections(attacked, start, cases):
    cases.add(1000)
    check_silent_connections(attacked, STRICT, n=1000, seconds=8, start=start)


@pytest.mark.promise("M3", "300 bodies that are announced and never sent")
def test_bodies_that_never_come_hold_no_slot(attacked, cases):
    cases.add(300)
    start = attackers.POST.decode() + "Content-Length: 16000000\r\n\r\n{"
    outcome = attacked.under("hold", n=300, seconds=DEADLINE + 3, start=start)
    outcome.check(p99=QUICK)
    assert outcome.results[0]["closed"] == outcome.results[0]["opened"]


@pytest.mark.promise("M3", "300 silent connections under `ulimit -n 256`, beside adds and saves")
def test_few_descriptors_are_enough(folder, cases):
    cases.add(300)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        few = Attacked(make_table(folder / "few"), folder / "few.log", fold_seconds=0.2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    from hashcade.serve import Client

    try:
        attack = few.attack("hold", n=300, seconds=4)
        with few.honest_client() as honest:
            for _ in range(40):
                with Client(few.service.url) as client:
                    client.add([[0.5] * DIM], bucket_ids=[[1]], labels=[0])
                time.sleep(0.05)
        attack.communicate(timeout=60)
        assert honest.failures == []
        log = few.service.log.read_text()
        assert "Too many open files" not in log
        assert "could not be saved" not in log
        assert "hashcade_index_saves 0" not in few.get("/metrics")[1]
    finally:
        assert few.stop() == 0
    assert "every change is saved" in few.service.log.read_text()


# -- clients that do not read ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def patient(folder):
    """A service that waits long for its own answers, and briefly for clients."""
    table = make_table(folder / "patient")
    service = Attacked(table, folder / "patient.log", send_seconds=2.0, deadline=120.0)
    yield service
    assert service.stop() == 0


def check_unread_answers(patient, n, seconds, p99):
    row, buckets = "[" + ",".join(["0.5"] * DIM) + "]", str(list(range(16)))
    queries, where = ",".join([row] * 1024), ",".join([buckets] * 1024)
    body = (
        f'{{"vectors":[{queries}],"bucket_ids":[{where}],"n_neighbors":200,"include":["labels"]}}'
    )
    start = attackers.POST.decode() + f"Content-Length: {len(body)}\r\n\r\n{body}"
    outcome = patient.under("hold", n=n, seconds=seconds, start=start, receive_buffer=4096)
    outcome.check(bodies=True, p99=p99)
    assert outcome.results[0]["closed"] == outcome.results[0]["opened"], str(outcome)
    status, metrics = patient.get("/metrics")
    assert status == 200
    assert "hashcade_requests_active 0.0" in metrics
    assert "hashcade_body_bytes 0.0" in metrics


@pytest.mark.promise("H3", "70 to 200 clients that ask for 6 MB and do not read it")
def test_clients_that_do_not_read_hold_nothing(patient, cases):
    cases.add(20)
    check_unread_answers(patient, 20, 25, QUICK)


@pytest.mark.promise("H3", "70 to 200 clients that ask for 6 MB and do not read it")
@pytest.mark.slow
def test_two_hundred_clients_that_do_not_read(patient, cases):
    cases.add(200)
    check_unread_answers(patient, 200, 60, STRICT)


# -- tokens ----------------------------------------------------------------------------------------


@pytest.mark.promise("L", "wrong tokens, one after the other")
def test_wrong_tokens_are_counted_and_slowed_and_the_right_one_is_not(folder, cases):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    guarded = Attacked(make_table(folder / "guarded"), folder / "guarded.log", token=TOKEN)
    try:
        cases.add(20)
        outcome = guarded.under("guess", n=20, token="wrong-horse-battery-", headers=headers)
        outcome.check(p99=QUICK)
        (result,) = outcome.results
        assert result["statuses"] == [401]
        assert result["seconds"] > 1.5
        metrics = guarded.get("/metrics", **headers)[1]
        assert "hashcade_wrong_tokens_total 20.0" in metrics
    finally:
        assert guarded.stop() == 0
