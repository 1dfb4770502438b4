"""A query that finds its bucket in the cache of a ClusterTable, beside the library call."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from _cluster_data import N_NEIGHBORS, Data
from _timing import interleaved, quartiles, ratio

from hashcade import CodeShape, HashIndex, HashTable
from hashcade.cluster import ClusterTable, Reader, publish
from hashcade.index import Encoded
from hashcade.store import Catalog
from tests.cluster.servers import Servers, closing


def cache_hit(
    data: Data, queries: np.ndarray, buckets: np.ndarray, rounds: int = 9
) -> dict[str, object]:
    """Microseconds of a query both ways, rounds of all queries taking turns."""
    shape = CodeShape(width=int(np.ceil(np.sqrt(data.n_buckets))), depth=2)
    index = HashIndex.build(data.owner, data.vectors, shape=shape)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) / "table"
        HashTable.from_parts(None, index, Catalog()).save(place)
        with closing(Servers(Path(temporary) / "redis", 3, 0)) as servers:
            reader = Reader(servers.url)
            publish(place, reader, "bench", activate=True)
            local = HashTable.load(place)
            with ClusterTable.open(servers.url, name="bench", cache_bytes=1 << 31) as remote:
                asked = [
                    Encoded(query[None], np.array([[bucket]]), None, False)
                    for query, bucket in zip(queries, buckets, strict=True)
                ]

                def search(table: HashTable | ClusterTable) -> list[np.ndarray]:
                    return [table.search(q, N_NEIGHBORS, fill=False).ids for q in asked]

                equal = sum(map(np.array_equal, search(local), search(remote)))  # and fetches
                seconds = interleaved(
                    {"library": lambda: search(local), "cluster": lambda: search(remote)}, rounds
                )
            reader.close()
    micro = {name: [1e6 * s / len(asked) for s in values] for name, values in seconds.items()}
    return {
        "queries": len(asked),
        "equal": int(equal),
        "library_us": quartiles(micro["library"]),
        "cluster_us": quartiles(micro["cluster"]),
        "ratio": ratio(micro["cluster"], micro["library"]),
    }
