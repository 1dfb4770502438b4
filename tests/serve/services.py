"""What the tests of the service share: a small index, and services on free ports."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
from starlette.testclient import TestClient

from hashcade import CodeShape, HashIndex
from hashcade.serve import ServeSettings, create_app

TOKEN = "correct-horse-battery"
SHAPE = CodeShape(width=4, depth=2)
DIM = 8
N_ITEMS = 200


def make_index(path, *, labels=True, seed=0):
    """An index of 200 items around the centres of 10 buckets; returns its parts."""
    rng = np.random.default_rng(seed)
    buckets = rng.integers(0, 10, N_ITEMS)
    centres = rng.normal(size=(SHAPE.n_buckets, DIM))
    vectors = (centres[buckets] + 0.2 * rng.normal(size=(N_ITEMS, DIM))).astype(np.float32)
    classes = buckets // 2 if labels else None
    index = HashIndex.build(buckets, vectors, labels=classes, shape=SHAPE)
    index.save(path)
    return buckets, vectors, classes


@contextlib.contextmanager
def serving(**settings):
    """A client of an application in this process, which may be a slow one."""
    app = create_app(ServeSettings(**{"deadline": 300.0, **settings}))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        client.app = app
        yield client


class Process:
    """A service in a process of its own."""

    def __init__(self, *arguments, log, env=None):
        self.log = Path(log)
        self.out = self.log.open("wb")
        command = [sys.executable, "-m", "hashcade.serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(
            command, stdout=self.out, stderr=self.out, env={**os.environ, **(env or {})}
        )
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


@contextlib.contextmanager
def process(*arguments, log, env=None):
    made = Process(*arguments, log=log, env=env)
    try:
        yield made
    finally:
        made.stop()
