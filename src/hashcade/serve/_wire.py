"""Searches as plain arrays: for batches, where JSON would take longer than the search.

A request body is the vectors, float32[q, dim], followed by bucket ids, int64[q, p], or by scores,
float32[q, depth, width]; q is in the address, p follows from the length. An answer is ids
int64[q, n], distances float32[q, n], candidates int64[q] and truncated uint8[q]. Numbers are
little-endian, rows follow each other, nothing lies between.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashcade.codes._shape import CodeShape
from hashcade.index._search import SearchResult

MEDIA_TYPE = "application/octet-stream"


def read_query(
    body: bytes, n_queries: int, where: str, dim: int, shape: CodeShape
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64] | None, npt.NDArray[np.float32] | None]:
    """Return vectors, and bucket ids or scores if they follow. A ``ValueError`` gives both sides.

    Parameters
    ----------
    dim
        Length of what stands for a query: of the vectors, or of what the model takes.
    """
    n_bytes = n_queries * dim * 4
    rest = len(body) - n_bytes
    per_query = {"model": 0, "scores": 4 * shape.depth * shape.width}.get(where)
    if per_query is None and (rest <= 0 or rest % (8 * n_queries)):
        raise ValueError(
            f"the body has {len(body)} bytes, must have {n_bytes} for float32[{n_queries}, {dim}]"
            f" and a multiple of {8 * n_queries} for int64[{n_queries}, buckets per query]"
        )
    if per_query is not None and rest != per_query * n_queries:
        raise ValueError(
            f"the body has {len(body)} bytes, must have {n_bytes} for float32[{n_queries}, {dim}]"
            f" and {per_query * n_queries} for {where}"
        )
    vectors = np.frombuffer(body, "<f4", n_queries * dim).reshape(n_queries, dim)
    if where == "model":
        return vectors, None, None
    if where == "scores":
        scores = np.frombuffer(body, "<f4", offset=n_bytes)
        return vectors, None, scores.reshape(n_queries, shape.depth, shape.width)
    return vectors, np.frombuffer(body, "<i8", offset=n_bytes).reshape(n_queries, -1), None


def write_result(result: SearchResult) -> bytes:
    """Return the bytes of an answer."""
    return b"".join(
        (
            result.ids.astype("<i8", copy=False).tobytes(),
            result.distances.astype("<f4", copy=False).tobytes(),
            result.candidates.astype("<i8", copy=False).tobytes(),
            result.truncated.astype(np.uint8, copy=False).tobytes(),
        )
    )


def read_result(data: bytes, n_queries: int, n_neighbors: int) -> SearchResult:
    """Return an answer from its bytes."""
    cells = n_queries * n_neighbors
    if len(data) != 12 * cells + 9 * n_queries:
        raise ValueError(
            f"the answer has {len(data)} bytes, must have {12 * cells + 9 * n_queries}"
        )
    ids = np.frombuffer(data, "<i8", cells).reshape(n_queries, n_neighbors)
    distances = np.frombuffer(data, "<f4", cells, 8 * cells).reshape(n_queries, n_neighbors)
    candidates = np.frombuffer(data, "<i8", n_queries, 12 * cells)
    truncated = np.frombuffer(data, np.uint8, n_queries, 12 * cells + 8 * n_queries)
    return SearchResult(
        distances.astype(np.float32), ids.astype(np.int64), candidates.astype(np.int64),
        truncated.astype(np.bool_),
    )  # fmt: skip
