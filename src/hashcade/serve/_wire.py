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
_FLOATS, _INTS = np.dtype("<f4"), np.dtype("<i8")


def read_query(
    body: bytes, n_queries: int, where: str, dim: int, shape: CodeShape
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64] | None, npt.NDArray[np.float32] | None]:
    """Return vectors, and bucket ids or scores if they follow. A ``ValueError`` gives both sides.

    They are copies: what lies in the body may not be written to nor be aligned, and a search has a
    short way for arrays that it can use as they are.

    Parameters
    ----------
    dim
        Length of what stands for a query: of the vectors, or of what the model takes.
    """
    n_bytes = n_queries * dim * 4
    rest = len(body) - n_bytes
    if where == "bucket_ids":
        fits = rest > 0 and rest % (8 * n_queries) == 0
        more = f"a multiple of {8 * n_queries} for int64[{n_queries}, buckets per query]"
    else:
        of_scores = 4 * n_queries * shape.depth * shape.width if where == "scores" else 0
        fits = rest == of_scores
        more = f"{of_scores} for {where}"
    if not fits:
        raise ValueError(
            f"the body has {len(body)} bytes, must have {n_bytes} for float32[{n_queries}, {dim}]"
            f" and {more}"
        )
    vectors = np.frombuffer(body, _FLOATS, n_queries * dim).reshape(n_queries, dim).copy()
    if where == "model":
        return vectors, None, None
    if where == "scores":
        scores = np.frombuffer(body, _FLOATS, offset=n_bytes)
        return vectors, None, scores.reshape(n_queries, shape.depth, shape.width).copy()
    buckets = np.frombuffer(body, _INTS, offset=n_bytes).reshape(n_queries, -1).copy()
    return vectors, buckets, None


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


def read_result(data: bytes | bytearray, n_queries: int, n_neighbors: int) -> SearchResult:
    """Return an answer from its bytes."""
    cells = n_queries * n_neighbors
    if len(data) != 12 * cells + 9 * n_queries:
        raise ValueError(
            f"the answer has {len(data)} bytes, must have {12 * cells + 9 * n_queries}"
        )
    # The arrays lie in it, and can be written to.
    buffer = data if isinstance(data, bytearray) else bytearray(data)
    ids = np.frombuffer(buffer, _INTS, cells).reshape(n_queries, n_neighbors)
    distances = np.frombuffer(buffer, _FLOATS, cells, 8 * cells).reshape(n_queries, n_neighbors)
    candidates = np.frombuffer(buffer, _INTS, n_queries, 12 * cells)
    if cells % 2:  # not aligned
        candidates = candidates.copy()
    truncated = np.frombuffer(buffer, np.bool_, n_queries, 12 * cells + 8 * n_queries)
    return SearchResult(distances, ids, candidates, truncated)
