"""Clients of the benchmark of the cluster: processes with threads, and one class per system.

A client of a system has ``search(numbers)``, which answers some queries and returns the ids of
the last, and ``counts()``, what it has counted so far.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from _cluster_data import N_NEIGHBORS, nearest

PROCESSES, THREADS = 8, 3  # a server at its quota sleeps most of the time, and so do they


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
        self._nodes = 0
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for port in ports]
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def search(self, queries: np.ndarray, buckets: np.ndarray) -> np.ndarray:
        message = struct.pack("<I", len(queries)) + queries.tobytes()
        for each in self._sockets:
            each.sendall(message)
        size = len(queries) * N_NEIGHBORS
        ids, squares = [], []
        for each in self._sockets:
            answer = receive(each, 12 * size)
            ids.append(np.frombuffer(answer, "<i8", size).reshape(-1, N_NEIGHBORS))
            squares.append(np.frombuffer(answer, "<f4", size, 8 * size).reshape(-1, N_NEIGHBORS))
        self._nodes += len(self._sockets)
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
        import psycopg
        from pgvector.psycopg import register_vector

        self._nodes = 0
        self._connections = [psycopg.connect(uri, autocommit=True) for uri in uris]
        for each in self._connections:
            register_vector(each)

    def search(self, queries: np.ndarray, buckets: np.ndarray) -> np.ndarray:
        for query, bucket in zip(queries, buckets.tolist(), strict=True):
            connection = self._connections[bucket % len(self._connections)]
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


def work(pipe: Any, queries: dict[str, tuple[np.ndarray, np.ndarray]], seed: int) -> None:
    """A client process: makes a client of a system when first asked, and has it ask."""
    clients: dict[str, Any] = {}
    while (order := pipe.recv()) is not None:
        name = order["name"]
        try:
            if name not in clients:
                kind = KINDS[order["kind"]]
                clients[name] = [kind(**order["settings"]) for _ in range(THREADS)]
            tasks = [
                partial(_run, client, *queries[order["queries"]], [seed, thread], order)
                for thread, client in enumerate(clients[name])
            ]
            cpu = time.process_time()
            with ThreadPoolExecutor(THREADS) as pool:
                runs = [future.result() for future in [pool.submit(task) for task in tasks]]
            answer = {"runs": runs, "cpu": time.process_time() - cpu}
        except Exception as error:
            answer = error
        pipe.send(answer)


def _run(
    client: Any, queries: Any, buckets: Any, seed: list[int], order: dict[str, Any]
) -> dict[str, Any]:
    latencies: list[float] = []
    before, batch = client.counts(), order["batch"]
    random = np.random.default_rng([*seed, order["round"]])
    clock = time.perf_counter
    start = clock()
    while (began := clock()) < start + order["seconds"]:
        first = int(random.integers(0, len(queries) - batch + 1))
        client.search(queries[first : first + batch], buckets[first : first + batch])
        latencies.append(clock() - began)
    after = client.counts()
    return {
        "latencies": np.array(latencies),
        "seconds": clock() - start,
        "counts": {name: after[name] - before[name] for name in after},
    }


class Clients:
    """The processes; all run at once."""

    def __init__(self, queries: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for seed in range(PROCESSES):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, queries, seed))
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, **order: Any) -> list[Any]:
        """Have all of them ask one system."""
        for pipe in self._pipes:
            pipe.send(order)
        answers = [pipe.recv() for pipe in self._pipes]
        for answer in answers:
            if isinstance(answer, Exception):
                raise RuntimeError(f"{order['name']} failed") from answer
        return answers

    def close(self) -> None:
        """End them."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()
