"""What the tests of the service share: services in this process and in processes of their own."""

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from unittest import mock

from fastapi.openapi.utils import get_openapi
from starlette.testclient import TestClient

from hashcade.serve import ServeSettings, create_app
from tests.store.factories import DIM, N_ITEMS, SHAPE, load_index, make_table

__all__ = [
    "DIM", "N_ITEMS", "SHAPE", "TOKEN", "Process", "load_index", "make_table", "process", "serving",
]  # fmt: skip

TOKEN = "correct-horse-battery"
RUN = """
import json, sys
from hashcade.errors import HashcadeError
from hashcade.serve import log_to_stderr, run
log_to_stderr()
try:
    run(sys.argv[1], **json.loads(sys.argv[2]))
except HashcadeError as error:
    sys.exit(f"error: {error} ({error.hint})")
"""


_routes = {}


def described_once(**about):
    """The description of the routes: every application has the same, and it takes longest."""
    if not _routes:
        _routes.update(get_openapi(**about))
    return copy.deepcopy(_routes)


@contextlib.contextmanager
def serving(**settings):
    """A client of an application in this process, which may be a slow one."""
    with mock.patch("fastapi.applications.get_openapi", described_once):
        app = create_app(ServeSettings(**{"deadline": 300.0, **settings}))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        client.app = app
        yield client


def command(table, code=RUN, **settings):
    """The command that serves a table in a process of its own."""
    return [sys.executable, "-c", code, str(table), json.dumps({"port": 0, **settings})]


class Process:
    """A service in a process of its own."""

    environment = os.environ
    command = staticmethod(command)

    def __init__(self, table, *, log, env=None, **settings):
        self.log = Path(log)
        self.out = self.log.open("wb")
        self.process = subprocess.Popen(
            self.command(table, **settings),
            stdout=self.out, stderr=self.out,
            env={**self.environment, "OMP_NUM_THREADS": "1", **(env or {})},
        )  # fmt: skip
        self.url = self._url()

    def _url(self):
        for _ in range(3000):
            for line in self.log.read_text().splitlines():
                if " on http://" in line:
                    url = line.partition(" on ")[2].split()[0]
                    if self._answers(url):
                        return url
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.05)
        raise RuntimeError(f"does not start: {self.log.read_text()}")

    @staticmethod
    def _answers(url):
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self, kind=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(kind)
            self.process.wait(60)
        self.out.close()
        return self.process.returncode

    close = stop


@contextlib.contextmanager
def process(table, *, log, **settings):
    service = Process(table, log=log, **settings)
    try:
        yield service
    finally:
        service.stop()
