"""A service in a process of its own, for the benchmark."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

_RUN = """
import json, sys
from hashcade.serve import log_to_stderr, run
log_to_stderr()
run(sys.argv[1], **json.loads(sys.argv[2]))
"""


class ServiceProcess:
    """A table served on a free port; it answers when this is made."""

    def __init__(self, place: Path, log: Path, **settings: Any) -> None:
        self._out = log.open("wb")
        command = [sys.executable, "-c", _RUN, str(place), json.dumps({"port": 0, **settings})]
        self._process = subprocess.Popen(command, stdout=self._out, stderr=self._out)
        self.url = self._url(log)

    def _url(self, log: Path) -> str:
        while True:
            for line in log.read_text().splitlines():
                if " on http://" in line:
                    url = line.partition(" on ")[2].split()[0]
                    try:
                        with urllib.request.urlopen(f"{url}/health", timeout=5):
                            return url
                    except OSError:
                        pass
            if self._process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.02)

    def stop(self, kind: int = signal.SIGTERM) -> None:
        """Send a signal, and wait for the end."""
        if self._process.poll() is None:
            self._process.send_signal(kind)
            self._process.wait()
        self._out.close()

    def __enter__(self) -> ServiceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
