"""Start the service and stay until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hashcade._extras import require_extra
from hashcade.errors import ConfigError, HashcadeError
from hashcade.serve.settings import ServeSettings

log = logging.getLogger("hashcade.serve")


def run(table: str | os.PathLike[str], **settings: Any) -> None:
    """Serve a table until the process is told to stop (SIGINT or SIGTERM).

    On SIGHUP the table is read again. When this returns, every change is saved.

    Parameters
    ----------
    table
        Directory of the table.
    settings
        Those of :class:`ServeSettings`.

    Raises
    ------
    ConfigError
        The settings do not fit each other, the data, or this machine: no token, port taken.
    ImportError
        An extra is not installed; the message names the ``pip install`` to run.
    """
    checked = ServeSettings(table=Path(table), **settings)
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        require_extra(module, "serve")
    import uvicorn

    from hashcade.serve.app import create_app

    listening = _listening(checked.host, checked.port)
    try:
        app = create_app(checked)
        service = app.state.service
        config = uvicorn.Config(
            app, http="h11",
            log_config=None, access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=int(max(1, checked.stop_seconds)), backlog=512,
        )  # fmt: skip
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        log.info(
            "serving %d items on http://%s:%d (%s)", len(service.durable.index), shown, port,
            "with a token" if checked.token else "this machine alone, no token",
        )  # fmt: skip
        with _signals(service):
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        listening.close()


@contextmanager
def _signals(service: Any) -> Iterator[None]:
    """Read everything again on SIGHUP, and let a stop that was asked for be no failure.

    uvicorn stops in order on SIGINT and SIGTERM, and then sends the signal once more, which would
    end the process as if it had been killed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    again = partial(threading.Thread, target=_reload, args=(service,))
    handlers: dict[int, Any] = {
        signal.SIGINT: lambda *_: None,
        signal.SIGTERM: lambda *_: None,
    }
    if hasattr(signal, "SIGHUP"):  # Windows has none
        handlers[signal.SIGHUP] = lambda *_: again().start()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listening(host: str, port: int) -> socket.socket:
    """A socket that is bound already: a port that is taken is an error before all else."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            hint="choose another with --port",
        ) from None
    return listening


def _reload(service: Any) -> None:
    try:
        changed = service.reload_soon().result()
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
    for name in ("uvicorn", "uvicorn.error"):  # what it could not do; not what it was asked
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger(name).propagate = False
