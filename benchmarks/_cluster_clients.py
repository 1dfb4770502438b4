"""Clients of the benchmark of the cluster: processes with threads, and one class per system.

A client of a system has ``search(numbers)``, which answers some queries and returns the ids of
the last, and ``counts()``, what it has counted so far.
"""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from _cluster_data import N_NEIGHBORS, nearest  # noqa: E402

PROCESSES, THREADS = 4, 4


class RedisClient:
    """Blocks are fetched and scanned here."""

    def __init__(self, url: str, keys: list[list[str]], sparsity: int, **_: Any) -> None:
        from hashcade.cluster import Reader

        self._reader = Reader(url, timeout=2.0)  # a server at its quota sleeps 9 of 10 ms
        self._keys, self._sparsity = keys, sparsity

    def search(self, queries: np.ndarray, buckets: np.ndarray) -> np.ndarray:
        wanted = buckets[:, None] + 17 * np.arange(self._sparsity)
        wanted %= len(self._keys)
        names = {b: self._keys[b] for b in wanted.ravel().tolist()}  # each bucket once
        values = iter(self._reader.get_many([key for keys in names.values() for key in keys]))
        blocks = {b: [next(values) for _ in keys] for b, keys in names.items()}
        for query, row in zip(queries, wanted.tolist(), strict=True):
            ids = nearest([part for b in row for part in blocks[b]], query)
        return ids

    def counts(self) -> dict[str, int]:
        metrics = self._reader.metrics
        return {"keys": metrics.keys, "nodes": metrics.nodes, "bytes": metrics.bytes}


class FaissClient:
    """Every shard is asked, and the answers are merged."""

    def __init__(self, ports: list[int], **_: Any) -> None:
        self._ports, self._local, self._nodes = ports, threading.local(), 0

    def search(self, queries: np.ndarray, buckets: np.ndarray) -> np.ndarray:
        sockets = getattr(self._local, "sockets", None)
        if sockets is None:
            sockets = [socket.create_connection(("127.0.0.1", port)) for port in self._ports]
            for each in sockets:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._local.sockets = sockets
        message = struct.pack("<I", len(queries)) + queries.tobytes()
        for each in sockets:
            each.sendall(message)
        size = len(queries) * N_NEIGHBORS
        ids, squares = [], []
        for each in sockets:
            answer = receive(each, 12 * size)
            ids.append(np.frombuffer(answer, "<i8", size).reshape(-1, N_NEIGHBORS))
            squares.append(np.frombuffer(answer, "<f4", size, 8 * size).reshape(-1, N_NEIGHBORS))
        self._nodes += len(sockets)
        best = np.argsort(np.hstack(squares), axis=1)[:, :N_NEIGHBORS]
        return np.sort(np.take_along_axis(np.hstack(ids), best, 1)[-1])

    def counts(self) -> dict[str, int]:
        return {"nodes": self._nodes}


class PostgresClient:
    """The server that has the bucket is asked."""

    SQL = (
        "SELECT id, embedding <-> %s AS distance FROM items WHERE bucket = ANY(%s)"
        " ORDER BY distance, id LIMIT 10"
    )

    def __init__(self, uris: list[str], **_: Any) -> None:
        self._uris, self._local, self._nodes = uris, threading.local(), 0

    def search(self, queries: np.ndarray, buckets: np.ndarray) -> np.ndarray:
        import psycopg
        from pgvector.psycopg import register_vector

        if not hasattr(self._local, "connections"):
            self._local.connections = [psycopg.connect(uri, autocommit=True) for uri in self._uris]
            for each in self._local.connections:
                register_vector(each)
        for query, bucket in zip(queries, buckets.tolist(), strict=True):
            connection = self._local.connections[bucket % len(self._uris)]
            rows = connection.execute(self.SQL, (query, [bucket]), prepare=True, binary=True)
            ids = np.sort([row[0] for row in rows])
        self._nodes += len(queries)
        return ids

    def counts(self) -> dict[str, int]:
        return {"nodes": self._nodes}


def receive(connection: socket.socket, size: int) -> bytearray:
    """Exactly so many bytes."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the server closed the connection")
        data += part
    return data


KINDS = {"redis": RedisClient, "faiss": FaissClient, "postgres": PostgresClient}


def work(pipe: Any, queries: np.ndarray, buckets: np.ndarray, seed: int) -> None:
    """A client process: makes clients, and runs threads that ask until the time is over."""
    clients: dict[str, Any] = {}
    while True:
        order = pickle.loads(pipe.recv_bytes())  # from our own parent process
        if order is None:
            return
        name = order["name"]
        if name not in clients:
            clients[name] = KINDS[order["kind"]](**order["settings"])
        pipe.send_bytes(pickle.dumps(_run(clients[name], queries, buckets, seed, order)))


def _run(client: Any, queries: Any, buckets: Any, seed: int, order: dict[str, Any]) -> Any:
    latencies: list[list[float]] = [[] for _ in range(THREADS)]
    errors: list[str] = []
    before, batch = client.counts(), order["batch"]

    def loop(thread: int, until: float) -> None:
        random = np.random.default_rng([seed, thread, order["round"]])
        clock = time.perf_counter
        try:
            while (began := clock()) < until:
                start = int(random.integers(0, len(queries) - batch + 1))
                client.search(queries[start : start + batch], buckets[start : start + batch])
                latencies[thread].append(clock() - began)
        except Exception as error:
            errors.append(repr(error))

    began, cpu = time.perf_counter(), time.process_time()
    threads = [
        threading.Thread(target=loop, args=(i, began + order["seconds"])) for i in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = client.counts()
    return {
        "latencies": np.concatenate(latencies),
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "errors": errors,
        "counts": {name: after[name] - before[name] for name in after},
    }


class Clients:
    """The processes; all run at once."""

    def __init__(self, queries: np.ndarray, buckets: np.ndarray) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for seed in range(PROCESSES):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, queries, buckets, seed))
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, **order: Any) -> list[Any]:
        """Have all of them ask one system."""
        for pipe in self._pipes:
            pipe.send_bytes(pickle.dumps(order))
        answers = [pickle.loads(pipe.recv_bytes()) for pipe in self._pipes]
        errors = [error for answer in answers for error in answer["errors"]]
        if errors:
            raise RuntimeError(f"{order['name']}: {len(errors)} errors, the first: {errors[0]}")
        return answers

    def close(self) -> None:
        """End them."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send_bytes(pickle.dumps(None))
            process.join()


