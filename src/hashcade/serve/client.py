"""Ask a service from Python."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import numpy.typing as npt

from hashcade.results import Matches
from hashcade.serve.binary_format import BUCKET_HEADER, MEDIA_TYPE, TEXTS, read_matches
from hashcade.store import plain_value

_DEFAULTS = {
    "by": "bucket_ids", "n_neighbors": 10, "n_probe": 1, "fill": True, "max_candidates": None,
}  # fmt: skip
_LOST = (
    http.client.RemoteDisconnected, http.client.IncompleteRead, BrokenPipeError,
    ConnectionResetError,
)  # fmt: skip


class _Plain(http.client.HTTPConnection):
    """Sends head and body of a request at once: in two parts they wake the service twice."""

    def request(self, *args: Any, **more: Any) -> None:
        """Send a request."""
        self._parts: list[bytes] = []
        super().request(*args, **more)
        super().send(b"".join(self._parts))

    def send(self, data: Any) -> None:
        """Keep a part until all are there."""
        self._parts.append(data)


class _Encrypted(_Plain, http.client.HTTPSConnection):
    """The same with TLS."""


class ServiceError(RuntimeError):
    """The service refused a request, or failed.

    ``retry_after`` is the number of seconds after which to try again, with ``status`` 429.
    """

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.retry_after = retry_after


class Client:
    """One connection to a service, for example at ``http://127.0.0.1:8000``.

    Not for concurrent use. ``timeout`` is in seconds.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 30.0) -> None:
        parts = urlsplit(url)
        kinds = {"http": _Plain, "https": _Encrypted}
        if parts.scheme not in kinds or not parts.hostname:
            raise ValueError(f"url={url!r} must be http://host:port or https://host:port")
        self._connection = kinds[parts.scheme](parts.hostname, parts.port, timeout=timeout)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def search(
        self,
        vectors: npt.ArrayLike,
        n_neighbors: int = 10,
        *,
        bucket_ids: npt.ArrayLike | None = None,
        scores: npt.ArrayLike | None = None,
        n_probe: int = 1,
        max_candidates: int | None = None,
        fill: bool = True,
        where: dict[str, Any] | None = None,
        filter_ids: Any = None,
        exclude_ids: Any = None,
        include: Sequence[str] = TEXTS,
    ) -> Matches:
        """Search as ``HashTable.search`` does.

        With ``bucket_ids`` or ``scores`` the queries say where to look, without them the vectors
        are items for the model of the service. ``exclude_ids`` has an id for each query, which is
        not a result of it. What ``include`` leaves out is not sent, and None in the results.
        """
        queries = np.atleast_2d(np.asarray(vectors, dtype="<f4"))
        body, by = queries.tobytes(), "model"
        headers = {}
        if bucket_ids is not None:
            buckets = np.asarray(bucket_ids, dtype="<i8").reshape(len(queries), -1)
            body += buckets.tobytes()
            by = "bucket_ids"
            if buckets.size:  # a load balancer may send a bucket to the service that has it cached
                headers[BUCKET_HEADER] = str(buckets[0, 0])
        elif scores is not None:
            body += np.asarray(scores, dtype="<f4").tobytes()
            by = "scores"
        options: dict[str, Any] = {
            "by": by, "n_neighbors": n_neighbors, "n_probe": n_probe, "fill": fill,
            "max_candidates": max_candidates,
        }  # fmt: skip
        # What the service takes anyway need not be written, sent and read.
        options = {name: value for name, value in options.items() if value != _DEFAULTS[name]}
        options["n_queries"] = len(queries)
        ids = {"filter_ids": filter_ids, "exclude_ids": exclude_ids}
        selection: dict[str, Any] = {
            key: _listed(value) for key, value in ids.items() if value is not None
        }
        if where is not None:
            selection["where"] = where
        if tuple(include) != TEXTS:
            selection["include"] = list(include)
        if selection:
            head = _encoded(selection)
            body, options["json_bytes"] = head + body, len(head)
        path = f"/v1/search/binary?{urlencode(options)}"
        answer = self.request("POST", path, body, MEDIA_TYPE, headers)
        return read_matches(answer, len(queries), n_neighbors)

    def add(
        self,
        vectors: npt.ArrayLike,
        *,
        labels: Any = None,
        ids: Any = None,
        bucket_ids: npt.ArrayLike | None = None,
        names: list[str | None] | None = None,
        payload: list[dict[str, Any] | None] | None = None,
        new_labels: bool = False,
        replace: bool = False,
    ) -> list[int] | list[str]:
        """Add items and return their ids; when this returns, they are on the service's disk.

        ``payload`` is a list of dicts with values of JSON; with ``replace`` items take the place of
        those with their ids. Each call has a key: after a timeout or a lost connection the request
        is sent again, twice at most, and what was added already is not added again.
        """
        body: dict[str, Any] = {"vectors": np.asarray(vectors).tolist()}
        body |= {"new_labels": new_labels, "replace": replace, "names": names, "payload": payload}
        if bucket_ids is not None:
            body["bucket_ids"] = np.asarray(bucket_ids).reshape(len(body["vectors"]), -1).tolist()
        if ids is not None:
            body["ids"] = _listed(ids)
        if labels is not None:
            body["labels"] = _listed(labels)
        key = {"Idempotency-Key": uuid.uuid4().hex}
        data, kind = _encoded(body), "application/json"
        for tries_left in (2, 1, 0):
            try:
                return list(json.loads(self.request("POST", "/v1/items", data, kind, key))["ids"])
            except (OSError, http.client.HTTPException):
                if not tries_left:
                    raise
        raise AssertionError  # the last try returns or raises

    def remove(
        self, ids: Any = None, *, where: dict[str, Any] | None = None
    ) -> list[int] | list[str]:
        """Remove items, by their ids or by a filter, and return their ids."""
        body = {"ids": None if ids is None else _listed(ids), "where": where}
        return list(self.json("POST", "/v1/items/remove", body)["ids"])

    def stats(self) -> dict[str, Any]:
        """The table and the service in numbers."""
        return dict(self.json("GET", "/v1/stats"))

    def json(self, method: str, path: str, body: object = None) -> Any:
        """Send a request in JSON, and return the answer."""
        data = None if body is None else _encoded(body)
        return json.loads(self.request(method, path, data, "application/json"))

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send any request, and return the bytes of the answer."""
        headers = {**self._headers, **(headers or {})}
        if body is not None:
            headers["Content-Type"] = media_type
        # An idle connection may have been closed by the service, and a service that is killed cuts
        # its answer: to ask again is safe for searches alone, since a change may have been made.
        again = path.startswith("/v1/search")
        while True:
            try:
                self._connection.request(method, path, body, headers)
                answer = self._connection.getresponse()
                data: bytes = answer.read()
                if answer.length is None and not answer.chunked:  # the head itself was cut
                    raise http.client.IncompleteRead(data)
                break
            except BaseException as error:
                self._connection.close()
                if not (again and isinstance(error, _LOST)):
                    raise
                again = False
        if answer.status == 200:
            return data
        try:
            message = json.loads(data)["error"]
        except (ValueError, KeyError, TypeError):
            message = answer.reason
        after = answer.getheader("Retry-After")
        raise ServiceError(answer.status, message, None if after is None else float(after))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listed(values: Any) -> list[Any]:
    """Ids or labels, integers or text, as JSON has them."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _encoded(body: object) -> bytes:
    """JSON; values of numpy and dates as payload and filters of a table take them."""
    return json.dumps(body, allow_nan=False, default=plain_value).encode()
