"""What goes over the wire, and when: answers in one piece, late bodies, any way of cutting."""

import asyncio
import itertools
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from services import DIM, N_ITEMS, Process, make_index

from hashcade.index._search import SearchResult
from hashcade.serve import Client, ServiceError
from hashcade.serve._connection import Connection, ConnectionLostError
from hashcade.serve._gathered import Gathered
from hashcade.serve._metrics import Metrics
from hashcade.serve._wire import read_query, read_result, write_result

# -- the service: what is written in one turn leaves together -----------------------------------


class Recorder:
    """A transport that keeps what it is told."""

    def __init__(self):
        self.seen = []

    def write(self, data):
        self.seen.append(bytes(data))

    def close(self):
        self.seen.append("closed")

    def get_extra_info(self, name):
        return f"the {name}"


def written(steps):
    """What a transport is told when a coroutine has written to the gathering one."""
    recorder = Recorder()

    async def run():
        await steps(Gathered(recorder, asyncio.get_running_loop()))
        await asyncio.sleep(0)

    asyncio.run(run())
    return recorder.seen


def test_head_and_body_leave_together_and_the_next_answer_by_itself():
    async def steps(transport):
        transport.write(b"head")
        transport.write(b"body")
        await asyncio.sleep(0)
        transport.write(b"next")

    assert written(steps) == [b"headbody", b"next"]


def test_what_was_written_leaves_before_the_end():
    async def steps(transport):
        transport.write(b"last words")
        transport.close()

    assert written(steps) == [b"last words", "closed"]


def test_large_parts_leave_at_once_and_in_order():
    async def steps(transport):
        transport.write(b"head")
        transport.write(b"x" * 100_000)
        transport.write(b"tail")

    assert written(steps) == [b"head", b"x" * 100_000, b"tail"]


def test_everything_else_is_asked_of_the_transport():
    transport = Gathered(Recorder(), None)
    assert transport.get_extra_info("peername") == "the peername"
    with pytest.raises(AttributeError):
        transport.no_such_thing()


# -- the service: bodies that come late --------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    buckets, vectors, _ = make_index(folder / "index")
    made = Process(folder / "index", "--deadline", "2", log=folder / "log")
    yield made, buckets, vectors
    made.stop()


def connected(service):
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 60)


def request(vectors, buckets):
    body = vectors.astype("<f4").tobytes() + buckets.astype("<i8").tobytes()
    head = (
        f"POST /v1/search/binary?n_queries={len(vectors)} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


def answered(connection):
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65536)
    return int(answer[9:12])


def test_a_body_that_comes_in_pieces_is_waited_for(service):
    made, buckets, vectors = service
    head, body = request(vectors[:3], buckets[:3])
    with connected(made) as connection:
        for part in (head[:20], head[20:], body[:50], body[50:]):
            connection.sendall(part)
            time.sleep(0.05)
        assert answered(connection) == 200


@pytest.mark.parametrize("sent", [0, 50])
def test_a_body_that_does_not_come_is_given_up(service, sent):
    made, buckets, vectors = service
    head, body = request(vectors[:3], buckets[:3])
    with connected(made) as connection:
        connection.sendall(head + body[:sent])
        start = time.monotonic()
        assert answered(connection) == 408
        assert time.monotonic() - start > 1


# -- the client: any way in which an answer may be cut ------------------------------------------

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Other: a: b\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


def told(pieces, body=b"question", *, slow_reader=False):
    """What a client makes of an answer that comes in pieces, and what the other side got."""
    listening = socket.create_server(("127.0.0.1", 0))
    got = []

    def serve():
        taken, _ = listening.accept()
        with taken:
            data = b""
            while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < len(body):
                if slow_reader:
                    time.sleep(0.001)
                data += taken.recv(4096 if slow_reader else 1 << 20)
            got.append(data)
            for piece in pieces:
                taken.sendall(piece)
                time.sleep(0.001)

    thread = threading.Thread(target=serve)
    thread.start()
    connection = Connection(f"http://127.0.0.1:{listening.getsockname()[1]}", 60)
    try:
        return connection.request("POST", "/", {}, [body[:3], body[3:]]), got
    finally:
        thread.join()
        connection.close()
        listening.close()


@given(st.sampled_from([PLAIN, CHUNKED, INTERIM]), st.lists(st.integers(1, 90), max_size=4))
def test_an_answer_may_be_cut_anywhere(answer, cuts):
    ends = [0, *sorted(cut for cut in cuts if cut < len(answer)), len(answer)]
    pieces = [answer[a:b] for a, b in itertools.pairwise(ends)]
    result, _ = told(pieces)
    assert result.status == 200
    assert result.body == b"hello"


def test_headers_that_matter_are_found_in_any_spelling():
    answer = (
        b"HTTP/1.1 429 Busy\r\nRETRY-after:  7 \r\ncontent-LENGTH:0\r\nConnection: close\r\n\r\n"
    )
    result, _ = told([answer])
    assert result.status == 429
    assert result.headers == {"retry-after": "7", "content-length": "0", "connection": "close"}


def test_a_question_that_does_not_fit_the_socket_is_sent_whole():
    body = np.random.default_rng(0).bytes(8 << 20)
    _, got = told([PLAIN], body, slow_reader=True)
    assert got[0].endswith(body)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", PLAIN[:-1]])
def test_what_is_no_answer_is_not_taken_for_one(answer):
    with pytest.raises(ConnectionLostError):
        told([answer] if answer else [])


def test_a_large_answer_is_read_whole():
    body = np.random.default_rng(0).bytes(3 << 20)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    result, _ = told([head + body[:10], body[10:]])
    assert result.body == body


def test_options_that_are_equal_but_not_the_same_are_not_mixed_up():
    asked = []

    def refuse(method, path, *_):
        asked.append(path)
        raise ServiceError(422, "no")

    client = Client("http://127.0.0.1:1")
    client._ask = refuse
    for n in (True, 1, np.int64(1)):
        with pytest.raises(ServiceError):
            client.search(np.zeros(3), bucket_ids=[0], n_neighbors=n)
    assert [path.rpartition("=")[2] for path in asked] == ["True", "1", "1"]


# -- arrays on the wire ----------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "n_neighbors"), [(1, 1), (3, 5), (64, 10)])
def test_arrays_come_back_as_they_were_and_may_be_written_to(n, n_neighbors):
    rng = np.random.default_rng(0)
    sent = SearchResult(
        rng.normal(size=(n, n_neighbors)).astype(np.float32),
        rng.integers(-1, 2**62, (n, n_neighbors)),
        rng.integers(0, 99, n),
        rng.random(n) < 0.5,
    )
    read = read_result(write_result(sent), n, n_neighbors)
    for name in ("ids", "distances", "candidates", "truncated"):
        array = getattr(read, name)
        np.testing.assert_array_equal(array, getattr(sent, name))
        assert array.dtype == getattr(sent, name).dtype
        assert array.flags.carray


def test_what_is_searched_with_can_be_used_as_it_is():
    rng = np.random.default_rng(0)
    vectors, buckets = rng.normal(size=(3, DIM)).astype(np.float32), rng.integers(0, 9, (3, 2))
    body = b"".join((vectors.tobytes(), buckets.tobytes()))
    read, where, _ = read_query(body, 3, "bucket_ids", DIM, None)
    np.testing.assert_array_equal(read, vectors)
    np.testing.assert_array_equal(where, buckets)
    assert read.flags.carray
    assert where.flags.carray


# -- figures: noted at once, counted later ---------------------------------------------------------


def figure(metrics, name):
    lines = metrics.text().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_every_request_is_counted_whenever_figures_are_read():
    metrics = Metrics()
    for n in range(1, 700):
        metrics.answered("/x", 200 if n % 3 else 404, 0.001)
        metrics.searched(2, np.array([3, 4]))
        if n % 131 == 0:
            assert figure(metrics, "hashcade_requests_total") == n
            assert figure(metrics, "hashcade_queries_total") == 2 * n
            assert figure(metrics, "hashcade_candidates_total") == 7 * n
    assert figure(metrics, "hashcade_request_seconds_count") == 699
    metrics.searched(1, 5)
    assert figure(metrics, "hashcade_candidates_total") == 7 * 699 + 5


def test_requests_of_several_threads_are_counted_once():
    metrics = Metrics()

    def work():
        for _ in range(2000):
            metrics.answered("/x", 200, 0.001)
            metrics.searched(1, 3)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert figure(metrics, "hashcade_requests_total") == 8000
    assert figure(metrics, "hashcade_candidates_total") == 24000


def test_large_batches_are_not_kept():
    metrics = Metrics()
    metrics.searched(N_ITEMS, np.ones(N_ITEMS))
    assert len(metrics._searched) == 1
    metrics.searched(5000, np.ones(5000))
    assert len(metrics._searched) == 0
