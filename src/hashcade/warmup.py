"""Compile all kernels beforehand: those of codes here, those of the index in a second process.

The compiler works on one function at a time in a process, so two processes need little more than
half of the time. What they compile is cached on disk, once per installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from hashcade import codes, index

__all__ = ["ensure_compiled", "warmup"]


def warmup() -> float:
    """Compile every kernel that is not cached, and return the seconds that it took."""
    start = time.perf_counter()
    command = [sys.executable, "-c", "from hashcade.index import warmup; warmup()"]
    try:
        other = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:  # no second process: the index is compiled after the codes
        codes.warmup()
    else:
        codes.warmup()
        other.wait()
    index.warmup()
    return time.perf_counter() - start


@cache
def ensure_compiled() -> None:
    """Compile every kernel if none is cached, as in a new installation; once per process."""
    folders = [Path(package.__path__[0]) / "__pycache__" for package in (codes, index)]
    if "NUMBA_CACHE_DIR" in os.environ:
        folders = [Path(os.environ["NUMBA_CACHE_DIR"])]
    if not all(any(folder.rglob("*.nbi")) for folder in folders):
        warmup()
