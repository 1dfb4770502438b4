"""The part of the benchmark of int8 codes that is in a cluster: one server, one query at a time."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _timing import interleaved, quartiles, ratio, timed

from hashcade import HashIndex, HashTable
from hashcade.cluster import ClusterTable, Reader, publish
from hashcade.index import Encoded
from hashcade.store import Catalog
from tests.cluster.servers import PlainServer, closing

PASSES = {"float32": None, "int8": "int8"}
LINKS = {"loopback": None, "10 Gbit/s": "10gbit", "1 Gbit/s": "1gbit"}
_SPACE, _OURS, _THEIRS = "hashcade-int8", "hc-int8-a", "hc-int8-b"


class LinkedServer(PlainServer):
    """A server in a network namespace of its own, behind :func:`link`."""

    command, host = ("ip", "netns", "exec", _SPACE, "redis-server"), "10.231.7.2"


@contextmanager
def link(rate: str) -> Iterator[None]:
    """A network link of this rate from a namespace to here; needs root."""

    def run(command: str) -> None:
        subprocess.run(command.split(), check=True)

    run(f"ip netns add {_SPACE}")
    try:
        run(f"ip link add {_OURS} type veth peer name {_THEIRS} netns {_SPACE}")
        run(f"ip addr add 10.231.7.1/30 dev {_OURS}")
        run(f"ip link set {_OURS} up")
        inside = f"ip netns exec {_SPACE}"
        run(f"{inside} ip addr add {LinkedServer.host}/30 dev {_THEIRS}")
        run(f"{inside} ip link set {_THEIRS} up")
        # The shortest bursts that reach the rate: else a block would pass as one.
        run(f"{inside} tc qdisc add dev {_THEIRS} root tbf rate {rate} burst 16kb latency 500ms")
        yield
    finally:
        run(f"ip netns del {_SPACE}")
        subprocess.run(["ip", "link", "del", _OURS], check=False, capture_output=True)


def in_cluster(
    index: HashIndex, tests: np.ndarray, lists: np.ndarray, n_queries: int, rounds: int
) -> dict[str, Any]:
    """What a query costs with and without codes, its bucket not cached and cached, by link."""
    rows: dict[str, Any] = {}
    for name, rate in LINKS.items():
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            if rate is not None:
                stack.enter_context(link(rate))
            kind = PlainServer if rate is None else LinkedServer
            server = stack.enter_context(closing(kind(folder / "redis", {"protected-mode": "no"})))
            HashTable.from_parts(None, index, Catalog()).save(folder / "table")
            reader = Reader(server.url, timeout=5.0)
            stack.callback(reader.close)
            for key, first_pass in PASSES.items():
                publish(folder / "table", reader, key, activate=True, first_pass=first_pass)
            queries = [
                Encoded(tests[i : i + 1], lists[i : i + 1], None, False) for i in range(n_queries)
            ]
            rows[name] = not_cached(stack, server, queries)
            if rate is None:
                rows["cached"] = cached(stack, server, queries, rounds)
    return rows


def opened(stack: ExitStack, url: str, cache_bytes: int) -> dict[str, ClusterTable]:
    """A query node for each way."""
    return {
        key: stack.enter_context(
            ClusterTable.open(url, name=key, cache_bytes=cache_bytes, timeout=5.0)
        )
        for key in PASSES
    }


def not_cached(stack: ExitStack, server: PlainServer, queries: list[Encoded]) -> dict[str, Any]:
    """Time, bytes, round trips and processor time of the server; all answers are compared."""
    nodes = opened(stack, server.url, 0)  # keeps nothing
    client = stack.enter_context(server.client())
    seconds: dict[str, list[float]] = {key: [] for key in nodes}
    counts: dict[str, list[Any]] = {key: [] for key in nodes}

    def server_us() -> float:
        info = client.info("cpu")
        return 1e6 * (info["used_cpu_user"] + info["used_cpu_sys"])

    for number, query in enumerate([queries[0], *queries]):
        found = {}
        for key, node in nodes.items():
            metrics = node.reader.metrics
            before = np.array([metrics.bytes, metrics.requests, node.cache.n_vectors, server_us()])
            found[key], elapsed = timed(lambda node=node, q=query: node.search(q, 10, fill=False))
            after = np.array([metrics.bytes, metrics.requests, node.cache.n_vectors, server_us()])
            if number:
                seconds[key].append(elapsed)
                counts[key].append(after - before)
        one, other = found.values()
        for name in ("ids", "distances", "candidates", "truncated"):
            if getattr(one, name).tobytes() != getattr(other, name).tobytes():
                raise RuntimeError(f"query {number} has other results")
    middle = {key: np.median(np.array(values), axis=0).tolist() for key, values in counts.items()}
    return {
        "ms": {key: [1e3 * q for q in quartiles(values)] for key, values in seconds.items()},
        "ratio": ratio(seconds["int8"], seconds["float32"]),
        **{
            name: {key: values[at] for key, values in middle.items()}
            for at, name in enumerate(("bytes", "requests", "vectors", "server_us"))
        },
    }


def cached(
    stack: ExitStack, server: PlainServer, queries: list[Encoded], rounds: int
) -> dict[str, Any]:
    """Microseconds of a query whose bucket is there, and bytes of the cache after all queries."""
    nodes = opened(stack, server.url, 1 << 40)

    def ask(node: ClusterTable) -> None:
        for query in queries:
            node.search(query, 10, fill=False)

    calls = {key: lambda node=node: ask(node) for key, node in nodes.items()}
    seconds = interleaved(calls, rounds)
    return {
        **{f"{key}_us": 1e6 * quartiles(s)[1] / len(queries) for key, s in seconds.items()},
        "ratio": ratio(seconds["int8"], seconds["float32"]),
        "cache_bytes": {key: node.cache.n_bytes for key, node in nodes.items()},
    }
