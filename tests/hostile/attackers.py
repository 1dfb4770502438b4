"""Clients that mean no good, in a process of their own: ``attackers.py KIND PORT OPTIONS``.

Prints what became of them as JSON. Of the standard library alone, and always for a bounded time.
"""

import http.client
import json
import select
import socket
import sys
import threading
import time

DIM = 8  # of the table that is attacked
SECONDS = 60.0


def connect(port, receive_buffer=None):
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(SECONDS)
    client.connect(("127.0.0.1", port))
    return client


def status_of(client):
    """The status that was answered; None if the connection ended without."""
    try:
        line = client.recv(65536).split(b"\r\n")[0].split()
    except OSError:
        return None
    return int(line[1]) if len(line) > 1 else None


# -- endless heads ---------------------------------------------------------------------------------

POST = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
HEADS = {  # how it begins, and what follows for ever
    "headers": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"a: b\r\n"),
    "value": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", b"x" * 64),
    "url": (b"GET /", b"x" * 64),
    "method": (b"", b"G"),
    "blank lines": (b"", b"\r\n"),
    "folded": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: x\r\n", b" x\r\n"),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n"),
    "chunk extension": (CHUNKED + b"1;", b"x" * 64),
    "chunk length": (CHUNKED, b"0" * 64),
    "small chunks": (CHUNKED, b"1\r\n \r\n"),
    "chunks with extensions": (CHUNKED, b"1;" + b"x" * 100 + b"\r\n \r\n"),
    "after a refused head": (b"nonsense\r\n\r\n", b"x" * 64),
    "after an answer": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"x" * 64),
    "after a body too large": (POST + b"Content-Length: 99999999999\r\n\r\n", b"x" * 64),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
    "h2c": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    ),
    "WebSocket": (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        b"\x01\x7e\xff\xff" + b"x" * 60,
    ),
}


def head(port, kind, n_bytes):
    """Send a head that does not end; how much was taken, and what was answered."""
    start, more = HEADS[kind]
    client = connect(port)
    block, sent = more * (65536 // len(more)), 0
    end = time.monotonic() + SECONDS
    try:
        client.sendall(start)
        while sent < n_bytes and time.monotonic() < end:
            sent += client.send(block[sent % len(more) :])
        closed = False
    except OSError:
        closed = True
    status = status_of(client)
    return {"sent": sent, "closed": closed or _ends(client), "status": status}


def _ends(client):
    """Whether the other side ends it by itself, after all was sent."""
    client.settimeout(5.0)
    try:
        while client.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


# -- bodies ----------------------------------------------------------------------------------------


def fill(start, part, end, size):
    return start + part * ((size - len(start) - len(end)) // len(part)) + end


def bomb(kind, size):
    """Path and body of so many bytes."""
    row = json.dumps([0.125] * DIM).encode()
    item = b'{"vectors":[' + row + b'],"bucket_ids":[[1]],"labels":[0],"payload":'
    starts = {
        "empty rows": (b'{"vectors":[[]', b",[]", b"]}"),
        "rows of one": (b'{"vectors":[[1]', b",[1]", b"]}"),
        "short numbers": (b'{"vectors":[[1', b",1", b"]]}"),
        "right rows": (b'{"vectors":[' + row, b"," + row, b"]}"),
        "deep": (b"", b"[", b""),
        "deep vectors": (b'{"vectors":', b"[", b"}"),
        "deep objects": (b"", b'{"vectors":', b""),
        "deep filter": (b'{"where":', b'{"not":', b"}"),
        "long filter": (b'{"where":{"id":[1', b",1", b"]}}"),
        "huge integer": (b'{"vectors":[[', b"1", b"]]}"),
        "huge fraction": (b'{"vectors":[[0.', b"1", b"]]}"),
        "huge exponent": (b'{"vectors":[[1e', b"1", b"]]}"),
        "buckets": (b'{"vectors":[' + row + b'],"bucket_ids":[[1', b",1", b"]]}"),
        "bucket rows": (b'{"vectors":[' + row + b'],"bucket_ids":[[1]', b",[1]", b"]}"),
        "scores": (b'{"vectors":[' + row + b'],"scores":[[[1]', b",[1]", b"]]}"),
        "one key again": (b'{"n_probe":1', b',"n_probe":1', b"}"),
        "unknown keys": (b'{"x":1', b',"x":1', b"}"),
        "long key": (b'{"', b"x", b'":1}'),
        "filter ids": (b'{"filter_ids":[1', b",1", b"]}"),
        "bad filter ids": (b'{"filter_ids":[[]', b",[]", b"]}"),
        "include": (b'{"include":["x"', b',"x"', b"]}"),
        "spaces": (b'{"vectors":', b" ", b"}"),
        "string without end": (b'{"where":{"a":"', b"\\\\", b""),
        "nothing": (b"", b"\x00", b""),
    }
    adds = {
        "names": (b'{"vectors":[' + row + b'],"names":["x"', b',"x"', b"]}"),
        "long name": (b'{"vectors":[' + row + b'],"names":["', b"x", b'"]}'),
        "labels": (b'{"vectors":[' + row + b'],"labels":[[]', b",[]", b"]}"),
        "payload of lists": (item + b'[{"a":[[]', b",[]", b"]}]}"),
        "payload of objects": (item + b'[{"a":[{"":0}', b',{"":0}', b"]}]}"),
        "payloads": (item + b"[{}", b",{}", b"]}"),
        "payload of text": (item + b'[{"a":"', b"x", b'"}]}'),
        "payload of escapes": (item + b'[{"a":"', b"\\u0001", b'"}]}'),
        "payload of keys": (item + b'[{"0":0', b',"1":0', b"}]}"),
    }
    path = "/v1/items" if kind in adds else "/v1/search"
    return path, fill(*(starts | adds)[kind], size)


KINDS = [
    "empty rows", "rows of one", "short numbers", "right rows", "deep", "deep vectors",
    "deep objects", "deep filter", "long filter", "huge integer", "huge fraction", "huge exponent",
    "buckets", "bucket rows", "scores", "one key again", "unknown keys", "long key", "filter ids",
    "bad filter ids", "include", "spaces", "string without end", "nothing", "names", "long name",
    "labels", "payload of lists", "payload of objects", "payloads", "payload of text",
    "payload of escapes", "payload of keys",
]  # fmt: skip


def bombs(port, kinds, n, size):
    """Send bodies at once, each kind one after the other; the statuses of each."""
    answers = {}
    for kind in kinds:
        path, body = bomb(kind, size)
        request = (
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body))
        )
        seen = answers[kind] = []

        def send(request=request, body=body, seen=seen):
            client = connect(port)
            try:
                client.sendall(request)
                client.sendall(body)
            except OSError:
                pass
            seen.append(status_of(client))
            client.close()

        threads = [threading.Thread(target=send) for _ in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return answers


# -- those who wait --------------------------------------------------------------------------------


def hold(port, n, seconds, start="", receive_buffer=None, pause=0.0):
    """Open connections, send the beginning of something, and do nothing; how many were closed.

    So many seconds, or until all are closed.
    """
    clients = []
    refused = 0
    for _ in range(n):
        try:
            client = connect(port, receive_buffer)
            client.sendall(start.encode("latin-1"))
            client.setblocking(False)
            clients.append(client)
        except OSError:
            refused += 1
        time.sleep(pause)
    end = time.monotonic() + seconds
    while (closed := sum(map(_is_closed, clients))) < len(clients) and time.monotonic() < end:
        time.sleep(0.1)
    return {"opened": len(clients), "refused": refused, "closed": closed}


def _is_closed(client):
    """Whether the other side has ended it; what it sent before that is thrown away."""
    poll = select.poll()
    poll.register(client, select.POLLHUP | select.POLLERR | select.POLLRDHUP)
    return any(what for _, what in poll.poll(0))


def drip(port, n, seconds, start):
    """Send the beginning of something, then a byte every half second."""
    clients = [connect(port) for _ in range(n)]
    for client in clients:
        client.sendall(start.encode("latin-1"))
    end = time.monotonic() + seconds
    alive = set(clients)
    while alive and time.monotonic() < end:
        for client in list(alive):
            try:
                client.sendall(b"x")
            except OSError:
                alive.discard(client)
        time.sleep(0.5)
    return {"closed": n - len(alive)}


def pipeline(port, n_bytes, request):
    """Send requests one after the other without reading an answer."""
    client = connect(port)
    client.settimeout(2.0)
    block = request.encode() * (1 + 65536 // len(request))
    sent = 0
    try:
        while sent < n_bytes:
            sent += client.send(block[sent % len(request) :])
    except OSError:
        pass
    return {"sent": sent}


def guess(port, n, token):
    """Send wrong tokens on one connection; seconds that it took."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    start = time.monotonic()
    statuses = set()
    for number in range(n):
        client.request("GET", "/v1/stats", headers={"Authorization": f"Bearer {token}{number}"})
        answer = client.getresponse()
        answer.read()
        statuses.add(answer.status)
    return {"seconds": time.monotonic() - start, "statuses": sorted(statuses)}


if __name__ == "__main__":
    name, port, options = sys.argv[1:]
    print(json.dumps(globals()[name](int(port), **json.loads(options))))
