"""The graphs of the peers: built once, kept in a folder, searched as often as one likes.

A million vectors take minutes per graph, and what is measured is the search. So graphs can be built
beforehand, while the machine does other things (``benchmarks/index.py --parts graphs``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from usearch.index import Index as UsearchIndex

try:
    import hnswlib
except ImportError:  # published as source only
    hnswlib = None

N_LINKS = 16
Search = Callable[[], np.ndarray]


def graph_searches(
    name: str, vectors: np.ndarray, tests: np.ndarray, n_neighbors: int, ef_build: int, folder: Path
) -> Iterator[tuple[str, int, Search]]:
    """Yield (method, setting, search from a number of threads to ids) of every installed peer."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{len(vectors)}x{vectors.shape[1]}-links{N_LINKS}-ef{ef_build}"

    hnsw = faiss_graph(vectors, ef_build, folder / f"{stem}.faiss")

    def search_faiss(ef: int, threads: int) -> np.ndarray:
        faiss.omp_set_num_threads(threads)
        hnsw.hnsw.efSearch = ef
        return hnsw.search(tests, n_neighbors)[1]

    for ef in (10, 20, 40, 80, 160):
        yield "faiss HNSW", ef, lambda threads, ef=ef: search_faiss(ef, threads)

    if hnswlib is not None:
        graph = hnswlib_graph(vectors, ef_build, folder / f"{stem}.hnswlib")

        def search_hnswlib(ef: int, threads: int) -> np.ndarray:
            graph.set_ef(ef)
            return graph.knn_query(tests, n_neighbors, num_threads=threads)[0]

        for ef in (10, 20, 40, 80, 160):
            yield "hnswlib", ef, lambda threads, ef=ef: search_hnswlib(ef, threads)

    other = _usearch_graph(vectors, ef_build, folder / f"{stem}.usearch")

    def search_usearch(ef: int, threads: int) -> np.ndarray:
        other.expansion_search = ef
        return other.search(tests, n_neighbors, threads=threads).keys

    for ef in (16, 32, 64, 128, 256):
        yield "usearch", ef, lambda threads, ef=ef: search_usearch(ef, threads)


def faiss_graph(vectors: np.ndarray, ef_build: int, path: Path, n_links: int = N_LINKS) -> Any:
    if path.exists():
        return faiss.read_index(str(path))
    faiss.omp_set_num_threads(2)
    hnsw = faiss.IndexHNSWFlat(vectors.shape[1], n_links)
    hnsw.hnsw.efConstruction = ef_build
    hnsw.add(vectors)
    _keep(path, lambda part: faiss.write_index(hnsw, part))
    return hnsw


def hnswlib_graph(vectors: np.ndarray, ef_build: int, path: Path) -> Any:
    n, dim = vectors.shape
    graph = hnswlib.Index("l2", dim)
    if path.exists():
        graph.load_index(str(path), max_elements=n)
        return graph
    graph.init_index(n, M=N_LINKS, ef_construction=ef_build, random_seed=0)
    graph.set_num_threads(2)
    graph.add_items(vectors)
    _keep(path, graph.save_index)
    return graph


def _usearch_graph(vectors, ef_build, path):
    graph = UsearchIndex(
        ndim=vectors.shape[1], metric="l2sq", dtype="f32", connectivity=N_LINKS,
        expansion_add=ef_build,
    )  # fmt: skip
    if path.exists():
        graph.load(str(path))
        return graph
    graph.add(np.arange(len(vectors)), vectors, threads=2)
    _keep(path, graph.save)
    return graph


def _keep(path: Path, write: Callable[[str], object]) -> None:
    part = path.with_suffix(path.suffix + ".part")
    write(str(part))
    part.rename(path)
