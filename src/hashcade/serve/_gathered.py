"""Answers that leave in one piece.

The server writes the head of an answer and its body apart, and the event loop sends each at once:
two system calls, and a client that is woken up twice, which took a tenth of the time of a batch.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_SMALL = 1 << 16  # bytes; to copy more would cost more than another call


class Gathered:
    """A transport that sends what is written together: at the end of an answer, or of a turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """Send soon."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _SMALL:
            self.flush()

    def flush(self) -> None:
        """Send now."""
        parts, self._parts, size, self._size = self._parts, [], self._size, 0
        if size > _SMALL:
            for part in parts:
                self._transport.write(part)
        elif parts:
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        """Send what was written, and close."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class GatheredHTTPProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """The protocol of uvicorn, on such a transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._gathered = Gathered(cast(asyncio.Transport, transport), self.loop)
        super().connection_made(self._gathered)

    def on_response_complete(self) -> None:
        """Send the answer before anything else."""
        self._gathered.flush()
        super().on_response_complete()
