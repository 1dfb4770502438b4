"""Start the service and stay until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from hashcade._extras import require_extra
from hashcade.errors import ConfigError, HashcadeError
from hashcade.serve.settings import ServeSettings

log = logging.getLogger("hashcade.serve")

_TURN_SECONDS = 0.0002  # usual are 5 ms

_BACKLOG = 1024  # connections that wait to be taken
_AT_ONCE = 16  # connections that are taken before the first of them is looked at
_NEVER = 1 << 30  # seconds


def run(table: str | os.PathLike[str], **settings: Any) -> None:
    """Serve a table until the process is told to stop (SIGINT or SIGTERM).

    ``table`` is a directory, or ``redis://host:port/NAME`` for one in a cluster. On SIGHUP it is
    read again. When this returns, every acknowledged change is on disk. Settings are those of
    :class:`ServeSettings`.
    """
    checked = ServeSettings(table=os.fspath(table), **settings)
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        require_extra(module, "serve")
    from hashcade.serve.app import create_app

    # Threads that read large bodies take turns with the one that answers: it waits for each.
    sys.setswitchinterval(_TURN_SECONDS)
    listening = _listening(checked.host, checked.port)
    try:
        app = create_app(checked)
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        access = "with a token" if checked.token else "this machine alone, no token"
        n_items = len(app.state.service.durable.index)
        gc.collect()
        gc.freeze()  # what is there now stays, and need not be looked through again and again
        log.info("serving %d items on http://%s:%d (%s)", n_items, shown, port, access)
        try:
            asyncio.run(_serve(app, listening, checked))
        finally:
            app.state.service.close()
    finally:
        listening.close()


async def _serve(app: Any, listening: socket.socket, settings: ServeSettings) -> None:
    import uvicorn

    from hashcade.serve.connections import MAX_HEAD, Connection, Connections

    metrics = app.state.service.metrics
    connections = Connections(settings.max_connections, settings.idle_seconds, metrics.dropped)
    metrics.gauge("hashcade_connections", "Connections", lambda: len(connections))

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            listening.listen(_BACKLOG)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # uvicorn would end the process by the signal, not with 0

    config = uvicorn.Config(
        app,
        http=partial(Connection, connections=connections),  # type: ignore[arg-type]
        ws="none",
        loop="asyncio",
        h11_max_incomplete_event_size=MAX_HEAD,
        timeout_keep_alive=_NEVER,  # connections look after this themselves
        timeout_graceful_shutdown=0.5 * settings.stop_seconds,  # type: ignore[arg-type]
        backlog=_AT_ONCE,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )
    server = Server(config)
    loop, service = asyncio.get_running_loop(), app.state.service

    def begin_to_stop() -> None:
        if not server.should_exit:
            server.should_exit = True
            service.end_within(0.65 * settings.stop_seconds)  # Python takes its time as well
            loop.call_later(0.4 * settings.stop_seconds, service.stop_work)
            loop.call_later(0.45 * settings.stop_seconds, connections.abort)

    if threading.current_thread() is threading.main_thread() and sys.platform != "win32":
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, begin_to_stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: asyncio.create_task(_reload(app)))
    watch = asyncio.create_task(connections.watch())
    try:
        await server.serve([listening])
    finally:
        watch.cancel()


def _listening(host: str, port: int) -> socket.socket:
    """A socket that is bound already: a port that is taken is an error before all else."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # With its protocol: else asyncio does not see that it is TCP, and answers wait for 40 ms.
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        problem = f"cannot listen on {host} port {port}: {error.strerror}"
        raise ConfigError(problem, hint="choose another with --port") from None
    return listening


async def _reload(app: Any) -> None:
    try:
        service = app.state.service
        changed = await asyncio.wrap_future(service.slow_pool.submit(service.reload))
        log.info("read again: %s", "a new table" if changed else "nothing new")
    except HashcadeError as error:
        log.error("the old table stays: %s", error)


def log_to_stderr() -> None:
    """Send the messages of the service to stderr, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name, level in (("hashcade", logging.INFO), ("uvicorn.error", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
