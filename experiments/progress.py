"""How far a run is, on stderr; where it keeps files; what its numbers depend on but settings."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


class Progress:
    """Counts finished work in expected seconds, and scales the rest by the pace so far."""

    def __init__(self, expected: float, n_jobs: int, *, verbose: bool = True) -> None:
        self._left = expected
        self._done = self._spent = 0.0
        self._n_jobs, self._number = n_jobs, 0
        self._verbose = verbose
        self._start = time.monotonic()

    def begin(self, name: str) -> None:
        """A job begins."""
        self._number += 1
        self._start = time.monotonic()
        if self._verbose:
            left = duration(self.seconds_left())
            print(f"[{self._number}/{self._n_jobs}] {name}, {left} left", file=sys.stderr)

    def end(self, expected: float) -> None:
        """The job ended that was expected to take so many seconds."""
        self._spent += time.monotonic() - self._start
        self._done += expected
        self._left = max(0.0, self._left - expected)

    def seconds_left(self) -> float:
        """Expected seconds of the remaining jobs, by the pace so far."""
        pace = self._spent / self._done if self._done > 0 else 1.0
        return self._left * pace


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``2 h 05 min``.

    Examples
    --------
    >>> duration(44.6), duration(720), duration(7500)
    ('45 s', '12 min', '2 h 05 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def cache_folder() -> Path:
    """The cache folder of hashcade."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hashcade"


def versions() -> dict[str, str]:
    """Versions of Python, hashcade and what they compute with."""
    result = {"python": platform.python_version()}
    for name in ("hashcade", "numpy", "numba", "torch", "scikit-learn", "ortools"):
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            continue
    return result


def machine() -> dict[str, str]:
    """Processor and number of cores; nothing that names the machine."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text("utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
                break
    return {"cpu": model, "cores": str(os.cpu_count())}
