"""What every request passes first: token, host, number of requests, size and time limits."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import time
from collections import OrderedDict
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from hashcade.serve.exchange import SMALL, Exchange, GoneError, Memory, problem
from hashcade.serve.metrics import Metrics
from hashcade.serve.settings import ServeSettings, is_loopback

log = logging.getLogger("hashcade.serve.access")

HEALTH = "/health"
DEADLINE = "hashcade.deadline"  # in the scope: when the loop's clock shows this, it is too late
EXCHANGE = "hashcade.exchange"  # in the scope: the request and its answer
_UNCOUNTED = frozenset({HEALTH, "/ready", "/metrics"})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ADDRESSES = 1024  # whose wrong tokens are remembered
_FREE_GUESSES, _GUESS_SECONDS, _LONGEST = 10, 0.05, 2.0  # the answers to later ones take longer


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
        self._memory = Memory(settings.max_memory)
        self._guesses: OrderedDict[str, tuple[float, float]] = OrderedDict()
        metrics.gauge("hashcade_requests_active", "Requests at once", lambda: self._active)
        taken = "Memory that is reserved for large bodies and answers"
        metrics.gauge("hashcade_body_bytes", taken, lambda: self._memory.taken)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, counted = time.perf_counter(), 0
        exchange = scope[EXCHANGE] = Exchange(scope, receive, send, self._settings, self._memory)
        scope[DEADLINE] = exchange.deadline

        def free_slot() -> None:
            nonlocal counted
            self._active -= counted
            counted = 0

        exchange.on_answer = free_slot  # an answer that is being sent needs none
        try:
            refusal = self._refusal(scope)
            if refusal is None:
                refusal = await self._read_body(exchange)
            elif refusal.status_code == 401:
                await self._slow_down(scope, exchange)
            if refusal is None and scope["path"] not in _UNCOUNTED:
                refusal = self._too_many(len(exchange.body))
                counted = int(refusal is None)
                self._active += counted
            app = self._app if refusal is None else refusal
            await app(scope, exchange.receive, exchange.send)
        except GoneError:
            pass
        finally:
            free_slot()
            exchange.release()
            route = getattr(scope.get("route"), "path_format", "other")
            self._metrics.answered(route, exchange.status, time.perf_counter() - start)
            if self._settings.access_log:
                # Decoded, a path may hold what ends a line or moves the cursor.
                path = quote(scope["path"], safe="/:@!$&'()*+,;=", errors="replace")
                log.info("%s %s %d", scope["method"], path, exchange.status)

    @staticmethod
    async def _read_body(exchange: Exchange) -> Response | None:
        try:
            await exchange.read_body()
        except HTTPException as error:
            return problem(error.status_code, error.detail, error.headers)
        return None

    def _too_many(self, n_bytes: int) -> Response | None:
        """Refuse a request above the limit; a quarter of it is for those with small bodies."""
        most = self._settings.max_requests
        if self._active < (most if n_bytes <= SMALL else most - most // 4):
            return None
        self._metrics.refused.inc()
        busy = f"{self._settings.max_requests} requests are being answered, try again"
        return problem(429, busy, {"Retry-After": "1"})

    async def _slow_down(self, scope: Scope, exchange: Exchange) -> None:
        """Count a token that is wrong, and let who has sent many wait for the answer.

        Whoever sends the right one is not slowed, whatever others at the same address do.
        """
        if not any(name == b"authorization" for name, _ in scope["headers"]):
            return
        self._metrics.wrong_tokens.inc()
        address, now = (scope.get("client") or ("",))[0], time.monotonic()
        guesses, since = self._guesses.pop(address, (0.0, now))
        guesses = max(guesses - (now - since), 0.0) + 1  # one a second is forgotten
        self._guesses[address] = guesses, now
        if len(self._guesses) > _ADDRESSES:
            self._guesses.popitem(last=False)
        with exchange.waiting():
            await asyncio.sleep(min(max(guesses - _FREE_GUESSES, 0) * _GUESS_SECONDS, _LONGEST))

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that goes no further."""
        headers = dict(scope["headers"])
        path = scope["path"]
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if not self._any_host and name not in self._hosts and path != HEALTH:
            return problem(403, "the Host header must be localhost: others need a token")
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
        return None


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
