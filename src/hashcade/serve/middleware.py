"""What every request passes first: token, host, number of requests, size and time limits."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import time
from typing import Any
from urllib.parse import quote

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hashcade.serve.metrics import Metrics
from hashcade.serve.settings import ServeSettings, is_loopback

log = logging.getLogger("hashcade.serve.access")

HEALTH = "/health"
DEADLINE = "hashcade.deadline"  # in the scope: when the loop's clock shows this, it is too late
_UNCOUNTED = frozenset({HEALTH, "/ready", "/metrics"})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Middleware:
    """ASGI middleware: authentication, limits, headers and metrics."""

    def __init__(self, app: ASGIApp, *, settings: ServeSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._token = None if settings.token is None else _digest(settings.token.encode())
        # Without a token a page of another site could reach us through a name that it controls.
        self._any_host = settings.token is not None or not is_loopback(settings.host)
        host = settings.host.lower().strip("[]")
        self._hosts = _LOCAL_NAMES | {f"[{host}]" if ":" in host else host}
        self._active = 0
        metrics.gauge("hashcade_requests_active", "Requests at once", lambda: self._active)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 500
        scope[DEADLINE] = asyncio.get_running_loop().time() + self._settings.deadline
        body = _Body(receive, self._settings.max_body, scope[DEADLINE])

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                # A client that is still sending would not read the answer.
                await body.drain()
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        counted = 0
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, body.receive, send_marked)
                return
            counted = int(scope["path"] not in _UNCOUNTED)
            self._active += counted
            await self._app(scope, body.receive, send_marked)
        finally:
            self._active -= counted
            route = getattr(scope.get("route"), "path_format", "other")
            self._metrics.answered(route, status, time.perf_counter() - start)
            if self._settings.access_log:
                # Decoded, a path may hold what ends a line or moves the cursor.
                path = quote(scope["path"], safe="/:@!$&'()*+,;=", errors="replace")
                log.info("%s %s %d", scope["method"], path, status)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that goes no further."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if not self._any_host and name not in self._hosts:
            return problem(403, "the Host header must be localhost: others need a token")
        path = scope["path"]
        if self._token is not None and path != HEALTH:
            sent = _sent_token(headers.get(b"authorization", b""))
            if not hmac.compare_digest(_digest(sent), self._token):
                ask = {"WWW-Authenticate": 'Basic realm="hashcade", charset="UTF-8"'}
                return problem(401, "a token is needed: Authorization: Bearer ...", ask)
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        elsewhere = origin and origin.partition("://")[2] != host
        if elsewhere and scope["method"] not in _READING:
            return problem(403, "changes and searches are not taken from other sites")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and (len(length) > 18 or int(length) > self._settings.max_body):
            shown = length[:18].decode()
            return problem(413, f"the body has {shown} bytes, max_body={self._settings.max_body}")
        if self._active >= self._settings.max_requests and path not in _UNCOUNTED:
            self._metrics.refused.inc()
            busy = f"{self._settings.max_requests} requests are being answered, try again"
            return problem(429, busy, {"Retry-After": "1"})
        return None


class _Body:
    """The body of a request, up to a size and a time."""

    def __init__(self, receive: Receive, max_body: int, deadline: float) -> None:
        self._receive, self._max_body, self._deadline = receive, max_body, deadline
        self._left, self._complete = max_body, False

    async def receive(self) -> Message:
        if self._complete:  # what is waited for now is the end of the connection
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the body did not arrive in time") from None
        self._left -= len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._left < 0:
            raise HTTPException(413, f"the body is too large, max_body={self._max_body}")
        return message

    async def drain(self) -> None:
        """Read what is left of the body, within the same limits."""
        with contextlib.suppress(HTTPException):
            while not self._complete and self._left >= 0:
                await self.receive()


def _digest(token: bytes) -> bytes:
    # Of equal length for every token: the comparison then tells nothing about it.
    return hashlib.sha256(token).digest()


def _sent_token(header: bytes) -> bytes:
    """Take the token from ``Bearer <token>``, or from ``Basic`` as its password."""
    kind, _, value = header.strip().partition(b" ")
    if kind.lower() == b"basic":
        with contextlib.suppress(ValueError):
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    return value.strip() if kind.lower() == b"bearer" else b""


def problem(status: int, error: str, headers: Any = None) -> Response:
    """An answer that says in one line why a request was refused."""
    return Response(to_json({"error": error}), status, headers, "application/json")
