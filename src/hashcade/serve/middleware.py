"""What every request passes first: token, host, and the limits of number, size, memory and time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hashcade.serve.binary_format import MEDIA_TYPE
from hashcade.serve.metrics import Metrics
from hashcade.serve.settings import BODY_COST, ServeSettings, is_loopback

if TYPE_CHECKING:
    from hashcade.serve.connections import Connection

log = logging.getLogger("hashcade.serve.access")

HEALTH = "/health"
EXCHANGE = "hashcade.exchange"  # in the scope: the request and its answer
_UNCOUNTED = frozenset({HEALTH, "/ready", "/metrics"})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ADDRESSES = 1024  # whose wrong tokens are remembered
_FREE_GUESSES, _GUESS_SECONDS, _LONGEST = 10, 0.05, 2.0  # the answers to later ones take longer
CONNECTION = "hashcade.connection"  # in the state of a scope: the connection it came by
SMALL = 65536  # bytes of bodies and answers that are not counted
_PIECE = 65536  # bytes of an answer that are sent at a time
_SLOWEST = 1_000_000  # bytes a second that a client must read of a long answer
_TRIES, _TRY_SECONDS = 20, 0.005  # until a dropped connection has given its memory back
_NOT_SNIFFED = (b"x-content-type-options", b"nosniff")
_ARRAYS = (b"content-type", MEDIA_TYPE.encode())  # no page: headers for pages say nothing
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    _NOT_SNIFFED,
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class GoneError(Exception):
    """The client has closed the connection."""


class Memory:
    """Memory for bodies and answers that are not small, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, 0
        self._lock = threading.Lock()

    def take(self, n_bytes: int) -> bool:
        """Take some, if there is as much."""
        with self._lock:
            if self.taken + n_bytes > self.limit:
                return False
            self.taken += n_bytes
            return True

    def give_back(self, n_bytes: int) -> None:
        """Give some back."""
        with self._lock:
            self.taken -= n_bytes


class _Waiting:
    """While the client has to do something: others may need its connection more."""

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        if self._connection is not None:
            self._connection.waits_since = asyncio.get_running_loop().time()

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.waits_since = None


class Exchange:
    """One request and its answer."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, settings: ServeSettings, memory: Memory
    ) -> None:
        self._receive, self._send = receive, send
        self._settings, self._memory = settings, memory
        self._connection: Connection | None = scope.get("state", {}).get(CONNECTION)
        self.waiting = _Waiting(self._connection)
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        length = self.headers.get(b"content-length", b"0")
        self._announced = int(length) if length.isdigit() and len(length) < 19 else 0
        self.deadline = asyncio.get_running_loop().time() + settings.deadline  # on its clock
        self.body = bytearray()
        self.status = 500
        self.on_answer: Callable[[], None] = lambda: None  # called when the work is done
        self._left, self._complete, self._delivered = settings.max_body, False, False
        self._held = 0  # bytes of the memory
        self._start: Message | None = None

    # -- the request -------------------------------------------------------------------------------

    async def read_body(self) -> None:
        """Read the body; 408, 413 or 429 if it is late, too large, or too much for now."""
        await self._make_room(self._announced)
        try:
            async with asyncio.timeout_at(self.deadline):
                while not self._complete:
                    self.body += (await self._next()).get("body", b"")
                    await self._make_room(len(self.body))
        except TimeoutError:
            raise HTTPException(408, "the body did not arrive in time") from None

    async def _next(self) -> Message:
        with self.waiting:
            message = await self._receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        self._left -= len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._left < 0:
            most = self._settings.max_body
            raise HTTPException(413, f"the body is too large, max_body={most}")
        return message

    async def _make_room(self, n_bytes: int) -> None:
        """Reserve memory for so much of the body; connections that stall may have to go for it."""
        if n_bytes <= SMALL or BODY_COST * n_bytes <= self._held:
            return None
        if self._announced < n_bytes:  # nobody knows how long it will be: take it in larger parts
            n_bytes = min(2 * n_bytes, self._settings.max_body)
        cost = BODY_COST * n_bytes - self._held
        dropped = False
        for _ in range(_TRIES):
            if self._memory.take(cost):
                return self._hold(cost)
            if not dropped and self._connection is not None:
                dropped = self._connection.all.make_room()
            if not dropped:
                break
            await asyncio.sleep(_TRY_SECONDS)
        raise _full()

    def reserve(self, n_bytes: int) -> None:
        """Reserve more memory for this request, or raise 429. For any thread."""
        if not self._memory.take(n_bytes):
            raise _full()
        self._hold(n_bytes)

    def _hold(self, n_bytes: int) -> None:
        self._held += n_bytes
        if self._connection is not None:
            self._connection.holds = True

    def release(self) -> None:
        """Give the memory back."""
        held, self._held = self._held, 0
        self._memory.give_back(held)
        with contextlib.suppress(BufferError):  # an array lies in it
            self.body.clear()  # now, not when the frames of an exception are collected
        self.body = bytearray()
        if self._connection is not None:
            self._connection.holds = False

    async def receive(self) -> Message:
        """The end of the connection, for the application; it takes the body from here."""
        if self._delivered:
            return await self._receive()
        self._delivered = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def drain(self) -> None:
        """Read what is left of a body: a client that is still sending does not read the answer."""
        with contextlib.suppress(HTTPException, TimeoutError):
            async with asyncio.timeout_at(self.deadline):
                while not self._complete and self._left >= 0:
                    await self._next()

    # -- the answer --------------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Send what the application answers; the connection ends if nobody reads it."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            start, self._start = self._start, None
            self.on_answer()
            self.release()
            refusal = self._refusal(len(message.get("body", b"")))
            if refusal is not None:
                start["status"], start["headers"] = refusal.status_code, refusal.raw_headers
                message = {**message, "body": refusal.body, "more_body": False}
            if not self._complete:
                await self.drain()
            self.status = start["status"]
            headers = start.get("headers", ())
            added = [_NOT_SNIFFED] if _ARRAYS in headers else _HEADERS
            await self._send({**start, "headers": [*headers, *added]})
        await self._send_body(message)

    def _refusal(self, size: int) -> Response | None:
        """Reserve memory for an answer of so many bytes, or say why not."""
        if size > self._memory.limit:
            most = f"must be <= max_memory={self._memory.limit}"
            return problem(422, f"the answer has {size} bytes, {most}: ask for less at once")
        if size > SMALL and not self._memory.take(size):
            full = _full()
            return problem(full.status_code, full.detail, full.headers)
        if size > SMALL:
            self._hold(size)
        return None

    async def _send_body(self, message: Message) -> None:
        body, more_body = memoryview(message.get("body", b"")), message.get("more_body", False)
        seconds = self._settings.send_seconds + len(body) / _SLOWEST
        timer = None
        if self._connection is not None:  # what waits for a connection that is aborted continues
            loop = asyncio.get_running_loop()
            timer = loop.call_later(seconds, self._connection.abort)
        try:
            for at in range(0, max(len(body), 1), _PIECE):
                part = {"body": bytes(body[at : at + _PIECE])}
                more = more_body or at + _PIECE < len(body)
                with self.waiting:
                    await self._send({"type": message["type"], "more_body": more, **part})
        finally:
            if timer is not None:
                timer.cancel()


def _full() -> HTTPException:
    text = "too many large bodies and answers at once, try again"
    return HTTPException(429, text, {"Retry-After": "1"})


def problem(status: int, error: str, headers: Any = None) -> Response:
    """An answer that says in one line why a request was refused."""
    return Response(to_json({"error": error}), status, headers, "application/json")


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

        def free_slot() -> None:
            nonlocal counted
            self._active -= counted
            counted = 0

        exchange.on_answer = free_slot  # an answer that is being sent needs none
        try:
            refusal = self._refusal(scope, exchange.headers)
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

        A client with the right one is not slowed, whatever others at the same address do.
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
        with exchange.waiting:
            await asyncio.sleep(min(max(guesses - _FREE_GUESSES, 0) * _GUESS_SECONDS, _LONGEST))

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> Response | None:
        """The answer to a request that goes no further."""
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
