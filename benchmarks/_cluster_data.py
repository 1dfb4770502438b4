"""Items, blocks and parts for the benchmark of the cluster, and what a client does with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hashcade.cluster import Reader

DIM, N_NEIGHBORS = 64, 10
PART_ENTRIES = 900  # of a block, so that a value has at most 256 KB


@dataclass
class Data:
    """Clusters of log-normal sizes, one to a bucket, and queries next to items."""

    n_items: int
    n_buckets: int

    def __post_init__(self) -> None:
        random = np.random.default_rng(0)
        sizes = random.lognormal(0, 0.3, self.n_buckets)
        bounds = np.round(np.cumsum(sizes) / sizes.sum() * self.n_items).astype(int)
        self.owner = np.searchsorted(bounds, np.arange(self.n_items), side="right")
        self.centres = random.standard_normal((self.n_buckets, DIM), dtype=np.float32)
        self.vectors = random.standard_normal((self.n_items, DIM), dtype=np.float32)
        self.vectors += self.centres[self.owner]
        self.starts = np.concatenate([[0], bounds])

    def queries(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Vectors (n, dim), and the bucket of each: items with noise, buckets all alike."""
        random = np.random.default_rng(1)
        buckets = random.integers(0, self.n_buckets, n)
        rows = self.starts[buckets] + random.integers(0, 1 << 30, n) % np.maximum(
            1, np.diff(self.starts)[buckets]
        )
        noise = random.standard_normal((n, DIM), dtype=np.float32)
        return self.vectors[rows] + 0.3 * noise, buckets

    def rows_of(self, bucket: int) -> np.ndarray:
        """Numbers of the items of a bucket."""
        return np.arange(self.starts[bucket], self.starts[bucket + 1])


def encode(vectors: np.ndarray, rows: np.ndarray) -> bytes:
    """A block: ids, then vectors."""
    return rows.astype("<i8").tobytes() + vectors[rows].astype("<f4").tobytes()


def nearest(blocks: list[bytes | None], query: np.ndarray) -> np.ndarray:
    """Ids of the nearest items in some blocks; a block that is missing is an error."""
    ids, squares = [], []
    for block in blocks:
        if block is None:
            raise RuntimeError("a block is missing")
        n = len(block) // (8 + 4 * DIM)
        ids.append(np.frombuffer(block, "<i8", n))
        vectors = np.frombuffer(block, "<f4", n * DIM, 8 * n).reshape(n, DIM)
        difference = vectors - query
        squares.append(np.einsum("ij,ij->i", difference, difference))
    all_ids, all_squares = np.concatenate(ids), np.concatenate(squares)
    best = np.argpartition(all_squares, min(N_NEIGHBORS, len(all_ids) - 1))[:N_NEIGHBORS]
    return np.sort(all_ids[best])


# ---------------------------------------------------------------- routed: a bucket is one value


def routed_keys(prefix: str, bucket: int, n_parts: int) -> list[str]:
    """Keys of a bucket: one, or for a large one several at any server."""
    names = [str(bucket), *(f"{bucket}.{part}" for part in range(1, n_parts))]
    return [f"hashcade:{{{prefix}/{name}}}:b" for name in names]


# --------------------------------------------------- scattered: every server has a part of it


def server_tags(reader: Reader) -> list[str]:
    """For each master a hash tag whose slot it holds."""
    tags: dict[str, str] = {}
    for number in range(1000):
        tags.setdefault(reader.node_of(f"{{{number}}}"), str(number))
    return [tags[address] for address in reader.masters]


def scattered_keys(prefix: str, bucket: int, tags: list[str], n_parts: int) -> list[str]:
    """Keys of a bucket whose items are spread over all servers."""
    return [
        f"hashcade:{{{tag}}}:{prefix}:{bucket}:{part}" for tag in tags for part in range(n_parts)
    ]


def fill(reader: Reader, prefix: str, data: Data) -> dict[str, list[list[str]]]:
    """Write all blocks both ways; the keys of each bucket."""
    tags = server_tags(reader)
    random = np.random.default_rng(2)
    keys: dict[str, list[list[str]]] = {"routed": [], "scattered": []}
    batch: list[tuple[str, str, bytes]] = []
    for bucket in range(data.n_buckets):
        rows = data.rows_of(bucket)
        pieces = np.array_split(rows, max(1, -(-len(rows) // PART_ENTRIES)))
        names = routed_keys(prefix, bucket, len(pieces))
        batch += [("SET", k, encode(data.vectors, p)) for k, p in zip(names, pieces, strict=True)]
        keys["routed"].append(names)
        shares = np.array_split(random.permutation(rows), len(tags))
        n_parts = max(1, -(-len(shares[0]) // PART_ENTRIES))
        names = scattered_keys(prefix, bucket, tags, n_parts)
        pieces = [np.sort(piece) for share in shares for piece in np.array_split(share, n_parts)]
        batch += [("SET", k, encode(data.vectors, p)) for k, p in zip(names, pieces, strict=True)]
        keys["scattered"].append(names)
        if len(batch) >= 32:
            reader.pipeline(batch)
            batch = []
    reader.pipeline(batch)
    return keys
