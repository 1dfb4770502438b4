"""A connection that speaks just enough HTTP/1.1 for the client.

With the standard library's a batch of searches took the client twice the processor time (0.32 ms
instead of 0.16): it sends head and body apart, and reads the head of an answer as if it were mail.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

Buffer = bytes | memoryview  # of single bytes

_MAX_HEAD = 65536
_HEADERS = re.compile(  # those that matter
    rb"\r\n(content-length|transfer-encoding|connection|retry-after):[ \t]*([^\r\n]*)",
    re.IGNORECASE,
)


@lru_cache(maxsize=256)
def _head(method: str, path: str, host: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Return the head of a request but for the length: clients ask the same again and again."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, ""]).encode("ascii")


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]  # those that matter, names in lower case
    body: bytes | bytearray


class ConnectionLostError(ConnectionError):
    """The other side closed the connection before it answered."""


class Connection:
    """One connection to a host, opened when it is needed. Not for several threads at once."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url={url!r} must be http://host:port or https://host:port")
        self._secure = parts.scheme == "https"
        self._address = (parts.hostname, parts.port or (443 if self._secure else 80))
        self._host = parts.netloc.rpartition("@")[2]
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._rest = b""  # read, and not used yet

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._socket is not None

    def request(
        self, method: str, path: str, headers: dict[str, str], parts: Sequence[Buffer] = ()
    ) -> Answer:
        """Ask, and wait for the whole answer; the body is sent part after part."""
        head = _head(method, path, self._host, tuple(headers.items()))
        if parts or method in ("POST", "PUT"):
            head += b"Content-Length: %d\r\n" % sum(len(part) for part in parts)
        try:
            self._send([head + b"\r\n", *parts])
            answer = self._answer(method)
        except BaseException:
            self.close()
            raise
        if answer.headers.get("connection", "").lower() == "close":
            self.close()
        return answer

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._rest = None, b""

    def _opened(self) -> socket.socket:
        if self._socket is None:
            made = socket.create_connection(self._address, self._timeout)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._secure:
                context = ssl.create_default_context()
                made = context.wrap_socket(made, server_hostname=self._address[0])
            self._socket, self._rest = made, b""
        return self._socket

    def _send(self, parts: Sequence[Buffer]) -> None:
        opened = self._opened()
        if self._secure:
            opened.sendall(b"".join(parts))
            return
        sent = opened.sendmsg(parts)  # in one piece, and not copied for that
        for part in parts:
            if sent < len(part):
                opened.sendall(memoryview(part)[sent:])
            sent = max(0, sent - len(part))

    # -- reading -----------------------------------------------------------------------------------

    def _more(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(262144)
        if not data:
            raise ConnectionLostError("the service closed the connection")
        self._rest = self._rest + data if self._rest else data

    def _until(self, end: bytes) -> bytes:
        while (at := self._rest.find(end)) < 0:
            if len(self._rest) > _MAX_HEAD:
                raise ConnectionLostError("the head of the answer is too long")
            self._more()
        found, self._rest = self._rest[:at], self._rest[at + len(end) :]
        return found

    def _exactly(self, n: int) -> bytearray:
        found = bytearray(self._rest[:n])
        self._rest = self._rest[n:]
        at = len(found)
        if at < n:
            assert self._socket is not None
            found.extend(bytes(n - at))
            with memoryview(found) as view:
                while at < n:
                    got = self._socket.recv_into(view[at:])
                    if got == 0:
                        raise ConnectionLostError("the service closed the connection")
                    at += got
        return found

    def _answer(self, method: str) -> Answer:
        status = 100
        headers: dict[str, str] = {}
        while status < 200:  # 100 Continue and its like come before the answer
            head = self._until(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
                raise ConnectionLostError("the answer is not HTTP/1.1")
            status = int(head[9:12])
            headers = {
                name.lower().decode("ascii"): value.rstrip().decode("latin-1")
                for name, value in _HEADERS.findall(head)
            }
        if method == "HEAD" or status in (204, 304):
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int(self._until(b"\r\n").partition(b";")[0], 16):
                parts.append(self._exactly(size))
                self._until(b"\r\n")
            while self._until(b"\r\n"):  # trailers
                pass
            return Answer(status, headers, b"".join(parts))
        return Answer(status, headers, self._exactly(int(headers.get("content-length", "0"))))
