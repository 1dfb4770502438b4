"""Start the service and stay until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from hashcade._extras import require_extra
from hashcade.errors import ConfigError, HashcadeError
from hashcade.serve.settings import ServeSettings

log = logging.getLogger("hashcade.serve")

_MAX_HEAD = 65536  # bytes of the head of a request
_IDLE_SECONDS = 15.0  # a connection without a request, or with half a head, is closed then


def run(table: str | os.PathLike[str], **settings: Any) -> None:
    """Serve a table until the process is told to stop (SIGINT or SIGTERM).

    On SIGHUP the table is read again. When this returns, every acknowledged change is on disk.
    Settings are those of :class:`ServeSettings`.
    """
    checked = ServeSettings(table=Path(table), **settings)
    for module in ("fastapi", "hypercorn", "prometheus_client"):
        require_extra(module, "serve")
    from hashcade.serve.app import create_app

    listening = _listening(checked.host, checked.port)
    try:
        app = create_app(checked)
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        access = "with a token" if checked.token else "this machine alone, no token"
        n_items = len(app.state.service.durable.index)
        log.info("serving %d items on http://%s:%d (%s)", n_items, shown, port, access)
        try:
            asyncio.run(_serve(app, listening, checked))
        finally:
            app.state.service.close()
    finally:
        listening.close()


async def _serve(app: Any, listening: socket.socket, settings: ServeSettings) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.h11_max_incomplete_size = _MAX_HEAD
    config.keep_alive_timeout = _IDLE_SECONDS
    config.keep_alive_max_requests = 1_000_000
    config.graceful_timeout = 0.5 * settings.stop_seconds
    config.shutdown_timeout = 2 * settings.stop_seconds  # the service ends in time by itself
    config.backlog = 512
    config.include_server_header = False
    config.errorlog = logging.getLogger("hashcade.serve.http")
    stop = asyncio.Event()
    loop, service = asyncio.get_running_loop(), app.state.service

    def begin_to_stop() -> None:
        if not stop.is_set():
            service.end_within(0.65 * settings.stop_seconds)  # Python takes its time as well
            loop.call_later(0.4 * settings.stop_seconds, service.stop_work)
            stop.set()

    if threading.current_thread() is threading.main_thread() and sys.platform != "win32":
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, begin_to_stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: asyncio.create_task(_reload(app)))
    serving = asyncio.ensure_future(serve(app, config, shutdown_trigger=stop.wait))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    # Whatever connections do: a client that does not read is not waited for.
    await asyncio.wait([serving], timeout=0.75 * settings.stop_seconds)
    stopping.cancel()
    if serving.done():
        serving.result()


def _listening(host: str, port: int) -> socket.socket:
    """A socket that is bound already: a port that is taken is an error before all else."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
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
    logger = logging.getLogger("hashcade")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logging.getLogger("hashcade.serve.http").setLevel(logging.WARNING)
