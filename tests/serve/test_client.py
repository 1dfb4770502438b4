"""The client, and requests and answers that arrive in pieces, late or never."""

import http.client
import socket
import threading
import time
from datetime import date
from urllib.parse import quote

import numpy as np
import pytest

from hashcade import HashIndex, HashTable
from hashcade.serve import Client, ServiceError
from hashcade.serve.client import _DEFAULTS
from hashcade.serve.metrics import Metrics
from hashcade.serve.schemas import BinaryOptions
from hashcade.store import Catalog
from tests.serve.factories import DIM, SHAPE, make_table, process

# -- the service: bodies that arrive late ---------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    table = make_table(folder / "table")
    with process(table, deadline=2, log=folder / "log") as service:
        yield service


def connected(service):
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 60)


def request():
    vectors, buckets = np.zeros((3, DIM)), np.zeros((3, 1))
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
    head, body = request()
    with connected(service) as connection:
        for part in (head[:20], head[20:], body[:50], body[50:]):
            connection.sendall(part)
            time.sleep(0.05)
        assert answered(connection) == 200


@pytest.mark.parametrize("sent", [0, 50])
def test_a_body_that_does_not_come_is_given_up(service, sent):
    head, body = request()
    with connected(service) as connection:
        connection.sendall(head + body[:sent])
        start = time.monotonic()
        assert answered(connection) == 408
        assert time.monotonic() - start > 1


# -- the client ----

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n" + b'{"n_items": 5}'
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'5\r\n{"n_i\r\n9\r\ntems": 5}\r\n0\r\n\r\n'
)
BUSY = b"HTTP/1.1 429 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"


class Answering:
    """A server that gives one answer per connection, in pieces, and keeps the requests.

    ``first`` is answered to the first request instead.
    """

    def __init__(self, *pieces, first=None):
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.pieces, self.requests = pieces, []
        self.first = pieces if first is None else [first]
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            with connection:
                data = connection.recv(1 << 20)
                if not data:
                    return
                self.requests.append(data)
                for piece in self.first if len(self.requests) == 1 else self.pieces:
                    connection.sendall(piece)
                    time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with socket.create_connection(self.listening.getsockname()):
            pass  # an empty connection ends it
        self.thread.join()
        self.listening.close()


def test_options_that_are_not_sent_are_those_that_the_service_takes_anyway():
    fields = BinaryOptions.model_fields
    assert {name: fields[name].default for name in _DEFAULTS} == _DEFAULTS


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED])
@pytest.mark.parametrize("cut", [1, 20, 45])
def test_an_answer_may_arrive_in_pieces(answer, cut):
    with Answering(answer[:cut], answer[cut:]) as server, Client(server.url) as client:
        assert client.stats() == {"n_items": 5}


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n\r\n", PLAIN[:-1]])
def test_what_is_not_an_answer_is_an_error(answer):
    lost = pytest.raises((OSError, http.client.HTTPException))
    with Answering(answer) as server, Client(server.url) as client, lost:
        client.stats()


def test_a_service_that_is_busy_says_when_to_come_again():
    busy = pytest.raises(ServiceError, match="429: Busy")
    with Answering(BUSY) as server, Client(server.url) as client, busy as caught:
        client.stats()
    assert (caught.value.status, caught.value.retry_after) == (429, 7.0)


def test_after_a_lost_connection_a_search_is_repeated_and_a_change_is_not():
    """An idle connection may have been closed by the service, but a change may have been made."""
    with Answering(PLAIN) as server, Client(server.url) as client:
        for _ in range(2):  # the second one finds the connection closed
            assert client.json("GET", "/v1/search/item/1") == {"n_items": 5}
        with pytest.raises((OSError, http.client.HTTPException)):
            client.remove([1])
    assert [data.split()[0] for data in server.requests] == [b"GET", b"GET"]


@pytest.mark.parametrize("cut", [0, 20, len(PLAIN) - 1])
def test_a_search_whose_answer_is_cut_is_repeated_once_and_a_change_is_not(cut):
    """So a service that is killed behind a load balancer is not noticed."""
    with Answering(PLAIN, first=PLAIN[:cut]) as server, Client(server.url) as client:
        assert client.json("GET", "/v1/search/item/1") == {"n_items": 5}
    assert len(server.requests) == 2
    lost = pytest.raises((OSError, http.client.HTTPException))
    with Answering(PLAIN[:cut]) as server, Client(server.url) as client:
        with lost:
            client.remove([1])
        assert len(server.requests) == 1
        with lost:
            client.json("GET", "/v1/search/item/1")
        assert len(server.requests) == 3


def test_a_request_that_does_not_fit_the_socket_is_sent_whole(service):
    with Client(service.url) as client:
        with pytest.raises(ServiceError, match="must be <= max_batch=1024"):
            client.search(np.zeros((100_000, DIM)), bucket_ids=np.zeros((100_000, 1)))
        result = client.search(np.zeros((1000, DIM)), bucket_ids=np.zeros((1000, 1)))
        assert result.ids.shape == (1000, 10)


def test_ids_of_text_filters_and_payload(tmp_path):
    index = HashIndex.build(np.zeros((0, 1), int), np.zeros((0, DIM)), shape=SHAPE)
    HashTable.from_parts(None, index, Catalog()).save(tmp_path / "table")
    vectors = np.random.default_rng(0).normal(size=(4, DIM)).astype(np.float32)
    ids = ["a", "b/c%2Fd", "17", "ä\n"]
    payload = [{"day": date(2026, 1, day), "price": np.int64(day)} for day in (1, 2, 3)] + [None]
    with (
        process(tmp_path / "table", log=tmp_path / "log") as service,
        Client(service.url) as client,
    ):
        where = {"bucket_ids": [[1]] * 4, "n_neighbors": 3}
        added = client.add(vectors, ids=np.array(ids), bucket_ids=[1] * 4, payload=payload)
        assert added == ids
        for item in ids:
            assert client.json("GET", f"/v1/items/{quote(item, safe='')}")["id"] == item
        found = client.search(vectors, **where)
        assert found.ids[:, 0].tolist() == ids
        assert found.payload[1, 0] == {"day": "2026-01-02", "price": 2}
        found = client.search(vectors, **where, exclude_ids=ids, include=["names"])
        assert [item in row for item, row in zip(ids, found.ids.tolist(), strict=True)] == [
            False
        ] * 4
        assert set(found.payload.ravel()) == {None}
        found = client.search(vectors, **where, filter_ids=np.array(["17", "nobody"]))
        assert found.ids.tolist() == [["17", None, None]] * 4
        found = client.search(vectors, **where, where={"price": {"<": np.int64(3)}})
        assert {item for row in found for item in (match.id for match in row)} == set(ids[:2])
        with pytest.raises(ServiceError, match="422: where: 'price' has the operator '~'"):
            client.search(vectors, **where, where={"price": {"~": 1}})
        with pytest.raises(ValueError, match="JSON"):
            client.search(vectors, **where, where={"price": float("nan")})
        many = {"id": [*map(str, range(50_000)), "a"]}  # more than an address could hold
        found = client.search(vectors, **where, where=many)
        assert [sorted(match.id for match in row) for row in found] == [["17", "a"]] * 4
        assert client.remove(where={"day": date(2026, 1, 2)}) == ["b/c%2Fd"]
        assert client.remove(["ä\n"]) == ["ä\n"]
        assert client.stats()["index"]["n_items"] == 2


@pytest.mark.parametrize("url", ["ftp://host", "host:8000", "http://"])
def test_an_address_that_is_not_http_is_refused(url):
    with pytest.raises(ValueError, match="must be http"):
        Client(url)


# -- metrics ----


def metric(metrics, name):
    lines = metrics.text().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_requests_of_many_threads_are_counted_once():
    metrics = Metrics()

    def work():
        for n in range(500):
            metrics.answered("/x", 200 if n % 3 else 404, 0.001)
            metrics.searched(2, 7)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metric(metrics, "hashcade_requests_total") == 2000
    assert metric(metrics, "hashcade_request_seconds_count") == 2000
    assert metric(metrics, "hashcade_queries_total") == 4000
    assert metric(metrics, "hashcade_candidates_total") == 14000
