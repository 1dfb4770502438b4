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
from hashcade.serve._settings import ServeSettings

log = logging.getLogger("hashcade.serve")


def run(
    index: str | os.PathLike[str], model: str | os.PathLike[str] | None = None, **settings: Any
) -> None:
    """Serve an index until the process is told to stop (SIGINT or SIGTERM).

    On SIGHUP the index and the model are read again. When this returns, every change is saved.

    Parameters
    ----------
    index
        Directory of the index.
    model
        Directory of the hasher, optional.
    settings
        Those of :class:`ServeSettings`.

    Raises
    ------
    ConfigError
        The settings do not fit each other, the data, or this machine: no token, port taken.
    ImportError
        An extra is not installed; the message names the ``pip install`` to run.
    """
    checked = ServeSettings(
        index=Path(index), model=None if model is None else Path(model), **settings
    )
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        require_extra(module, "serve")
    import uvicorn

    from hashcade.serve._app import create_app
    from hashcade.serve._gathered import GatheredHTTPProtocol

    listening = _listening(checked.host, checked.port)
    try:
        app = create_app(checked)
        service = app.state.service
        config = uvicorn.Config(
            app, http=GatheredHTTPProtocol,
            log_config=None, access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=int(max(1, checked.stop_seconds)), backlog=512,
        )  # fmt: skip
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        log.info(
            "serving %d items on http://%s:%d (%s)", len(service.index), shown, port,
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
        signal.SIGHUP: lambda *_: again().start(),
        signal.SIGINT: lambda *_: None,
        signal.SIGTERM: lambda *_: None,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that is bound already: a port that is taken is told before all else."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(found[0], socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(found[4])
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port"
        ) from None
    return listening


def _reload(service: Any) -> None:
    try:
        changed = service.reload_soon().result()
        log.info("read again: %s", "a new index or model" if changed else "nothing new")
    except HashcadeError as error:
        log.error("the old index stays: %s", error)


def log_to_stderr() -> None:
    """Let the messages of the service go to stderr, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("hashcade")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error"):  # what it could not do; not what it was asked
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger(name).propagate = False
