"""A shard of a faiss IVF index as a server: one thread, one message per request.

    python benchmarks/_faiss_shard.py FILE

Prints its port. A request is the number of queries and their vectors, the answer ids and squared
distances. Raw arrays over a socket: the least that a shard behind a protocol can cost.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys

import faiss
import numpy as np
from _cluster_clients import receive
from _cluster_data import DIM, N_NEIGHBORS


def main() -> None:
    faiss.omp_set_num_threads(1)
    index = faiss.read_index(sys.argv[1])
    index.nprobe = 1
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    print(listener.getsockname()[1], flush=True)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                waiting.register(connection, selectors.EVENT_READ)
                continue
            connection = key.fileobj
            try:
                (n,) = struct.unpack("<I", receive(connection, 4))
                message = receive(connection, 4 * DIM * n)
            except ConnectionError:
                waiting.unregister(connection)
                connection.close()
                continue
            queries = np.frombuffer(message, "<f4").reshape(n, DIM)
            squares, ids = index.search(queries, N_NEIGHBORS)
            connection.sendall(ids.astype("<i8").tobytes() + squares.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
