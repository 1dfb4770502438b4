"""Ask a service from Python, with nothing but the standard library and numpy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt

from hashcade.index._blocks import as_bytes
from hashcade.index._search import SearchResult
from hashcade.serve._connection import Buffer, Connection, ConnectionLostError
from hashcade.serve._wire import MEDIA_TYPE, read_result


class ServiceError(RuntimeError):
    """The service did not do what was asked.

    Attributes
    ----------
    status : int
    retry_after : float or None
        With status 429: seconds after which to try again.
    """

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.retry_after = retry_after


@lru_cache(maxsize=256)
def _path(options: tuple[tuple[str, str], ...]) -> str:
    return f"/v1/search/binary?{urlencode(options)}"


class Client:
    """One connection to a service. Not for several threads at once.

    Parameters
    ----------
    url
        For example ``http://127.0.0.1:8000``.
    token
        If the service wants one.
    timeout
        Seconds to wait for an answer.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 30.0) -> None:
        self._connection = Connection(url, timeout)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def search(
        self,
        vectors: npt.ArrayLike,
        *,
        bucket_ids: npt.ArrayLike | None = None,
        scores: npt.ArrayLike | None = None,
        n_neighbors: int = 10,
        **options: Any,
    ) -> SearchResult:
        """Search as ``HashIndex.search`` does.

        The options are ``n_probe``, ``max_candidates``, ``fill`` and ``metric``. With neither
        ``bucket_ids`` nor ``scores`` the vectors are items for the service's model.
        """
        queries = np.ascontiguousarray(vectors, dtype="<f4")
        n = len(queries) if queries.ndim > 1 else 1
        parts = [as_bytes(queries)]
        where = "model"
        if bucket_ids is not None:
            where = "bucket_ids"
            buckets = np.ascontiguousarray(bucket_ids, dtype="<i8")
            parts.append(as_bytes(buckets.reshape(n, -1)))
        elif scores is not None:
            where = "scores"
            parts.append(as_bytes(np.ascontiguousarray(scores, dtype="<f4")))
        settings = {"n_queries": n, "where": where, "n_neighbors": n_neighbors, **options}
        path = _path(tuple((k, str(v)) for k, v in settings.items() if v is not None))
        return read_result(self._ask("POST", path, parts, MEDIA_TYPE), n, n_neighbors)

    def add(
        self,
        vectors: npt.ArrayLike,
        *,
        bucket_ids: npt.ArrayLike | None = None,
        ids: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
    ) -> list[int]:
        """Add items and return their ids; when this returns, they are on the service's disk."""
        body: dict[str, Any] = {"vectors": np.asarray(vectors).tolist()}
        if bucket_ids is not None:
            buckets = np.asarray(bucket_ids)
            body["bucket_ids"] = (buckets[:, None] if buckets.ndim == 1 else buckets).tolist()
        for name, value in (("ids", ids), ("labels", labels)):
            if value is not None:
                body[name] = np.asarray(value).tolist()
        added: list[int] = self.json("POST", "/v1/items", body)["ids"]
        return added

    def remove(self, ids: npt.ArrayLike) -> None:
        """Remove items."""
        self.json("POST", "/v1/items/remove", {"ids": np.asarray(ids).tolist()})

    def stats(self) -> dict[str, Any]:
        """Return the figures of index and service."""
        told: dict[str, Any] = self.json("GET", "/v1/stats")
        return told

    def json(self, method: str, path: str, body: object = None) -> Any:
        """Ask anything in JSON."""
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        return json.loads(self.request(method, path, data, "application/json"))

    def request(self, method: str, path: str, body: bytes | None, media_type: str) -> bytes:
        """Ask anything, and return the bytes of the answer."""
        return bytes(self._ask(method, path, () if body is None else (body,), media_type))

    def _ask(
        self, method: str, path: str, parts: Sequence[Buffer], media_type: str
    ) -> bytes | bytearray:
        headers = self._headers
        if parts:
            headers = {**headers, "Content-Type": media_type}
        was_open = self._connection.is_open
        try:
            answer = self._connection.request(method, path, headers, parts)
        except (ConnectionLostError, BrokenPipeError, ConnectionResetError):
            # An idle connection that the service had closed: to ask again is safe for searches
            # alone, since a change may have been made.
            if not was_open or not path.startswith("/v1/search"):
                raise
            answer = self._connection.request(method, path, headers, parts)
        if answer.status != 200:
            try:
                message = json.loads(answer.body)["error"]
            except (ValueError, KeyError, TypeError):
                message = "no reason was given"
            after = answer.headers.get("retry-after")
            raise ServiceError(answer.status, message, None if after is None else float(after))
        return answer.body

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
