"""Searches as plain arrays: for batches, where JSON would take longer than the search.

A request body is the vectors, float32[q, dim], followed by bucket ids, int64[q, p], or by scores,
float32[q, depth, width]; q is in the address, p follows from the length. Filters and the like come
before them, as a JSON object whose length is in the address: in the address itself they would meet
the limits of proxies, and get into their logs. An answer is ids int64[q, n], distances
float32[q, n], candidates int64[q], truncated uint8[q] and exact uint8[q], followed by a JSON object
with those of ``labels``, ``names`` and ``payload`` of the results that were asked for, row after
row (null: none at all), and with their ``ids`` if these are text (the array of ids is then 0, or -1
for no result).
Numbers are little-endian, nothing lies between.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import to_json

from hashcade.codes import CodeShape
from hashcade.results import Matches
from hashcade.store import Ids

MEDIA_TYPE = "application/octet-stream"
SEQUENCE_HEADER = "X-Hashcade-Min-Sequence"  # number of a change that an answer must have seen
BUCKET_HEADER = "X-Hashcade-Bucket"  # so that a load balancer can send a bucket to one service
_FLOATS, _INTS = np.dtype("<f4"), np.dtype("<i8")
TEXTS = ("labels", "names", "payload")


def read_query(
    body: bytes | memoryview, n_queries: int, by: str, dim: int, shape: CodeShape
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64] | None, npt.NDArray[np.float32] | None]:
    """Vectors, and bucket ids or scores if they follow. A ``ValueError`` gives both sides.

    ``dim`` is the length of a query: of the vectors, or of the items that the model takes.
    """
    n_bytes = n_queries * dim * 4
    rest = len(body) - n_bytes
    if by == "bucket_ids":
        fits = rest > 0 and rest % (8 * n_queries) == 0
        more = f"a multiple of {8 * n_queries} for int64[{n_queries}, buckets per query]"
    else:
        of_scores = 4 * n_queries * shape.depth * shape.width if by == "scores" else 0
        fits = rest == of_scores
        more = f"{of_scores} for {by}"
    if not fits:
        raise ValueError(
            f"the body has {len(body)} bytes, must have {n_bytes} for float32[{n_queries}, {dim}]"
            f" and {more}"
        )
    # Copies: what lies in the body is read-only and may not be aligned.
    vectors = np.frombuffer(body, _FLOATS, n_queries * dim).reshape(n_queries, dim).copy()
    if by == "model":
        return vectors, None, None
    if by == "scores":
        scores = np.frombuffer(body, _FLOATS, offset=n_bytes)
        return vectors, None, scores.reshape(n_queries, shape.depth, shape.width).copy()
    buckets = np.frombuffer(body, _INTS, offset=n_bytes).reshape(n_queries, -1).copy()
    return vectors, buckets, None


def write_matches(matches: Matches, include: Sequence[str] = TEXTS) -> bytes:
    """The bytes of an answer."""
    ids, texts = matches.ids, {name: _listed(getattr(matches, name)) for name in include}
    if ids.dtype == object:
        nothing: Any = None
        ids, texts["ids"] = np.equal(ids, nothing) * np.int64(-1), _listed(ids)
    return b"".join(
        (
            ids.astype(_INTS, copy=False).tobytes(),
            matches.distances.astype(_FLOATS, copy=False).tobytes(),
            matches.candidates.astype(_INTS, copy=False).tobytes(),
            matches.truncated.astype(np.uint8, copy=False).tobytes(),
            matches.exact.astype(np.uint8, copy=False).tobytes(),
            to_json(texts),
        )
    )


def read_matches(data: bytes, n_queries: int, n_neighbors: int) -> Matches:
    """An answer from its bytes."""
    cells = n_queries * n_neighbors
    flags = 12 * cells + 8 * n_queries
    end = flags + 2 * n_queries
    if len(data) <= end:
        raise ValueError(f"the answer has {len(data)} bytes, must have more than {end}")
    buffer = bytearray(data[:end])  # the arrays lie in it, and can be written to
    shape = (n_queries, n_neighbors)
    ids: Ids = np.frombuffer(buffer, _INTS, cells).reshape(shape)
    truncated, exact = np.frombuffer(buffer, np.bool_, 2 * n_queries, flags).reshape(2, -1)

    @cache
    def texts() -> dict[str, Any]:  # many callers want none of it: read when it is asked for
        return dict(json.loads(data[end:]))

    def find(name: str) -> npt.NDArray[Any]:
        return exact if name == "exact" else _objects(texts().get(name), shape)

    if not (ids > 0).any() and "ids" in texts():
        ids = find("ids")
    return Matches(
        ids,
        np.frombuffer(buffer, _FLOATS, cells, 8 * cells).reshape(shape),
        np.frombuffer(buffer, _INTS, n_queries, 12 * cells).copy(),  # may not be aligned
        truncated,
        find,
    )


def _listed(values: npt.NDArray[np.object_]) -> list[Any] | None:
    flat = values.ravel().tolist()
    # The first one says it in most cases: to compare hundreds of labels with None takes long.
    return None if flat[:1] == [None] and flat.count(None) == len(flat) else flat


def _objects(values: list[Any] | None, shape: tuple[int, int]) -> npt.NDArray[np.object_]:
    array = np.empty(shape, dtype=object)
    array.ravel()[:] = values
    return array
