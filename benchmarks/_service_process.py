"""A service in a process of its own, for the benchmark."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


class ServiceProcess:
    """``python -m hashcade.serve`` on a free port, up when this is made."""

    def __init__(self, place: Path, log: Path, *options: str) -> None:
        self._out = log.open("wb")
        command = [sys.executable, "-m", "hashcade.serve", str(place), "--port", "0", *options]
        self._process = subprocess.Popen(command, stdout=self._out, stderr=self._out)
        self.url = self._found(log)

    def _found(self, log: Path) -> str:
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
