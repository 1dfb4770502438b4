"""Connections: how many there may be, what they may send before a request, how long they may wait.

uvicorn takes the class of its connections as a setting (``http=``). This one adds what it lacks:
limits on bytes, lines and seconds of a head, and on connections. Only callbacks of asyncio's
protocols and the hooks of :class:`H11Protocol` that answer or end a request are overridden.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from typing import Any

import h11
from prometheus_client import Counter
from pydantic_core import to_json
from uvicorn.protocols.http.h11_impl import H11Protocol

from hashcade.serve.middleware import CONNECTION

MAX_HEAD = 65536  # bytes of a head
_MAX_LINES = 500  # of a head
_RESERVE = 64  # descriptors for files of the table, beside those that are open at the start
_DEFAULT_LIMIT = 256
_LEAST = 8
_WATCH_SECONDS = 0.25
# Chunks must be long enough that their lengths and ends are less than a quarter of what is sent.
_LEAST_CONTENT, _FREE_CHUNKS = 0.75, 8192  # beyond so many bytes
_LINGER_SECONDS, _LINGER_BYTES = 0.5, 1 << 20  # for a client that sends on after a refusal
_STALLED_SECONDS = 1.0  # after which a connection may have to go for the memory that it holds
_REASONS = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}
# What was read is handed on before anybody else reads: one buffer serves all. All of it is for the
# beginning of a body, so that most bodies arrive in one piece. Only little of it is for the rest of
# large ones, of which many may arrive at once, and for heads and chunks, which take long to parse:
# everybody else waits meanwhile.
_BUFFER = memoryview(bytearray(65536))
_LARGE_BODY_BUFFER, _HEAD_BUFFER, _CHUNK_BUFFER = _BUFFER[:16384], _BUFFER[:4096], _BUFFER[:1024]
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what was not sent is dropped


def default_limit() -> int:
    """Connections that leave enough descriptors for the files of the table."""
    try:
        import resource

        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        taken = len(os.listdir("/dev/fd"))
    except (ImportError, OSError):
        return _DEFAULT_LIMIT
    if descriptors == resource.RLIM_INFINITY:
        return _DEFAULT_LIMIT
    return max(_LEAST, min(_DEFAULT_LIMIT, descriptors - taken - _RESERVE))


class Connections:
    """All connections of a server. Above the limit, the one that waits longest has to go."""

    def __init__(self, limit: int, idle_seconds: float, dropped: Counter) -> None:
        self.limit, self.idle_seconds = limit or default_limit(), idle_seconds
        self._dropped = dropped
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection) -> bool:
        """Take a connection in; False if all others are being worked for."""
        if len(self._open) >= self.limit and not self._drop_one(list(self._open)):
            return False
        self._open.add(connection)
        return True

    def make_room(self) -> bool:
        """Drop the connection that has kept memory and its client waiting longest, if any."""
        now = asyncio.get_running_loop().time()
        stalled = [
            each for each in self._open
            if each.holds and each.waits_since is not None
            and now - each.waits_since > _STALLED_SECONDS
        ]  # fmt: skip
        return self._drop_one(stalled)

    def _drop_one(self, among: list[Connection]) -> bool:
        waiting = [each for each in among if each.waits_since is not None]
        if not waiting:
            return False
        min(waiting, key=lambda each: each.waits_since or 0.0).abort()
        self._dropped.inc()
        return True

    def discard(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._open.discard(connection)

    def abort(self) -> None:
        """Close all connections now, whatever their clients do."""
        for connection in list(self._open):
            connection.abort()

    async def watch(self) -> None:
        """Close connections whose time is over, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            now = loop.time()
            for connection in list(self._open):
                if connection.deadline is not None and connection.deadline < now:
                    connection.time_is_over()


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, *, connections: Connections, app_state: dict[str, Any], **more: Any) -> None:
        super().__init__(app_state={**app_state, CONNECTION: self}, **more)
        self.all = connections
        self.waits_since: float | None = None  # when the client last did what we wait for
        self.holds = False  # whether it takes a part of the memory for bodies
        self.deadline: float | None = None  # of a head, or of what is left to be sent
        self._head_bytes = self._head_lines = 0
        self._request_bytes = 0  # read since the last answer
        self._tail = b""  # last bytes of a head that has not ended
        self._refused_bytes: int | None = None  # read since a refusal
        self._chunk_bytes = self._chunk_content = 0  # of a body in chunks

    # -- callbacks of asyncio ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection in, or refuse it."""
        super().connection_made(transport)
        if self.all.admit(self):
            self._wait_for_head()
        else:
            self._refuse(503, "too many connections, try again")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room for another one."""
        self.all.discard(self)
        self.deadline = None
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Read little of a head, of a large body, or of many small chunks, at a time."""
        if self.conn.their_state is not h11.SEND_BODY:
            return _HEAD_BUFFER
        if self._is_chunked():
            return _CHUNK_BUFFER
        return _BUFFER if self._request_bytes < len(_BUFFER) else _LARGE_BODY_BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on what was read."""
        data = bytes(_BUFFER[:nbytes])
        self._request_bytes += nbytes
        if self._refused_bytes is not None:
            self._refused_bytes += nbytes
            if self._refused_bytes > _LINGER_BYTES:
                self.abort()
        elif self.conn.their_state is h11.IDLE and not self._head_fits(data):
            self._refuse(431, f"the head has more than {MAX_HEAD} bytes or {_MAX_LINES} lines")
        else:
            in_chunks = self._is_chunked()
            before = 0 if self.cycle is None else len(self.cycle.body)
            self.data_received(data)
            self._look()
            if in_chunks and self.cycle is not None:
                self._chunk_bytes += nbytes
                self._chunk_content += max(0, len(self.cycle.body) - before)
                least = _LEAST_CONTENT * (self._chunk_bytes - _FREE_CHUNKS)
                if self._chunk_content < least:
                    self.abort()  # parsing takes longer than sending

    def _is_chunked(self) -> bool:
        in_body = self.conn.their_state is h11.SEND_BODY
        return in_body and any(name == b"transfer-encoding" for name, _ in self.headers)

    # -- hooks of uvicorn --------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Close if the body was not read: what follows would be taken for a request."""
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.close()
        super().on_response_complete()
        self._wait_for_head()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(400, "the request is not valid HTTP/1.1")

    def shutdown(self) -> None:
        """Close when the request at hand is answered, or now."""
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            self.abort()
        if self.cycle is None or self.cycle.response_complete:
            self.deadline = self.loop.time() + _LINGER_SECONDS

    # -- time --------------------------------------------------------------------------------------

    def _wait_for_head(self) -> None:
        self.waits_since = self.loop.time()
        self.deadline = self.waits_since + self.all.idle_seconds
        self._head_bytes = self._head_lines = self._request_bytes = 0
        self._chunk_bytes = self._chunk_content = 0
        self._tail = b""

    def _head_fits(self, data: bytes) -> bool:
        """Count bytes and lines of a head, before anybody parses them."""
        seen = self._tail + data
        end = seen.find(b"\r\n\r\n")
        self._tail = seen[-3:]
        self._head_bytes += len(data)
        self._head_lines += seen.count(b"\n", 0, end if end >= 0 else len(seen))
        return self._head_bytes <= MAX_HEAD and self._head_lines <= _MAX_LINES

    def _look(self) -> None:
        """See whether a whole head has arrived; from there on the middleware counts the time."""
        ended = self._refused_bytes is not None or self.transport.is_closing()
        if not ended and self.conn.their_state is not h11.IDLE:
            self.deadline = self.waits_since = None

    def time_is_over(self) -> None:
        """Close a connection that is idle, or answer half a head."""
        ended = self._refused_bytes is not None or self.transport.is_closing()
        if ended or self.transport.get_write_buffer_size():
            self.abort()  # to close would be to wait for a client that does not read
        elif self._head_bytes:
            self._refuse(408, f"the head took more than {self.all.idle_seconds:g} seconds")
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close now, whatever is still to be sent."""
        self.all.discard(self)
        if self.cycle is not None:
            self.cycle.disconnected = True
        # The system would keep trying to send for minutes, and keep what is to be sent.
        with contextlib.suppress(OSError):
            linger = self.transport.get_extra_info("socket")
            linger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _refuse(self, status: int, error: str) -> None:
        """Answer without the application, and read on a little: who sends does not read."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started:
                self.abort()
                return
            self.cycle.disconnected = True  # in the middle of a body: nobody waits for the rest
            self.cycle.message_event.set()
        body = to_json({"error": error})
        head = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        self.transport.write(head % (status, _REASONS[status], len(body)))
        self.transport.write(b"Connection: close\r\n\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._refused_bytes = 0
        self.deadline = self.loop.time() + _LINGER_SECONDS
